// SPDX-License-Identifier: MIT
#include "kvist/methods/rank/footprint.h"

#include <bit>
#include <cmath>

namespace kvist {

RankFootprint footprint(const RankGeometry& of, int bits, int group) {
  const double whole = 16.0 * static_cast<double>(of.tokens * of.width);
  const double coded = static_cast<double>(of.coded), sum = static_cast<double>(of.rank_sum);
  const double exact = 16.0 * static_cast<double>(of.exact * of.width);
  const double codes = sum * (bits + (group == 0 ? 0.0 : 32.0 / group));
  const int index_bits =
      of.anchors <= 1 ? 0 : std::bit_width(static_cast<uint32_t>(of.anchors - 1));
  const double blocks = static_cast<double>((of.coded + 63) / 64);
  return {.scalars = 100 * (exact + 16 * sum) / whole,
          .indices = 100 * (exact + codes + coded * of.neighbours * 16) / whole,
          .bytes = 100 *
                   (exact + codes + coded * (of.neighbours * index_bits + 16 + 8) + blocks * 32) /
                   whole};
}

RankGeometry geometry_of(int64_t tokens, int64_t width, Ratio keep, int stride, int window) {
  RankGeometry g{.tokens = tokens, .width = width};
  g.anchors = static_cast<int>((tokens + stride - 1) / stride);
  g.exact = tokens <= window ? tokens : window + (tokens - window + stride - 1) / stride;
  g.coded = tokens - g.exact;
  g.rank_sum = floor_mul(tokens * width, keep) - g.exact * width;
  return g;
}

std::vector<RankPaperCell> rank_paper_cells() {
  constexpr int64_t kTokens = 16384, kWidth = 2048, kHeads = 32, kHeadDim = 128, kRows = 1024;
  constexpr double kWeights = 8.03e9;
  const RankGeometry fifth = geometry_of(kTokens, kWidth, {1, 5});
  const RankGeometry tenth = geometry_of(kTokens, kWidth, {1, 10});
  const double numbers = static_cast<double>(kTokens * kWidth);
  // Four 16-bit indices for every token, and half a coefficient where a rank is rounded up.
  const double indices = 100.0 * 4 / static_cast<double>(kWidth);
  const double rounding = 100.0 * 0.5 * static_cast<double>(fifth.coded) / numbers;
  const double per_layer = 100.0 / (2 * kWeights * static_cast<double>(kTokens)) * 32;
  const double search = per_layer * 2 * static_cast<double>(kTokens * (kTokens / 16) * kWidth);
  const double basis = per_layer * 4 * static_cast<double>(kTokens * kWidth * kRows);
  const double scores = per_layer * 2 * static_cast<double>(64 * kTokens * kHeads * kHeadDim);
  std::vector<RankPaperCell> cells = {
      {"footprint at kappa 1/5", footprint(fifth, 16).scalars + indices + rounding, 20.22, 2},
      {"anchor indices of it", indices, 0.2, 1},
      {"footprint with 3-bit coefficients", footprint(fifth, 3).indices, 9, 0},
      {"exact tokens' share of a budget of 10 %",
       100 * static_cast<double>(tenth.exact) / (0.1 * static_cast<double>(kTokens)), 66, 0},
      {"anchor search beside the weights' prefill", search, 0.84, 2},
      {"projection and reconstruction", basis, 1.67, 2},
      {"all of construction", search + basis + scores, 2.61, 2},
  };
  for (RankPaperCell& cell : cells) {
    const double unit = std::pow(10.0, cell.decimals);
    cell.equal = std::lround(cell.ours * unit) == std::lround(cell.paper * unit);
  }
  return cells;
}

}  // namespace kvist
