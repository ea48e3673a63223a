// SPDX-License-Identifier: MIT
// Two maps of horizontal strokes, one path a shade.
#include "kvist/cli/depths_svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "kvist/cli/query_row.h"
#include "kvist/cli/survival.h"
#include "kvist/cli/terminal.h"
#include "kvist/core/error.h"

namespace kvist {
namespace {

constexpr int kColumns = 480;   // where there are more than twice as many tokens
constexpr int kMostRows = 160;  // of values; above, the heads of a layer share a row
// Of depth t out of 8; the last is for exact tokens.
constexpr int kExactShade = 9, kShadeCount = 10;
constexpr std::array<const char*, kShadeCount> kShades = {
    "#f2f4f7", "#d9e2eb", "#c0cfde", "#a3b9cf", "#84a0bf",
    "#6387ad", "#436d98", "#28527e", "#0f2f52", "#e0a08f"};

constexpr double kKeyTop = 122, kCurveHeight = 44;

double mean_of(const uint8_t* depths, int64_t n) {
  int64_t sum = 0, count = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (depths[i] == kExactDepth) continue;
    sum += depths[i];
    ++count;
  }
  return count == 0 ? 0 : static_cast<double>(sum) / static_cast<double>(count);
}

std::string one_decimal(double x) { return fmt::format("{:.1f}", x); }

// Strokes of rows, gathered by shade. x counts columns.
class Strokes {
 public:
  // Shades of the cells from column `first` on, of a row whose middle is at y.
  void add(const std::vector<int>& cells, int first, double y) {
    std::array<int, kShadeCount> pen{};
    std::array<bool, kShadeCount> begun{};
    const int n = static_cast<int>(cells.size());
    for (int from = 0; from < n;) {
      const auto shade = static_cast<size_t>(cells[static_cast<size_t>(from)]);
      int to = from + 1;
      while (to < n && cells[static_cast<size_t>(to)] == static_cast<int>(shade)) ++to;
      paths_[shade] += begun[shade] ? str("m", from - pen[shade], " 0h", to - from)
                                    : str("M", first + from, " ", num(y), "h", to - from);
      pen[shade] = to;
      begun[shade] = true;
      from = to;
    }
  }
  std::string draw(double columns, double height) const {
    std::string out = str("<g transform=\"translate(", num(kLeft), " 0) scale(",
                          fmt::format("{:.6f}", kPlotWidth / columns),
                          " 1)\" fill=\"none\" stroke-width=\"", num(height), "\">\n");
    for (size_t shade = 0; shade < kShadeCount; ++shade) {
      if (!paths_[shade].empty())
        out += str("<path stroke=\"", kShades[shade], "\" d=\"", paths_[shade], "\"/>\n");
    }
    return out + "</g>\n";
  }

 private:
  std::array<std::string, kShadeCount> paths_;
};

class Picture {
 public:
  Picture(const Depths& depths, const PictureText& text)
      : d_(depths),
        text_(text),
        n_layers_(static_cast<int>(depths.layers.size())),
        bands_(n_layers_ * depths.kv_heads <= kMostRows ? depths.kv_heads : 1),
        n_columns_(std::max(1, depths.n_tokens <= 2 * kColumns ? depths.n_tokens : kColumns)),
        channel_gap_(std::max(1, depths.head_dim / 24)),
        key_height_(row_height(n_layers_, 270, 14)),
        band_height_(row_height(n_layers_ * bands_, 480, 14)),
        layer_gap_(band_height_ * bands_ >= 8 ? 2 : 1) {}

  std::string draw() const {
    return svg_head(bottom() + 66, text_) + keys() + side(kKeyTop, key_height_, key_height_, true) +
           curve() + words() + values() + side(value_top(), layer_height(), band_height_, false) +
           token_axis(d_.n_tokens, bottom()) + legend() + "</svg>\n";
  }

 private:
  static double row_height(int rows, double room, double most) {
    return std::clamp(std::floor(room / std::max(1, rows)), 2.0, most);
  }
  double key_bottom() const { return kKeyTop + n_layers_ * key_height_; }
  double curve_top() const { return key_bottom() + 42 + kCurveLabelRoom + 14; }
  double value_top() const { return curve_top() + kCurveHeight + 14; }
  double layer_height() const { return bands_ * band_height_ + layer_gap_; }
  double bottom() const { return value_top() + n_layers_ * layer_height() - layer_gap_; }
  double x_of(double token) const { return kLeft + kPlotWidth * token / std::max(1, d_.n_tokens); }
  int first_token(int column) const {
    return static_cast<int>(int64_t{column} * d_.n_tokens / n_columns_);
  }
  const Depths::Layer& layer(int i) const { return d_.layers[static_cast<size_t>(i)]; }
  bool is_coded(int i) const { return !layer(i).keys.empty(); }
  int shade(double depth) const {
    return std::clamp(static_cast<int>(std::lround(depth * 8 / d_.width)), 0, 8);
  }

  std::string keys() const {
    const int per_head = d_.head_dim + channel_gap_;
    const double columns = std::max(1, d_.kv_heads * per_head - channel_gap_);
    Strokes strokes;
    std::string out = panel(
        "keys", "a row is a layer, a cell one channel: all tokens are read so deep", kKeyTop - 32);
    for (int head = 0; head < d_.kv_heads; ++head) {
      const double middle = kLeft + kPlotWidth * (head * per_head + d_.head_dim / 2.0) / columns;
      out += label(middle, kKeyTop - 8, str("head ", head),
                   {.size = 11, .fill = kFaint, .anchor = "middle"});
      for (int i = 0; i < n_layers_; ++i) {
        std::vector<int> cells(static_cast<size_t>(d_.head_dim), kExactShade);
        for (int c = 0; c < d_.head_dim && is_coded(i); ++c)
          cells[static_cast<size_t>(c)] =
              shade(layer(i).keys[static_cast<size_t>(head * d_.head_dim + c)]);
        strokes.add(cells, head * per_head, kKeyTop + (i + 0.5) * key_height_);
      }
    }
    return out + strokes.draw(columns, stroke(key_height_));
  }

  static double stroke(double height) { return height > 3 ? height - 0.5 : height; }

  std::string panel(std::string_view name, std::string_view what, double y) const {
    return label(kLeft, y, name, {.size = 14, .bold = true}) +
           label(kLeft + 9.0 * display_width(name) + 8, y, what, {.size = 12, .fill = kFaint});
  }

  // Mean depths of a head's tokens in each column; of all heads where they share a row.
  std::vector<int> value_cells(int i, int band) const {
    std::vector<int> cells(static_cast<size_t>(n_columns_), kExactShade);
    const int heads = d_.kv_heads / bands_;
    for (int column = 0; column < n_columns_ && is_coded(i); ++column) {
      const int begin = first_token(column), n = first_token(column + 1) - begin;
      double sum = 0;
      bool coded = false;
      for (int head = band * heads; head < (band + 1) * heads; ++head) {
        const uint8_t* at = layer(i).values.data() + int64_t{head} * d_.n_tokens + begin;
        coded |= !std::all_of(at, at + n, [](uint8_t depth) { return depth == kExactDepth; });
        sum += mean_of(at, n);
      }
      if (coded) cells[static_cast<size_t>(column)] = shade(sum / heads);
    }
    return cells;
  }

  std::string values() const {
    Strokes strokes;
    for (int i = 0; i < n_layers_; ++i) {
      for (int band = 0; band < bands_; ++band)
        strokes.add(value_cells(i, band), 0,
                    value_top() + i * layer_height() + (band + 0.5) * band_height_);
    }
    return strokes.draw(n_columns_, stroke(band_height_));
  }

  // Mean depth by position, from 0 to W.
  std::string curve() const {
    const std::vector<double> depth = d_.by_position();
    const double top = curve_top(), base = top + kCurveHeight;
    const std::string row =
        bands_ == d_.kv_heads ? "a row is one KV head of a layer" : "a row is a layer";
    const std::string cell =
        n_columns_ == d_.n_tokens
            ? "a cell one token"
            : str("a cell the mean of ", one_decimal(static_cast<double>(d_.n_tokens) / n_columns_),
                  " tokens");
    std::string path = str("M", num(kLeft), " ", num(base));
    for (int column = 0; column < n_columns_; ++column) {
      const int begin = first_token(column), end = first_token(column + 1);
      const double sum = std::accumulate(depth.begin() + begin, depth.begin() + end, 0.0);
      path += str("L", num(x_of(begin)), " ", num(curve_y(sum / std::max(1, end - begin))), "H",
                  num(x_of(end)));
    }
    std::string out = panel("values", str(row, ", ", cell), key_bottom() + 34);
    out += line(kLeft, top, kLeft + kPlotWidth, top, "#e1e6eb", 1);
    out += str("<path d=\"", path, "V", num(base), "Z\" fill=\"", kShades[5], "\"/>\n");
    out += label(kLeft - 8, top + 5, str(d_.width, " bits"),
                 {.size = 11, .fill = kFaint, .anchor = "end"});
    out += label(kLeft - 8, base + 1, "0", {.size = 11, .fill = kFaint, .anchor = "end"});
    const double x = kLeft + kPlotWidth + kSideGap;
    out += label(x, top + 14, "mean over all", {.size = 11, .fill = kFaint});
    return out + label(x, top + 28, "layers and heads", {.size = 11, .fill = kFaint});
  }
  double curve_y(double depth) const { return curve_top() + kCurveHeight * (1 - depth / d_.width); }

  // The words read deepest. The first and the last tokens are deep for every query and say little.
  std::string words() const {
    const std::vector<double> depth = d_.by_position();
    const double mean = std::accumulate(depth.begin(), depth.end(), 0.0) /
                        static_cast<double>(std::max<size_t>(1, depth.size()));
    std::vector<Word> candidates = words_of(d_.pieces, depth);
    std::erase_if(candidates, [&](const Word& w) {
      return w.share < 1.25 * mean || w.text.size() < 3 || w.text.size() > 24;
    });
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Word& a, const Word& b) { return a.share > b.share; });
    std::vector<CurveLabel> wanted;
    for (const Word& word : candidates)
      wanted.push_back({x_of((word.begin + word.end) / 2.0), curve_y(word.share), word.text});
    return curve_labels(wanted, curve_top());
  }

  // Layer numbers at the left; at the right the mean depth of each head as a bar, of the layer as a
  // number.
  std::string side(double top, double height, double bar, bool keys) const {
    const double x = kLeft + kPlotWidth + kSideGap;
    const int step = height >= 11 ? 1 : height >= 6 ? 2 : 4;
    std::string out = label(x, top - 6, keys ? "mean bits: heads, layer" : "mean bits",
                            {.size = 11, .fill = kFaint});
    out += label(kLeft - 8, keys ? top - 8 : bottom() + 21, "layer",
                 {.size = 11, .fill = kFaint, .anchor = "end"});
    const double thick = keys ? bar / d_.kv_heads : bands_ == d_.kv_heads ? bar : bar / d_.kv_heads;
    for (int i = 0; i < n_layers_; ++i) {
      const double y = top + i * height;
      double sum = 0;
      out += rect(x, y, kSideWidth, thick * d_.kv_heads - (keys ? 1 : 0), kShades[0]);
      for (int head = 0; head < d_.kv_heads && is_coded(i); ++head) {
        const double mean = keys ? d_.mean_keys(i, head) : d_.mean_values(i, head);
        sum += mean;
        out += rect(x, y + head * thick, kSideWidth * mean / d_.width,
                    std::max(0.5, thick - (thick > 3 ? 0.5 : 0.25)), kShades[5]);
      }
      if (i % step != 0) continue;
      const double middle = y + thick * d_.kv_heads / 2 + 3.5;
      out += label(kLeft - 8, middle, str(i), {.size = 10, .fill = kFaint, .anchor = "end"});
      out += label(x + kSideWidth + 6, middle, is_coded(i) ? one_decimal(sum / d_.kv_heads) : "16",
                   {.size = 10, .fill = kFaint});
    }
    return out;
  }

  std::string legend() const {
    const double y = bottom() + 34;
    std::string out = label(kLeft, y + 10, "bits read", {.size = 12, .fill = kFaint});
    double x = kLeft + 64;
    for (int depth = 0; depth <= d_.width; ++depth, x += 25) {
      const int at = shade(depth);
      out += rect(x, y - 2, 24, 16, kShades[static_cast<size_t>(at)]);
      out += label(x + 12, y + 10, str(depth),
                   {.size = 11, .fill = at > 4 ? "#ffffff" : kInk, .anchor = "middle"});
    }
    if (!has_exact()) return out;
    out += rect(x + 14, y - 2, 24, 16, kShades[kExactShade]);
    return out + label(x + 44, y + 10, "kept in 16 bits, read whole", {.size = 12, .fill = kFaint});
  }
  bool has_exact() const {
    return std::any_of(d_.layers.begin(), d_.layers.end(), [](const Depths::Layer& l) {
      return l.keys.empty() ||
             std::find(l.values.begin(), l.values.end(), kExactDepth) != l.values.end();
    });
  }

  const Depths& d_;
  const PictureText& text_;
  int n_layers_, bands_, n_columns_, channel_gap_;
  double key_height_, band_height_, layer_gap_;
};

}  // namespace

double Depths::mean_keys(int layer, int head) const {
  const Layer& l = layers[static_cast<size_t>(layer)];
  return l.keys.empty() ? 0 : mean_of(l.keys.data() + int64_t{head} * head_dim, head_dim);
}

double Depths::mean_values(int layer, int head) const {
  const Layer& l = layers[static_cast<size_t>(layer)];
  return l.values.empty() ? 0 : mean_of(l.values.data() + int64_t{head} * n_tokens, n_tokens);
}

std::vector<double> Depths::by_position() const {
  std::vector<double> sum(static_cast<size_t>(n_tokens), 0.0);
  size_t rows = 0;
  for (const Layer& layer : layers) {
    for (size_t at = 0; at < layer.values.size(); ++at)
      sum[at % sum.size()] += std::min<int>(layer.values[at], width);
    rows += layer.values.size() / std::max<size_t>(1, sum.size());
  }
  for (double& x : sum) x /= static_cast<double>(std::max<size_t>(1, rows));
  return sum;
}

std::string depths_svg(const Depths& depths, const PictureText& text) {
  return Picture(depths, text).draw();
}

std::string depths_html(const Depths& depths, const PictureText& text) {
  std::vector<double> share = depths.by_position();
  for (double& x : share) x /= depths.width;
  return html_page(depths_svg(depths, text), text.title, depths.pieces, share);
}

}  // namespace kvist
