// SPDX-License-Identifier: MIT
// One map of horizontal strokes, one path a shade, with ticks over it.
#include "kvist/cli/ranks_svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "kvist/core/error.h"

namespace kvist {
namespace {

constexpr int kColumns = 480;  // where there are more than twice as many tokens
constexpr int kExactShade = 9, kShadeCount = 10;
constexpr std::array<const char*, kShadeCount> kShades = {
    "#f2f4f7", "#d9e2eb", "#c0cfde", "#a3b9cf", "#84a0bf",
    "#6387ad", "#436d98", "#28527e", "#0f2f52", "#e0a08f"};
constexpr double kTop = 118, kTick = 8;

class Picture {
 public:
  Picture(const Ranks& ranks, const PictureText& text)
      : r_(ranks),
        text_(text),
        n_layers_(static_cast<int>(ranks.layers.size())),
        n_columns_(std::max(1, ranks.n_tokens <= 2 * kColumns ? ranks.n_tokens : kColumns)),
        height_(std::clamp(std::floor(480.0 / std::max(1, n_layers_)), 3.0, 16.0)) {}

  std::string draw() const {
    return svg_head(bottom() + 66, text_) + ticks() + cells() + side() +
           token_axis(r_.n_tokens, bottom()) + legend() + "</svg>\n";
  }

 private:
  double bottom() const { return kTop + n_layers_ * height_; }
  double x_of(double token) const { return kLeft + kPlotWidth * token / std::max(1, r_.n_tokens); }
  int first_token(int column) const {
    return static_cast<int>(int64_t{column} * r_.n_tokens / n_columns_);
  }
  int shade(double rank) const {
    return std::clamp(static_cast<int>(std::lround(8 * std::log2(1 + rank) /
                                                   std::log2(1.0 + std::max(1, r_.most)))),
                      0, 8);
  }
  int shade_of(const std::vector<int>& layer, int column) const {
    double sum = 0;
    int n = 0;
    for (int t = first_token(column); t < first_token(column + 1); ++t) {
      if (layer[static_cast<size_t>(t)] == Ranks::kExact) continue;
      sum += layer[static_cast<size_t>(t)];
      ++n;
    }
    return n == 0 ? kExactShade : shade(sum / n);
  }

  std::string ticks() const {
    std::string path;
    if (!r_.anchors.empty())
      for (const int anchor : r_.anchors.front())
        path += str("M", num(x_of(anchor + 0.5)), " ", num(kTop - 4 - kTick), "v", num(kTick));
    return str("<path id=\"anchors\" fill=\"none\" stroke=\"", kAccent,
               "\" stroke-width=\"0.8\" d=\"", path, "\"/>\n") +
           label(kLeft - 8, kTop - 5, "anchors", {.size = 11, .fill = kFaint, .anchor = "end"});
  }

  std::string cells() const {
    std::array<std::string, kShadeCount> paths;
    for (int i = 0; i < n_layers_; ++i) {
      const std::vector<int>& layer = r_.layers[static_cast<size_t>(i)];
      const double y = kTop + (i + 0.5) * height_;
      for (int from = 0; from < n_columns_;) {
        const int of = shade_of(layer, from);
        int to = from + 1;
        while (to < n_columns_ && shade_of(layer, to) == of) ++to;
        paths[static_cast<size_t>(of)] += str("M", from, " ", num(y), "h", to - from);
        from = to;
      }
    }
    std::string out =
        str("<g id=\"ranks\" transform=\"translate(", num(kLeft), " 0) scale(",
            fmt::format("{:.6f}", kPlotWidth / n_columns_), " 1)\" fill=\"none\" stroke-width=\"",
            num(height_ > 4 ? height_ - 0.5 : height_), "\">\n");
    for (size_t i = 0; i < kShadeCount; ++i)
      if (!paths[i].empty())
        out += str("<path stroke=\"", kShades[i], "\" d=\"", paths[i], "\"/>\n");
    return out + "</g>\n";
  }

  // Layer numbers at the left; at the right the mean rank as a bar and a number.
  std::string side() const {
    const double x = kLeft + kPlotWidth + kSideGap;
    const int step = height_ >= 11 ? 1 : height_ >= 6 ? 2 : 4;
    std::string out = label(x, kTop - 6, "mean rank", {.size = 11, .fill = kFaint});
    out += label(kLeft - 8, bottom() + 21, "layer", {.size = 11, .fill = kFaint, .anchor = "end"});
    for (int i = 0; i < n_layers_; ++i) {
      const double y = kTop + i * height_, mean = r_.mean(i);
      out += rect(x, y, kSideWidth, height_ - 1, kShades[0]);
      out += rect(x, y, kSideWidth * mean / std::max(1, r_.most), height_ - 1, kShades[5]);
      if (i % step != 0) continue;
      const double middle = y + height_ / 2 + 3.5;
      out += label(kLeft - 8, middle, str(i), {.size = 10, .fill = kFaint, .anchor = "end"});
      out += label(x + kSideWidth + 6, middle, fmt::format("{:.1f}", mean),
                   {.size = 10, .fill = kFaint});
    }
    return out;
  }

  std::string legend() const {
    const double y = bottom() + 34;
    std::string out = label(kLeft, y + 10, "coefficients", {.size = 12, .fill = kFaint});
    double x = kLeft + 84;
    for (int i = 0; i <= 8; ++i, x += 37) {
      const double rank = std::exp2(i / 8.0 * std::log2(1.0 + std::max(1, r_.most))) - 1;
      out += rect(x, y - 2, 36, 16, kShades[static_cast<size_t>(i)]);
      out += label(x + 18, y + 10, str(static_cast<int>(std::lround(rank))),
                   {.size = 11, .fill = i > 4 ? "#ffffff" : kInk, .anchor = "middle"});
    }
    out += rect(x + 14, y - 2, 36, 16, kShades[kExactShade]);
    return out + label(x + 56, y + 10, "exact", {.size = 12, .fill = kFaint});
  }

  const Ranks& r_;
  const PictureText& text_;
  int n_layers_, n_columns_;
  double height_;
};

}  // namespace

double Ranks::mean(int layer) const {
  double sum = 0;
  int n = 0;
  for (const int rank : layers[static_cast<size_t>(layer)])
    if (rank != kExact) sum += rank, ++n;
  return n == 0 ? 0 : sum / n;
}

std::vector<double> Ranks::by_position() const {
  std::vector<double> sum(static_cast<size_t>(n_tokens), 0.0);
  for (const std::vector<int>& layer : layers)
    for (size_t t = 0; t < sum.size(); ++t) sum[t] += layer[t] == kExact ? most : layer[t];
  for (double& x : sum) x /= static_cast<double>(std::max<size_t>(1, layers.size()));
  return sum;
}

std::string ranks_svg(const Ranks& ranks, const PictureText& text) {
  return Picture(ranks, text).draw();
}

std::string ranks_html(const Ranks& ranks, const PictureText& text) {
  std::vector<double> share = ranks.by_position();
  for (double& x : share) x /= std::max(1, ranks.most);
  return html_page(ranks_svg(ranks, text), text.title, ranks.pieces, share);
}

}  // namespace kvist
