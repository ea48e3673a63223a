// SPDX-License-Identifier: MIT
// The progressive scalar code of ReadKV (arXiv:2610.11245, its section on the code): one public
// tree fitted to N(0,1), whose first t bits of a code are themselves the best code of t bits.
//
// Root: the whole line, split at 0. A cell [a,b) splits at the m with m = (c(a,m) + c(m,b)) / 2, c
// the mean of the normal inside a cell; earlier splits never move. The tree is monotone, so the
// path to a leaf, first split most significant, is the rank of z among the 255 thresholds, and a
// prefix of t bits is the rank shifted right by 8 - t. All tables are float32 roundings of double
// solutions; the printed numbers of the paper allow nothing else.
#pragma once

#include <cstdint>

namespace kvist::kernels {

inline constexpr int kTreeDepth = 8;

extern const float kTreeThresholds[255];  // ascending, antisymmetric
extern const float kTreeCentroids[510];   // 2 of depth 1, then 4 of depth 2, ... 256 of depth 8
extern const float kTreeGains[8];         // D(t-1) - D(t) for t = 1..8, rounded once
extern const double kTreeDistortion[9];   // D(t) for t = 0..8

// The 2^depth reconstructions of a depth in 1..8, ascending. Depth 0 reconstructs to 0.
inline const float* tree_centroids(int depth) { return kTreeCentroids + (1 << depth) - 2; }

// D(t), the mean squared error of a standard normal read to t bits; D(0) = 1.
inline double tree_distortion(int t) { return kTreeDistortion[t]; }

// The code of z: how many thresholds are <= z. A NaN gives 0; readers refuse it before.
inline uint8_t tree_leaf(float z) noexcept {
  int leaf = 0;
  for (int step = 128; step > 0; step /= 2) {
    if (kTreeThresholds[leaf + step - 1] <= z) leaf += step;
  }
  return static_cast<uint8_t>(leaf);
}

// What a code means when its first t bits are read, t in 0..8.
inline float tree_value(uint8_t leaf, int t) noexcept {
  return t == 0 ? 0.0f : tree_centroids(t)[leaf >> (kTreeDepth - t)];
}

}  // namespace kvist::kernels
