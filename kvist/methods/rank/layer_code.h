// SPDX-License-Identifier: MIT
// What VarRate (arXiv:2607.15498) makes of one layer, before it is laid out in memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvist {

// Token t of a layer is the vector z_t = [keys of all KV heads before RoPE; values of all heads],
// D = 2 * kv_heads * head_dim numbers. Exact tokens keep their bits; every other one is coded as
// the mean of its nearest anchors, which are exact too, plus rank[i] coefficients in the rows of a
// basis.
struct RankedCode {
  int n_tokens = 0;
  int stride = 0;       // between anchors, wider than the plan's where its policy said so;
                        // 0 without anchors
  int least_rank = 0;   // likewise lower
  int64_t unspent = 0;  // coefficients of the budget; below 0 where ranks were rounded up or other
                        // layers left some
  std::vector<int32_t> exact;        // positions, ascending
  std::vector<int32_t> anchors;      // positions, ascending; a part of `exact`
  std::vector<int32_t> coded;        // positions, ascending: all that are not exact
  int n_neighbours = 0;              // c, anchors a coded token is the mean of
  bool causal = false;               // only of anchors before it, where there may be fewer
  std::vector<uint16_t> neighbours;  // [coded][c] indices into `anchors`, nearest first
  std::vector<uint16_t> rank;        // [coded]
  std::vector<float> coefficients;   // token after token, rank[i] each
  std::vector<uint64_t> offset;      // [coded + 1], where the coefficients of a token begin

  // The anchors that coded token i is the mean of, as indices: c, or as many as come before it.
  std::span<const uint16_t> neighbours_of(size_t i) const {
    const auto c = static_cast<size_t>(n_neighbours);
    size_t n = c;
    if (causal) {
      const auto end = std::lower_bound(anchors.begin(), anchors.end(), coded[i]);
      n = std::min(c, static_cast<size_t>(end - anchors.begin()));
    }
    return {neighbours.data() + i * c, n};
  }
  std::span<const float> coefficients_of(size_t i) const {
    return {coefficients.data() + offset[i], offset[i + 1] - offset[i]};
  }
};

}  // namespace kvist
