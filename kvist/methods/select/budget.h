// SPDX-License-Identifier: MIT
// How many tokens a ratio keeps: in integers, and as the baselines' reference rounds.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kvist/core/ratio.h"

namespace kvist {

// floor(n * (1 - ratio)).
inline int64_t kept_tokens(int64_t n, Ratio ratio) { return floor_mul(n, ratio.complement()); }

// What the baselines of the literature keep, as the reference library computes it: in double, 1 -
// ratio first, truncated, at least 1. Differs from kept_tokens by one for some n (10 at 0.9).
inline int64_t reference_kept_tokens(int64_t n, Ratio ratio) {
  const double kept = static_cast<double>(n) * (1.0 - ratio.value());
  return std::max<int64_t>(1, static_cast<int64_t>(kept));
}

}  // namespace kvist
