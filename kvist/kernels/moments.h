// SPDX-License-Identifier: MIT
// First and second moments of queries, and the logits that a Gaussian with such moments expects
// (Expected Attention, arXiv:2510.00636).
#pragma once

#include <cstdint>
#include <vector>

namespace kvist::kernels {

// Adds x = row - shift over `rows` rows to its moments: products of blocks of 256 rows are summed
// in fp32, blocks in fp64.
//
//   x       rows of d numbers, `stride` apart; any count
//   shift   [d], near the mean, so that little cancels
//   first   [d], added to: sum of x
//   second  [d][d], whose upper triangle is added to: sum of x x^T; null: not wanted
void add_moments(const float* x, int rows, int64_t stride, int d, const float* shift, double* first,
                 double* second);

// k^T Q k of a symmetric Q [d][d], as expected_logits reads it.
class QuadraticForm {
 public:
  QuadraticForm(const float* symmetric, int d);

  // The upper triangle, what lies off the diagonal twice: row i from the first column of its tile
  // of six rows on.
  const std::vector<float>& rows() const { return rows_; }

 private:
  std::vector<float> rows_;
};

// out[t] = linear . k_t + 1/2 k_t^T quadratic k_t, [n], in fp32, six coordinates of k_t after the
// other added in fp64.
//
//   keys       [n][d]
//   linear     [d]
//   quadratic  of the same d; null: no such term
void expected_logits(const float* keys, int n, int d, const float* linear,
                     const QuadraticForm* quadratic, double* out);

}  // namespace kvist::kernels
