// SPDX-License-Identifier: MIT
// Norms, products with one vector, and a weighted sum of many rows, in fp64: the same bits on every
// instruction set.
#pragma once

namespace kvist::kernels {

// rows [n][d]. Each sum runs in fp64 in the order of the coordinates, of the rows for weighted_sum.

// out[t] = |rows[t]|, [n].
void row_norms(const float* rows, int n, int d, double* out);
// out[t] = rows[t] . vector, [n]; vector [d].
void row_dots(const float* rows, int n, int d, const double* vector, double* out);
// out[c] = sum over t of weights[t] * rows[t][c], [d]; weights [n].
void weighted_sum(const float* rows, int n, int d, const double* weights, double* out);

}  // namespace kvist::kernels
