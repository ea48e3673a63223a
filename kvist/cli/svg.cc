// SPDX-License-Identifier: MIT
// Marks as text.
#include "kvist/cli/svg.h"

#include "kvist/core/error.h"

namespace kvist::svg {

std::string escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t') out += c;
    }
  }
  return out;
}

std::string num(double x) {
  std::string text = fmt::format("{:.2f}", x);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

std::string label(double x, double y, std::string_view text, const Style& style) {
  return str("<text x=\"", num(x), "\" y=\"", num(y), "\" font-size=\"", num(style.size),
             "\" fill=\"", style.fill, "\" text-anchor=\"", style.anchor, "\"",
             style.bold ? " font-weight=\"600\"" : "", ">", escaped(text), "</text>\n");
}

std::string rect(double x, double y, double width, double height, std::string_view fill) {
  return str("<rect x=\"", num(x), "\" y=\"", num(y), "\" width=\"", num(width), "\" height=\"",
             num(height), "\" fill=\"", fill, "\"/>\n");
}

std::string line(double x1, double y1, double x2, double y2, std::string_view stroke,
                 double width) {
  return str("<path d=\"M", num(x1), " ", num(y1), "L", num(x2), " ", num(y2), "\" stroke=\"",
             stroke, "\" stroke-width=\"", num(width), "\" fill=\"none\"/>\n");
}

std::string dot(double x, double y, double radius, std::string_view fill) {
  return str("<circle cx=\"", num(x), "\" cy=\"", num(y), "\" r=\"", num(radius), "\" fill=\"",
             fill, "\"/>\n");
}

}  // namespace kvist::svg
