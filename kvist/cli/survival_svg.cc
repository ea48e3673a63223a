// SPDX-License-Identifier: MIT
// Draws with one path a shade, made of horizontal strokes as high as a row: small files that every
// viewer shows alike.
#include "kvist/cli/survival_svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kvist/cli/plot.h"
#include "kvist/cli/terminal.h"
#include "kvist/core/error.h"

namespace kvist {
namespace {

constexpr int kColumns = 640;  // where there are more than twice as many tokens
constexpr int kLevels = 6;     // level 0: nothing kept, 5: everything
constexpr std::array<const char*, kLevels> kShades = {"#eef1f4", "#ccd7e2", "#9bb3c9",
                                                      "#6288aa", "#305f8a", "#0f2f52"};
constexpr double kCurveTop = 122, kCurveHeight = 56, kMapTop = 192;

using svg::percent;

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
    std::string out = svg_head(height, text_);
    return out + curve() + words() + map() + side() + token_axis(s_.n_tokens, map_bottom()) +
           legend() + "</svg>\n";
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
    std::vector<Word> candidates = words_of(s_.pieces, share);
    std::erase_if(candidates, [&](const Word& w) {
      return w.begin < first || w.end > last || w.text.size() < 3;
    });
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Word& a, const Word& b) { return a.share > b.share; });
    std::vector<CurveLabel> wanted;
    for (const Word& word : candidates) {
      if (word.share < 1.25 * s_.share() || word.text.size() > 24) continue;
      wanted.push_back({x_of((word.begin + word.end) / 2.0),
                        kCurveTop + kCurveHeight * (1 - word.share), word.text});
    }
    return curve_labels(wanted, kCurveTop);
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
  return html_page(survival_svg(survival, text), text.title, survival.pieces,
                   survival.share_by_position());
}

}  // namespace kvist
