// SPDX-License-Identifier: MIT
// Exact counts of similar far-away keys (TwinKV, arXiv:2608.27128): the same integers on every
// instruction set and thread count, decided by a predicate that does not depend on summation order
// except where it cannot matter.
#pragma once

#include <cstdint>
#include <span>

#include "kvist/core/thread_pool.h"

namespace kvist::kernels {

// The canonical predicate: cosine(a, b) > 17/20 as dot > 0 && 400 dot^2 > 289 |a|^2 |b|^2, all in
// fp64 in coordinate order.
bool similar(const float* a, const float* b, int head_dim) noexcept;

struct CountStats {
  int64_t tiles = 0;       // micro-tiles visited
  int64_t rejected = 0;    // of these, left after the leading coordinates
  int64_t borderline = 0;  // pairs decided by the canonical predicate
};

// counts[i] = number of j with |i - j| > ell and similar(i, j).
//
//   keys    [n][head_dim], finite
//   counts  [n], out
//
// O(n^2 head_dim) multiply-adds at worst, halved by symmetry and cut by early reject; memory 2 n
// head_dim floats.
void count_similar(const float* keys, int n, int head_dim, int ell, ThreadPool& pool,
                   int32_t* counts, CountStats* stats = nullptr);

}  // namespace kvist::kernels
