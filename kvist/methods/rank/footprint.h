// SPDX-License-Identifier: MIT
// What a VarRate prefix (arXiv:2607.15498) takes of the cache it stands for, under three rules, and
// the figures of the paper that follow from such rules.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvist/core/ratio.h"

namespace kvist {

struct RankGeometry {
  int64_t tokens = 0;
  int64_t width = 0;  // D = 2 kv_heads head_dim
  int64_t exact = 0;  // tokens
  int64_t coded = 0;
  int64_t rank_sum = 0;  // coefficients
  int neighbours = 4;
  int anchors = 0;
};

// Shares of 16-bit keys and values, in percent.
struct RankFootprint {
  double scalars = 0;  // numbers alone, as the paper's budget counts them
  double indices = 0;  // with 16-bit indices of the anchors of coded tokens
  double bytes = 0;    // with all that this program stores: packed indices, ranks, orders, offsets
};
// Coefficients of `bits` bits; `group` of them share 32 bits of scale (0: none).
RankFootprint footprint(const RankGeometry& of, int bits, int group = 0);

// For a stride, a window and a budget of keep * width * tokens numbers, spent to the last.
RankGeometry geometry_of(int64_t tokens, int64_t width, Ratio keep, int stride = 16,
                         int window = 64);

struct RankPaperCell {
  std::string what;
  double ours = 0;
  double paper = 0;
  int decimals = 0;    // printed
  bool equal = false;  // ours rounds to the paper's
};
// The figures that the paper's text states and its rules determine: Llama-3.1-8B (D = 2,048, 8.03e9
// weights), 16,384 tokens, kappa 1/5.
std::vector<RankPaperCell> rank_paper_cells();

}  // namespace kvist
