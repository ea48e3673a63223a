// SPDX-License-Identifier: MIT
// Frames, axes, words over a curve, pages.
#include "kvist/cli/plot.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <map>
#include <optional>

#include "kvist/cli/terminal.h"
#include "kvist/cli/utf8.h"
#include "kvist/core/error.h"

namespace kvist {
namespace {

// The two lines of words over a curve; the stem of a word in the upper line passes through the
// lower one.
class LabelLines {
 public:
  static constexpr int kLines = 2;

  // The line that a word centred at x has room in, 0 is the lower; nothing where it has none.
  std::optional<int> place(double x, double half_width) {
    if (x - half_width < kLeft || x + half_width > kLeft + kPlotWidth) return std::nullopt;
    for (int row = 0; row < kLines; ++row) {
      if (!is_free(row, x, half_width)) continue;
      if (row > 0 && !is_free(0, x, kStem)) continue;
      spans_[static_cast<size_t>(row)].push_back({x - half_width, x + half_width});
      if (row > 0) spans_[0].push_back({x - kStem, x + kStem});
      return row;
    }
    return std::nullopt;
  }

 private:
  static constexpr double kStem = 3;
  struct Span {
    double from, to;
  };
  bool is_free(int row, double x, double half) const {
    const auto& spans = spans_[static_cast<size_t>(row)];
    return std::none_of(spans.begin(), spans.end(),
                        [&](const Span& o) { return x - half < o.to && o.from < x + half; });
  }
  std::array<std::vector<Span>, kLines> spans_;
};

}  // namespace

bool is_html(std::string_view path) { return path.ends_with(".html") || path.ends_with(".htm"); }

void write_picture(const std::string& path, const std::string& picture) {
  std::ofstream file(path, std::ios::binary);
  file << picture;
  file.close();
  if (!file) throw Error(ErrorKind::io, str(path, ": cannot write the picture"));
  std::fprintf(stderr, "picture: %s\n", path.c_str());
}

std::string svg_head(double height, const PictureText& text) {
  std::string out = str("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", num(kWidth),
                        " ", num(height), "\" width=\"", num(kWidth), "\" height=\"", num(height),
                        "\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\">\n");
  out += rect(0, 0, kWidth, height, "#ffffff");
  out += label(kLeft, 34, text.title, {.size = 20, .bold = true});
  return out + label(kLeft, 56, text.subtitle, {.size = 13, .fill = kFaint});
}

std::string token_axis(int n_tokens, double y) {
  double step = 1;
  for (int i = 0; n_tokens / step > 9; ++i) step *= i % 3 == 1 ? 2.5 : 2;
  std::string out;
  for (double token = 0; token <= n_tokens; token += step) {
    const double x = kLeft + kPlotWidth * token / std::max(1, n_tokens);
    out += line(x, y + 3, x, y + 8, kFaint, 1);
    out += label(x, y + 21, human_count(static_cast<uint64_t>(token)),
                 {.size = 11, .fill = kFaint, .anchor = "middle"});
  }
  return out + label(kLeft + kPlotWidth, y + 44, "position in the prompt, in tokens",
                     {.size = 12, .fill = kFaint, .anchor = "end"});
}

std::string curve_labels(const std::vector<CurveLabel>& wanted, double top) {
  constexpr double kLine = 15;
  constexpr int kMostRepeats = 2;
  LabelLines lines;
  std::map<std::string, int> shown;
  std::string out;
  for (const CurveLabel& word : wanted) {
    if (shown[word.text] == kMostRepeats) continue;
    const std::optional<int> row = lines.place(word.x, 3.3 * display_width(word.text) + 7);
    if (!row) continue;
    ++shown[word.text];
    const double y = top - kCurveLabelRoom + (LabelLines::kLines - 1 - *row) * kLine;
    out += label(word.x, y, word.text, {.size = 11, .fill = kAccent, .anchor = "middle"});
    out += line(word.x, y + 3, word.x, word.y, kAccent, 0.6);
  }
  return out;
}

std::string html_page(const std::string& svg, std::string_view title,
                      const std::vector<std::string>& pieces, const std::vector<double>& share) {
  static constexpr std::array<const char*, 5> kText = {"#c6cdd4", "#98a3ad", "#66727e", "#33404c",
                                                       "#000000;font-weight:600"};
  std::string out =
      str("<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>", escaped(title),
          "</title>\n<style>body{margin:24px;background:#fff}svg{max-width:100%;height:auto}"
          "p{max-width:60em;margin:24px 64px;font:16px/1.6 Georgia,serif;white-space:pre-wrap}");
  for (size_t i = 0; i < kText.size(); ++i) out += str(".s", i, "{color:", kText[i], "}");
  out += str("</style>\n", svg, "<p>");
  Utf8Stream stream;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const std::string piece = stream.push(pieces[i]);
    if (piece.empty()) continue;
    const int level = std::clamp(static_cast<int>(share[i] * 5), 0, 4);
    out += str("<span class=\"s", level, "\">", escaped(piece), "</span>");
  }
  return out + "</p>\n</html>\n";
}

}  // namespace kvist
