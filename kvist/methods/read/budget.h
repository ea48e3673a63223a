// SPDX-License-Identifier: MIT
// How many increments a read rate buys, exactly: one increment is one more bit of one key channel
// for all tokens, or of one value token for all channels (ReadKV, arXiv:2610.11245).
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kvist/core/ratio.h"

namespace kvist {

// What each item may be read to.
struct DepthRange {
  int least = 0;
  int most = 8;  // the bits stored
};

// floor(rate n_items), within what the items can take. Items are kv_heads * head_dim for keys and
// kv_heads * tokens for values, or those of one head where every head has a budget of its own.
inline int64_t read_budget(Ratio rate, int64_t n_items, DepthRange depths) {
  return std::clamp(floor_mul(n_items, rate), depths.least * n_items, depths.most * n_items);
}

// Values in packets of two adjacent tokens that share a depth: n_heads * ceil(tokens / 2) items, of
// which one increment costs the bits of two tokens. An odd last packet is paid in full.
inline int64_t value_packets(int64_t n_heads, int64_t tokens) {
  return n_heads * ((tokens + 1) / 2);
}
inline int64_t packet_budget(Ratio rate, int64_t n_heads, int64_t tokens, DepthRange depths) {
  const int64_t packets = value_packets(n_heads, tokens);
  const int64_t bought = floor_mul(n_heads * tokens, {rate.num, 2 * rate.den});
  return std::clamp(bought, depths.least * packets, depths.most * packets);
}

// The splits of a mean rate among which development data choose: all integer (R_K, R_V) with
// R_K + R_V = 2 rate and each within 0..most, by falling R_K.
inline std::vector<std::pair<int, int>> rate_splits(int rate, int most) {
  std::vector<std::pair<int, int>> out;
  for (int keys = std::min(most, 2 * rate); keys >= 0 && 2 * rate - keys <= most; --keys)
    out.emplace_back(keys, 2 * rate - keys);
  return out;
}

}  // namespace kvist
