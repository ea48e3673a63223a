// SPDX-License-Identifier: MIT
// Draws with one path a shade, made of horizontal strokes as high as a row: small files that every
// viewer shows alike.
#include "kvist/cli/survival_svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "kvist/cli/svg.h"
#include "kvist/cli/terminal.h"
#include "kvist/cli/utf8.h"
#include "kvist/core/error.h"

namespace kvist {
namespace {

using namespace svg;

constexpr int kColumns = 640;  // where there are more than twice as many tokens
constexpr int kLevels = 6;     // level 0: nothing kept, 5: everything
constexpr std::array<const char*, kLevels> kShades = {"#eef1f4", "#ccd7e2", "#9bb3c9",
                                                      "#6288aa", "#305f8a", "#0f2f52"};
constexpr double kLeft = 64, kPlotWidth = 960, kSideGap = 14, kSideWidth = 120, kRight = 64;
constexpr double kWidth = kLeft + kPlotWidth + kSideGap + kSideWidth + kRight;
constexpr double kLabelTop = 86, kLabelLine = 15, kCurveTop = 122, kCurveHeight = 56, kMapTop = 192;
constexpr int kLabelLines = 2;
constexpr int kMostRepeats = 2;  // of one word

// Room for words over the curve, in two lines; the stem of a word in the upper line passes through
// the lower one.
class LabelLines {
 public:
  // The line that a word centred at x has room in, 0 is the lower; nothing where it has none.
  std::optional<int> place(double x, double half_width) {
    if (x - half_width < kLeft || x + half_width > kLeft + kPlotWidth) return std::nullopt;
    for (int row = 0; row < kLabelLines; ++row) {
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
  std::array<std::vector<Span>, kLabelLines> spans_;
};

class Picture {
 public:
  Picture(const Survival& s, const PictureText& text)
      : s_(s),
        text_(text),
        n_columns_(std::max(1, s.n_tokens <= 2 * kColumns ? s.n_tokens : kColumns)),
        row_height_(row_height(s.n_layers() * s.kv_heads())),
        layer_gap_(row_height_ >= 4 ? 2 : 1) {}

  std::string draw() const {
    const double height = map_bottom() + 66;
    std::string out = str("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", num(kWidth),
                          " ", num(height), "\" width=\"", num(kWidth), "\" height=\"", num(height),
                          "\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\">\n");
    out += rect(0, 0, kWidth, height, "#ffffff");
    out += label(kLeft, 34, text_.title, {.size = 20, .bold = true});
    out += label(kLeft, 56, text_.subtitle, {.size = 13, .fill = kFaint});
    return out + curve() + words() + map() + side() + axis() + legend() + "</svg>\n";
  }

 private:
  static double row_height(int rows) {
    return std::clamp(std::floor(540.0 / std::max(1, rows)), 2.0, 14.0);
  }
  double stroke_height() const { return row_height_ > 3 ? row_height_ - 0.5 : row_height_; }
  double layer_height() const { return s_.kv_heads() * row_height_ + layer_gap_; }
  double map_bottom() const { return kMapTop + s_.n_layers() * layer_height() - layer_gap_; }
  double x_of(double token) const { return kLeft + kPlotWidth * token / std::max(1, s_.n_tokens); }
  int first_token(int column) const {
    return static_cast<int>(int64_t{column} * s_.n_tokens / n_columns_);
  }

  // [columns] 0..5; a cell is level 0 or 5 only where all its tokens are alike.
  std::vector<int> levels(const std::vector<int32_t>& kept) const {
    std::vector<int> levels(static_cast<size_t>(n_columns_), 0);
    auto at = kept.begin();
    for (int column = 0; column < n_columns_; ++column) {
      const int begin = first_token(column), end = first_token(column + 1);
      int n = 0;
      for (; at != kept.end() && *at < end; ++at) ++n;
      const int size = end - begin;
      int& level = levels[static_cast<size_t>(column)];
      if (n == size && size > 0) {
        level = kLevels - 1;
      } else if (n > 0) {
        level = std::clamp(1 + n * (kLevels - 2) / size, 1, kLevels - 2);
      }
    }
    return levels;
  }

  // Strokes of one row, added to the path of each shade. Coordinates are columns and tenths of
  // pixels of a row's middle.
  void add_row(const std::vector<int32_t>& kept, double middle,
               std::array<std::string, kLevels>* paths) const {
    const std::vector<int> cells = levels(kept);
    std::array<int, kLevels> pen{};
    std::array<bool, kLevels> begun{};
    for (int from = 0; from < n_columns_;) {
      int to = from + 1;
      const auto level = static_cast<size_t>(cells[static_cast<size_t>(from)]);
      while (to < n_columns_ && cells[static_cast<size_t>(to)] == static_cast<int>(level)) ++to;
      if (level > 0) {
        std::string& path = (*paths)[level];
        path += begun[level] ? str("m", from - pen[level], " 0h", to - from)
                             : str("M", from, " ", num(middle), "h", to - from);
        pen[level] = to;
        begun[level] = true;
      }
      from = to;
    }
  }

  std::string map() const {
    std::array<std::string, kLevels> paths;
    std::string out;
    for (int layer = 0; layer < s_.n_layers(); ++layer) {
      const double top = kMapTop + layer * layer_height();
      out += rect(kLeft, top, kPlotWidth, s_.kv_heads() * row_height_, kShades[0]);
      for (int head = 0; head < s_.kv_heads(); ++head) {
        add_row(s_.kept[static_cast<size_t>(layer)][static_cast<size_t>(head)],
                top + (head + 0.5) * row_height_, &paths);
      }
    }
    out += str("<g transform=\"translate(", num(kLeft), " 0) scale(",
               fmt::format("{:.6f}", kPlotWidth / n_columns_),
               " 1)\" fill=\"none\" stroke-width=\"", num(stroke_height()), "\">\n");
    for (size_t level = 1; level < kLevels; ++level) {
      if (!paths[level].empty())
        out += str("<path stroke=\"", kShades[level], "\" d=\"", paths[level], "\"/>\n");
    }
    return out + "</g>\n";
  }

  // The share of layer-heads that keep a position, as an area over the map.
  std::string curve() const {
    const std::vector<double> share = s_.share_by_position();
    const double base = kCurveTop + kCurveHeight;
    std::string d = str("M", num(kLeft), " ", num(base));
    for (int column = 0; column < n_columns_; ++column) {
      const int begin = first_token(column), end = first_token(column + 1);
      double sum = 0;
      for (int i = begin; i < end; ++i) sum += share[static_cast<size_t>(i)];
      const double y = base - kCurveHeight * sum / std::max(1, end - begin);
      d += str("L", num(x_of(begin)), " ", num(y), "H", num(x_of(end)));
    }
    d += str("V", num(base), "Z");
    std::string out = line(kLeft, kCurveTop, kLeft + kPlotWidth, kCurveTop, "#e1e6eb", 1);
    out += str("<path d=\"", d, "\" fill=\"", kShades[3], "\"/>\n");
    out += label(kLeft - 8, kCurveTop + 5, "100 %", {.size = 11, .fill = kFaint, .anchor = "end"});
    out += label(kLeft - 8, base + 1, "0 %", {.size = 11, .fill = kFaint, .anchor = "end"});
    out += label(kLeft + kPlotWidth + kSideGap, kCurveTop + 18, "heads that keep",
                 {.size = 11, .fill = kFaint});
    return out + label(kLeft + kPlotWidth + kSideGap, kCurveTop + 32, "a position",
                       {.size = 11, .fill = kFaint});
  }

  // Words that survive best are written over the curve, where they fit. Ends that every head keeps
  // say nothing.
  std::string words() const {
    const std::vector<double> share = s_.share_by_position();
    int first = 0, last = s_.n_tokens;
    while (first < last && share[static_cast<size_t>(first)] > 0.999) ++first;
    while (last > first && share[static_cast<size_t>(last - 1)] > 0.999) --last;
    std::vector<Word> candidates = words_of(s_);
    std::erase_if(candidates, [&](const Word& w) {
      return w.begin < first || w.end > last || w.text.size() < 3;
    });
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Word& a, const Word& b) { return a.share > b.share; });
    LabelLines lines;
    std::map<std::string, int> shown;
    std::string out;
    for (const Word& word : candidates) {
      if (word.share < 1.25 * s_.share() || word.text.size() > 24 ||
          shown[word.text] == kMostRepeats)
        continue;
      const double x = x_of((word.begin + word.end) / 2.0);
      const std::optional<int> row = lines.place(x, 3.3 * display_width(word.text) + 7);
      if (!row) continue;
      ++shown[word.text];
      const double y = kLabelTop + (kLabelLines - 1 - *row) * kLabelLine;
      out += label(x, y, word.text, {.size = 11, .fill = kAccent, .anchor = "middle"});
      out += line(x, y + 3, x, kCurveTop + kCurveHeight * (1 - word.share), kAccent, 0.6);
    }
    return out;
  }

  // Layer numbers at the left; at the right a bar a head, the share its layer keeps, and the mean
  // of all as a line.
  std::string side() const {
    const double x = kLeft + kPlotWidth + kSideGap;
    const int step = layer_height() >= 11 ? 1 : layer_height() >= 6 ? 2 : 4;
    std::string out =
        label(kLeft - 8, map_bottom() + 21, "layer", {.size = 11, .fill = kFaint, .anchor = "end"});
    out += label(x, kMapTop - 6, "kept: heads, layer", {.size = 11, .fill = kFaint});
    for (int layer = 0; layer < s_.n_layers(); ++layer) {
      const double top = kMapTop + layer * layer_height(), height = layer_height() - layer_gap_;
      const double share = s_.share_of_layer(layer);
      out += rect(x, top, kSideWidth, height, kShades[0]);
      for (int head = 0; head < s_.kv_heads(); ++head) {
        const size_t n = s_.kept[static_cast<size_t>(layer)][static_cast<size_t>(head)].size();
        const double part = static_cast<double>(n) / std::max(1, s_.n_tokens);
        out += rect(x, top + head * row_height_, kSideWidth * part, stroke_height(), kShades[3]);
      }
      if (layer % step != 0) continue;
      const double middle = top + height / 2 + 3.5;
      out += label(kLeft - 8, middle, str(layer), {.size = 10, .fill = kFaint, .anchor = "end"});
      out += label(x + kSideWidth + 6, middle, percent(share), {.size = 10, .fill = kFaint});
    }
    const double mean_x = x + kSideWidth * s_.share();
    return out + line(mean_x, kMapTop, mean_x, map_bottom(), kAccent, 1);
  }

  std::string axis() const {
    const double y = map_bottom();
    double step = 1;
    for (int i = 0; s_.n_tokens / step > 9; ++i) step *= i % 3 == 1 ? 2.5 : 2;
    std::string out;
    for (double token = 0; token <= s_.n_tokens; token += step) {
      out += line(x_of(token), y + 3, x_of(token), y + 8, kFaint, 1);
      out += label(x_of(token), y + 21, human_count(static_cast<uint64_t>(token)),
                   {.size = 11, .fill = kFaint, .anchor = "middle"});
    }
    return out + label(kLeft + kPlotWidth, y + 44, "position in the prompt, in tokens",
                       {.size = 12, .fill = kFaint, .anchor = "end"});
  }

  std::string legend() const {
    const double y = map_bottom() + 34;
    std::string out = label(kLeft, y + 10, "dropped", {.size = 12, .fill = kFaint});
    double x = kLeft + 56;
    for (const char* shade : kShades) {
      out += rect(x, y, 22, 12, shade);
      x += 23;
    }
    out += label(x + 6, y + 10, "kept", {.size = 12, .fill = kFaint});
    return out + label(x + 56, y + 10,
                       str("a row is one KV head: ", s_.n_layers(), " layers × ", s_.kv_heads(),
                           " heads"),
                       {.size = 12, .fill = kFaint});
  }

  const Survival& s_;
  const PictureText& text_;
  int n_columns_;
  double row_height_, layer_gap_;
};

}  // namespace

std::string survival_svg(const Survival& survival, const PictureText& text) {
  return Picture(survival, text).draw();
}

std::string survival_html(const Survival& survival, const PictureText& text) {
  static constexpr std::array<const char*, 5> kText = {"#c6cdd4", "#98a3ad", "#66727e", "#33404c",
                                                       "#000000;font-weight:600"};
  std::string out =
      str("<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>", escaped(text.title),
          "</title>\n<style>body{margin:24px;background:#fff}svg{max-width:100%;height:auto}"
          "p{max-width:60em;margin:24px 64px;font:16px/1.6 Georgia,serif;white-space:pre-wrap}");
  for (size_t i = 0; i < kText.size(); ++i) out += str(".s", i, "{color:", kText[i], "}");
  out += str("</style>\n", survival_svg(survival, text), "<p>");
  const std::vector<double> share = survival.share_by_position();
  Utf8Stream stream;
  for (size_t i = 0; i < survival.pieces.size(); ++i) {
    const std::string piece = stream.push(survival.pieces[i]);
    if (piece.empty()) continue;
    const int level = std::min(4, static_cast<int>(share[i] * 5));
    out += str("<span class=\"s", level, "\">", escaped(piece), "</span>");
  }
  return out + "</p>\n</html>\n";
}

}  // namespace kvist
