// SPDX-License-Identifier: MIT
// ChooseDepths of ReadKV (arXiv:2610.11245): which items are read how deep, so that the modelled
// error is least within a budget of increments.
#pragma once

#include <cstdint>
#include <span>

#include "kvist/core/buffer.h"

namespace kvist {

// Memory of one allocation, kept between calls; one call at a time.
struct DepthWorkspace {
  // Room for calls over up to `n_items`; allocates, so it comes before the first call.
  void reserve(int64_t n_items);

  Buffer<int32_t> items;    // [capacity] those whose next level may lie at the cut
  Buffer<uint64_t> keys;    // [capacity] its gain, as the bits of a double
  Buffer<uint32_t> counts;  // two histograms side by side
};

// Minimises sum a_i D(t_i) over min_depth <= t_i <= max_depth with sum t_i <= budget, D the
// distortion of the tree code: exactly what a heap would give that adds one increment at a time to
// the item with the largest positive gain a_i * Delta_{t_i + 1}, equal gains by smaller index.
// Gains are products of two float32 in double, hence exact, and the result does not depend on
// threads or instruction set.
//
//   weights    [n] finite and >= 0
//   max_depth  1..8;  min_depth 0..max_depth, given to every item even past the budget
//   depths     [n], out
//
// Returns sum t_i: less than budget where no positive gain is left, -1 (depths undefined) where a
// weight is negative or not finite. O(n), no allocation.
int64_t choose_depths(std::span<const float> weights, int max_depth, int min_depth, int64_t budget,
                      std::span<uint8_t> depths, DepthWorkspace& workspace) noexcept;

// The two-depth control: the k = floor((budget - low n) / (max_depth - low)) items of largest
// weight, equal ones by smaller index, get max_depth, all others `low`. Returns as above;
// low < max_depth.
int64_t two_depth(std::span<const float> weights, int max_depth, int low, int64_t budget,
                  std::span<uint8_t> depths, DepthWorkspace& workspace) noexcept;

}  // namespace kvist
