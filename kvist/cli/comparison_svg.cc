// SPDX-License-Identifier: MIT
// A dot for each method, its name beside it where there is room.
#include "kvist/cli/comparison_svg.h"

#include <algorithm>
#include <cmath>

#include "kvist/cli/svg.h"
#include "kvist/cli/terminal.h"
#include "kvist/core/error.h"

namespace kvist {
namespace {

using namespace svg;

constexpr double kWidth = 960, kHeight = 540;
constexpr double kLeft = 84, kRight = 40, kTop = 84, kBottom = 64;
constexpr double kLeastKl = 1e-5;  // what is below lies on the floor
constexpr double kLetter = 6.6;    // width of one at size 12

class Plot {
 public:
  explicit Plot(const Comparison& c) : c_(c) {
    for (size_t i = 1; i < c.rows.size(); ++i) {
      const double kl = std::max(kLeastKl, c.rows[i].distance.kl);
      low_ = std::min(low_, std::floor(std::log10(kl)));
      high_ = std::max(high_, std::ceil(std::log10(kl)));
      most_ = std::max(most_, c.rows[i].factor);
    }
    if (high_ <= low_) high_ = low_ + 1;
    most_ = std::ceil(most_ * 1.05 * 2) / 2;
  }

  std::string draw() const {
    std::string out =
        str("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", num(kWidth), " ",
            num(kHeight), "\" width=\"", num(kWidth), "\" height=\"", num(kHeight),
            "\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\">\n");
    out += rect(0, 0, kWidth, kHeight, "#ffffff");
    out += label(kLeft, 32, str(c_.rows.size() - 1, " methods, one document"),
                 {.size = 20, .bold = true});
    out += label(kLeft, 54,
                 str(human_count(static_cast<uint64_t>(c_.n_prompt)), " tokens, ", c_.model),
                 {.size = 13, .fill = kFaint});
    return out + axes() + dots() + "</svg>\n";
  }

 private:
  double x_of(double factor) const {
    return kLeft + (kWidth - kLeft - kRight) * (factor - 1) / (most_ - 1);
  }
  double y_of(double kl) const {
    const double height = kHeight - kTop - kBottom;
    return kTop + height * (high_ - std::log10(std::max(kl, kLeastKl))) / (high_ - low_);
  }

  std::string axes() const {
    std::string out;
    for (double power = low_; power <= high_; ++power) {
      const double y = y_of(std::pow(10, power));
      out += line(kLeft, y, kWidth - kRight, y, "#e1e6eb", 1);
      out += label(kLeft - 8, y + 4, fmt::format("{:g}", std::pow(10, power)),
                   {.size = 11, .fill = kFaint, .anchor = "end"});
    }
    const double step = most_ <= 3 ? 0.5 : most_ <= 6 ? 1 : std::ceil(most_ / 6);
    for (double factor = 1; factor <= most_; factor += step) {
      out += line(x_of(factor), kHeight - kBottom, x_of(factor), kHeight - kBottom + 5, kFaint, 1);
      out += label(x_of(factor), kHeight - kBottom + 20, num(factor) + "x",
                   {.size = 11, .fill = kFaint, .anchor = "middle"});
    }
    out += label(kWidth - kRight, kHeight - kBottom + 44, "times smaller than f16",
                 {.size = 12, .fill = kFaint, .anchor = "end"});
    return out + label(kLeft - 44, kTop - 14, "divergence from the uncompressed answers, in nats",
                       {.size = 12, .fill = kFaint});
  }

  // Names go to the right of their dots, or to the left at the edge; each line of text is used
  // once.
  std::string dots() const {
    std::vector<const ComparedRow*> rows;
    for (size_t i = 1; i < c_.rows.size(); ++i) rows.push_back(&c_.rows[i]);
    std::stable_sort(rows.begin(), rows.end(), [](const ComparedRow* a, const ComparedRow* b) {
      return a->distance.kl > b->distance.kl;
    });
    std::string out;
    double free_from = kTop;
    for (const ComparedRow* row : rows) {
      const double x = x_of(row->factor), y = y_of(row->distance.kl);
      const double text_y = std::max(y + 4, free_from);
      free_from = text_y + 14;
      const double width = kLetter * display_width(row->method);
      const bool left = x + 12 + width > kWidth - 4;
      const double text_x = left ? x - 12 : x + 12;
      if (text_y > y + 5)
        out += line(x, y, left ? text_x + 3 : text_x - 3, text_y - 4, kFaint, 0.6);
      out += dot(x, y, 5, kAccent);
      out += label(text_x, text_y, row->method, {.anchor = left ? "end" : "start"});
    }
    return out;
  }

  const Comparison& c_;
  double low_ = 0, high_ = -4, most_ = 1.5;
};

std::string cells(std::initializer_list<std::string> texts) {
  std::string out = "<tr>";
  for (const std::string& text : texts) out += str("<td>", escaped(text), "</td>");
  return out + "</tr>\n";
}

}  // namespace

std::string comparison_svg(const Comparison& comparison) { return Plot(comparison).draw(); }

std::string comparison_html(const Comparison& c) {
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>kvist compare</title>\n"
      "<style>body{margin:24px;background:#fff;color:#1c2733;font:15px/1.5 system-ui,sans-serif}"
      "svg{max-width:100%;height:auto}table{border-collapse:collapse;margin:24px 0}"
      "td,th{padding:4px 14px;text-align:right;border-bottom:1px solid #e1e6eb}"
      "td:first-child,th:first-child{text-align:left}dt{color:#6b7885}dd{margin:0 0 10px 0}"
      "</style>\n";
  out += comparison_svg(c);
  out +=
      str("<table><tr><th>method</th><th>factor</th><th>bytes</th><th>construct ms</th>"
          "<th>tok/s</th><th>KL</th><th>same top</th></tr>\n");
  for (const ComparedRow& row : c.rows) {
    out += cells({row.method, fmt::format("{:.2f}x", row.factor), human_bytes(row.bytes.stored()),
                  fmt::format("{:.0f}", row.construct_ms), fmt::format("{:.1f}", row.decode_tok_s),
                  fmt::format("{:.4f}", row.distance.kl), percent(row.distance.same_top)});
  }
  out += "</table>\n";
  for (size_t question = 0; question < c.rows.front().answers.size(); ++question) {
    out += str("<h2>", escaped(c.rows.front().answers[question].question), "</h2>\n<dl>\n");
    for (const ComparedRow& row : c.rows) {
      out += str("<dt>", escaped(row.method), "</dt><dd>", escaped(row.answers[question].text),
                 "</dd>\n");
    }
    out += "</dl>\n";
  }
  return out + "</html>\n";
}

}  // namespace kvist
