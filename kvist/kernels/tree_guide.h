// SPDX-License-Identifier: MIT
// Where to begin the search for a code: a table over the line that leaves at most two thresholds to
// compare with.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "kvist/kernels/tree_code.h"

namespace kvist::kernels::internal {

// The line from -kGuideReach to kGuideReach in bins, kGuideBins to a unit.
inline constexpr int kGuideReach = 4, kGuideBins = 128;

// [1024] how many thresholds lie at or below the start of each bin.
inline const int32_t* tree_guide() {
  static const auto kGuide = [] {
    std::array<int32_t, 2 * kGuideReach * kGuideBins> guide;
    for (size_t b = 0; b < guide.size(); ++b)
      guide[b] = tree_leaf(static_cast<float>(b) / kGuideBins - kGuideReach);
    return guide;
  }();
  return kGuide.data();
}

// [256] the thresholds, and infinity.
inline const float* guarded_thresholds() {
  static const auto kGuarded = [] {
    std::array<float, 256> all;
    std::copy_n(kTreeThresholds, 255, all.begin());
    all[255] = std::numeric_limits<float>::infinity();
    return all;
  }();
  return kGuarded.data();
}

}  // namespace kvist::kernels::internal
