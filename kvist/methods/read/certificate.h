// SPDX-License-Identifier: MIT
// ReadKV's offline certificate (Theorem 3 of arXiv:2610.11245): with the exact cache at hand, a
// bound on the error of a finished reading, and the factors that make it up.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace kvist {

// One layer, one query row, all in the transformed spaces; T tokens, the current one included.
struct CertificateInput {
  int heads = 0, kv_heads = 0, head_dim = 0;
  int64_t tokens = 0;
  double logit_scale = 0;
  std::span<const float> q;           // [heads][d]
  std::span<const float> k, v;        // [T][kv_heads][d] exact
  std::span<const float> k_hat;       // [T][kv_heads][d] as read
  std::span<const float> v_hat;       // [T][kv_heads][d] as read
  std::span<const double> alpha_hat;  // [heads][T] the attention that was used
  std::span<const float> sigma_k;     // [kv_heads][d]
  std::span<const uint8_t> t_k;       // [kv_heads][d] depths
  std::span<const uint8_t> t_v;       // [kv_heads][T]
  std::span<const double> s;          // [kv_heads] s_g of the value weights
};

// error <= beta_K S_K + beta_V S_V, S the model's objective, A the same with the true residuals,
// gamma = A / S how far the residuals are from the model, kappa how far they are correlated.
struct HeadCertificate {
  struct Part {
    double a = 0, s = 0, gamma = 0, kappa = 0, beta = 0;
  };
  Part keys, values;
  double bound = 0;
  double error = 0;  // |o - o_hat|^2
};

struct LayerCertificate {
  std::vector<HeadCertificate> heads;
  // Sums of S and errors; the largest beta times the sum of S, which is finite only where no head
  // has S = 0 < A, else the sum of the heads' bounds.
  double s_keys = 0, s_values = 0, bound = 0, error = 0;
};

// All in double. O(heads (T d + d^3) + kv_heads T d^2).
LayerCertificate certify(const CertificateInput& input);

}  // namespace kvist
