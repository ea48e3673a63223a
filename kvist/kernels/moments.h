// SPDX-License-Identifier: MIT
// First and second moments of queries, and the logits that a Gaussian with such moments expects
// (Expected Attention, arXiv:2510.00636).
#pragma once

#include <cstdint>

namespace kvist::kernels {

// Adds x = row - shift over `rows` rows to its moments: products of blocks of 64 rows are summed in
// fp32, blocks in fp64.
//
//   x       rows of d numbers, `stride` apart; any count
//   shift   [d], near the mean, so that little cancels
//   first   [d], added to: sum of x
//   second  [d][d], added to: sum of x x^T; null: not wanted
void add_moments(const float* x, int rows, int64_t stride, int d, const float* shift, double* first,
                 double* second);

// out[t] = linear . k_t + 1/2 k_t^T quadratic k_t, [n].
//
//   keys       [n][d]
//   linear     [d]
//   quadratic  [d][d], symmetric; null: no such term
void expected_logits(const float* keys, int n, int d, const float* linear, const float* quadratic,
                     double* out);

}  // namespace kvist::kernels
