// SPDX-License-Identifier: MIT
// Exact nearest neighbours among chosen rows: products in fp32 find who may be near, direct
// differences in fp64 decide where fp32 cannot.
#pragma once

#include <cstdint>
#include <span>

#include "kvist/core/thread_pool.h"

namespace kvist::kernels {

// |a - b|^2 in fp64: eight sums over coordinates c = lane (mod 8), added in lane order. The same
// bits on every instruction set.
double squared_distance(const float* a, const float* b, int width) noexcept;

struct NearestStats {
  int64_t direct = 0;  // distances that fp64 had to decide
};

// For each query the `count` nearest of `among` by squared_distance; the smaller index wins among
// equals.
//
//   rows     [n][width], finite
//   among    indices of rows, ascending, at most 65536; at least `count` of them
//   queries  indices of rows
//   earlier  only rows with a smaller index than the query's count as near; where there are fewer
//            than `count`, the rest of the result is 0
//   out      [queries][count] indices into `among`, nearest first
//
// 2 |queries| |among| width operations; memory one packed copy of `among`. Any number of threads
// gives the same result.
void nearest_rows(const float* rows, int width, std::span<const int32_t> among,
                  std::span<const int32_t> queries, int count, bool earlier, ThreadPool& pool,
                  uint16_t* out, NearestStats* stats = nullptr);

}  // namespace kvist::kernels
