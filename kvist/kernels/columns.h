// SPDX-License-Identifier: MIT
// Linear maps of columns, many columns a vector: the same bits on every machine, so products and
// sums are rounded one by one and in a fixed order.
#pragma once

#include <cstdint>

namespace kvist::kernels {

// out[i][t] = 0 + m[i][0] x[0][t] + m[i][1] x[1][t] + ..., from left to right. m [rows][depth],
// x [depth][n], out [rows][n], apart from x.
void multiply_columns(const float* m, int rows, int depth, const float* x, int n,
                      float* out) noexcept;

// Sylvester's Hadamard matrix of order `outer`, a power of two, times x [outer][inner], in place:
// butterflies of neighbours first.
void hadamard_columns(float* x, int outer, int64_t inner) noexcept;

}  // namespace kvist::kernels
