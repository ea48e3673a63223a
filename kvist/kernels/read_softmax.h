// SPDX-License-Identifier: MIT
// The softmax between ReadKV's two stages, cut into pages: exponentials, then attention weights and
// the weights by which values are allocated.
#pragma once

#include <cstdint>

namespace kvist::kernels {

struct PageSum {
  float m = 0;  // largest logit
  float l = 0;  // sum of exp(logit - m)
};
// s[j] = exp(s[j] - m) for j in [0, n), n >= 1; below m - 87 it is 0.
PageSum exp_page(float* s, int n) noexcept;

// In place alpha[r][j] = e[r][j] * factor[r], row r at e + r * stride, and weight[j] = float(scale
// * sum over r of alpha[r][j]^2), summed in double in the order of r.
void weigh_page(float* e, int64_t stride, const float* factor, int rows, int n, double scale,
                float* weight) noexcept;

}  // namespace kvist::kernels
