// SPDX-License-Identifier: MIT
// How deep a query reads the rows of a VarRate code (arXiv:2607.15498) whose coefficients are tree
// codes (arXiv:2610.11245): the query is known, attention is not yet.
#pragma once

#include <cstdint>
#include <span>

#include "kvist/methods/rank/basis.h"
#include "kvist/methods/read/choose_depths.h"

namespace kvist {

// The queries of one position after RoPE, q [heads][head_dim]; the heads of a KV head follow each
// other. Pairs of channels turn as in Rope.
struct RowQuery {
  const float* q = nullptr;
  int kv_heads = 0, group = 0, head_dim = 0;
  int n_frequencies = 0;
  bool adjacent = false;
};

// What a unit coefficient of row j adds to the squared logits of all heads, on average over
// positions, which turn a pair of channels by any angle alike:
//
//   out[j] = sum over heads and pairs of 1/2 |V_j, pair|^2 |q, pair|^2
//
// and for channels that do not turn the square of their own dot product. V_j are the key columns of
// the row. Sums in a fixed order: the same on every machine. channels [kv_heads * head_dim],
// scratch. O(rows * kv_heads * head_dim).
void row_importance(const RankBasisLayer& basis, const RowQuery& query, std::span<float> channels,
                    std::span<float> out) noexcept;

// Depths of rows within a budget of bits. One bit more of row j costs tokens[j] bits and takes
// weights[j] * Delta from the error of each: increments are bought by gain per bit, equal gains by
// smaller row, until the next does not fit; the loss against the best is below that one's gain.
//
//   weights  [rows] finite and >= 0; tokens [rows]; most 1..8; depths [rows], out
//
// Returns the bits bought; all rows at depth `most` where a weight is not what it should be.
// O(rows) for each of about 12 calls of choose_depths(), no allocation after
// workspace.reserve(rows).
int64_t choose_row_depths(std::span<const float> weights, std::span<const uint32_t> tokens,
                          int most, int64_t budget, std::span<uint8_t> depths,
                          DepthWorkspace& workspace) noexcept;

}  // namespace kvist
