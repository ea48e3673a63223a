// SPDX-License-Identifier: MIT
// The two passes over all weights that an allocation of read depths makes, exact on every target.
#pragma once

#include <cstdint>

namespace kvist::kernels {

// As signed integers the bits of floats order like the floats, and -0 lies below all positive ones.
struct WeightRange {
  bool valid = true;           // all finite and none negative
  int64_t positive = 0;        // how many are > 0
  int32_t least = 0x7F800000;  // bits of the smallest and largest positive weight
  int32_t most = 0;
};
WeightRange weight_range(const float* weights, int64_t n) noexcept;

// The bins of floats that are not negative, 64 an octave: their bits shifted.
inline constexpr int kWeightBinShift = 17;
inline constexpr int kWeightBins = 1 << (31 - kWeightBinShift);
// The same range, and every weight counted in bins[bin][0 or 1], whose sum is the count: equal
// neighbours would wait for each other's increments. Negative ones count as 0.
WeightRange count_weights(const float* weights, int64_t n, uint32_t* bins) noexcept;

// An item of weight w has as many levels as thresholds[0, 8) that the bits of w reach. Those of
// levels not in use are infinity's; the others, between, ascend, and `below` lets no item have more
// than one level beyond `above`.
struct DepthSplit {
  int64_t levels = 0;  // sum of the levels by `above`
  int64_t items = 0;   // that have one more by `below`
};
// depths[i] = min_depth + levels by `above`; items: indices of those that have one more by `below`,
// ascending, room for n + 16.
DepthSplit split_depths(const float* weights, int64_t n, const int32_t* above, const int32_t* below,
                        int min_depth, uint8_t* depths, int32_t* items) noexcept;

}  // namespace kvist::kernels
