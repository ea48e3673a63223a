// SPDX-License-Identifier: MIT
// Ranks for all coded tokens of a layer from one budget, in whole numbers: the same on every
// machine (VarRate, arXiv:2607.15498).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvist/core/thread_pool.h"

namespace kvist {

using Ranks = std::vector<uint16_t>;

struct FillLimits {
  int64_t total = 0;  // coefficients, least * tokens <= total <= most * tokens
  int least = 0, most = 0;
  int granule = 1;        // ranks are least plus a multiple of it; what does not fit stays unspent
  bool round_up = false;  // every rank is rounded up: the total is exceeded by less than 1 a token
};

// clip(least + lambda * q, least, most) with the lambda that spends the total, rounded by largest
// remainder: ties go to larger q, then to the earlier token. Without q above 0 left below `most`
// the rest is shared alike, earlier tokens first. Equal q everywhere: the flat code. q <= 2^24.
Ranks water_fill(std::span<const uint32_t> q, const FillLimits& limits);

// The best tokens, by q and then position, at `most`, the next one takes the remainder, the rest
// `least`.
Ranks split_fill(std::span<const uint32_t> q, const FillLimits& limits);

// By what coefficients would bring: the concave majorant of each token's energy over granules of 8
// beyond `least`, times its weight; the steepest segments first, among equals of earlier tokens.
// Spends the total to the last coefficient.
//
//   coefficients  [tokens][stride], the first `most` of each token count
//   weights       [tokens], at least 0
Ranks energy_fill(const float* coefficients, int64_t stride, std::span<const double> weights,
                  const FillLimits& limits, ThreadPool& pool);

}  // namespace kvist
