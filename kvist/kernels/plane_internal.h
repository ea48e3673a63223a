// SPDX-License-Identifier: MIT
// How the table paths of keys and values group bit planes: four planes a table, four tables a step.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "kvist/kernels/tree_code.h"

namespace kvist::kernels::internal {

// To find a leaf: the line from -kGuideReach to kGuideReach in bins, kGuideBins to a unit.
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

inline constexpr int kTableDepth = 4;  // deepest prefix that a table of 16 entries can hold
inline constexpr int kStepBytes = 64;  // four tables of one step

// Items that share a table: `per_table(depth)` channels of keys, or tokens of values, read to one
// depth.
struct Nibble {
  int32_t items[4] = {0, 0, 0, 0};
  int8_t depth = 1;
  int8_t n = 0;  // 0: no items, all entries are 0
};
constexpr int per_table(int depth) { return depth == 1 ? 4 : depth == 2 ? 2 : 1; }

// Groups the items of depth 1 .. 4, shallow first, in order; returns how many nibbles, at most n.
inline int make_nibbles(const uint8_t* depths, int n, Nibble* out) {
  int count = 0;
  for (int depth = 1; depth <= kTableDepth; ++depth) {
    bool open = false;
    for (int i = 0; i < n; ++i) {
      if (depths[i] != depth) continue;
      if (!open) out[count] = {.depth = static_cast<int8_t>(depth)};
      Nibble& nibble = out[count];
      nibble.items[nibble.n++] = i;
      open = nibble.n < per_table(depth);
      if (!open) ++count;
    }
    if (open) ++count;
  }
  return count;
}

// Which item and which plane, 1 .. depth, bit `bit` of a table's index is: item m has the bits
// [m depth, (m + 1) depth), its first plane the highest. Bits that stand for nothing repeat the
// first item's first plane, so that no more is touched.
struct PlaneOf {
  int32_t item;
  int plane;
};
inline PlaneOf plane_of(const Nibble& nibble, int bit) {
  const int m = bit / nibble.depth;
  if (m >= nibble.n) return {nibble.items[0], 1};
  return {nibble.items[m], nibble.depth - (bit - m * nibble.depth)};
}

// Largest |sum of weights * centroids| of a nibble.
template <typename Weight>
float largest_entry(const Nibble& nibble, const Weight& weight) {
  float sum = 0;
  for (int m = 0; m < nibble.n; ++m) sum += std::abs(weight(nibble.items[m]));
  return sum * tree_centroids(nibble.depth)[(1 << nibble.depth) - 1];
}

}  // namespace kvist::kernels::internal
