// SPDX-License-Identifier: MIT
// The two-stage reader of ReadKV written plainly in double, for tests: transformed arrays in, what
// was read and the output out.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kvist/kernels/tree_code.h"
#include "kvist/methods/read/certificate.h"
#include "kvist/methods/read/choose_depths.h"

namespace kvist {

struct PlainReader {
  int heads = 1, kv_heads = 1, d = 1;
  int64_t T = 1;
  double scale = 1;
  std::vector<float> q;              // [heads][d]
  std::vector<float> k, v;           // [T][kv_heads][d]
  std::vector<float> mu_k, sigma_k;  // [kv_heads][d]
  std::vector<float> mu_v, sigma_v;
  std::vector<double> s;  // [kv_heads]
  int max_depth = 8;
  int64_t budget_k = 0, budget_v = 0;

  // Results.
  std::vector<float> a_k, a_v;      // [kv_heads][d], [kv_heads][T]
  std::vector<uint8_t> t_k, t_v;    // depths of the same
  std::vector<float> k_hat, v_hat;  // [T][kv_heads][d]
  std::vector<double> alpha, out;   // [heads][T], [heads][d]

  size_t at(int64_t j, int g, int c) const {
    return static_cast<size_t>((j * kv_heads + g) * d + c);
  }
  size_t channel(int g, int c) const { return static_cast<size_t>(g * d + c); }

  void read() {
    const int group = heads / kv_heads;
    a_k.clear();
    for (int g = 0; g < kv_heads; ++g) {
      for (int c = 0; c < d; ++c) {
        double sum = 0;
        for (int h = g * group; h < (g + 1) * group; ++h)
          sum += std::pow(double{q[channel(h, c)]} * double{sigma_k[channel(g, c)]}, 2);
        a_k.push_back(static_cast<float>(sum));
      }
    }
    t_k = depths(a_k, budget_k);
    k_hat = decoded(k, mu_k, sigma_k, [&](int64_t, int g, int c) { return t_k[channel(g, c)]; });
    attend(group);
    a_v.clear();
    for (int g = 0; g < kv_heads; ++g) {
      for (int64_t j = 0; j < T; ++j) {
        double sum = 0;
        for (int h = g * group; h < (g + 1) * group; ++h)
          sum += std::pow(alpha[static_cast<size_t>(h * T + j)], 2);
        a_v.push_back(static_cast<float>(s[static_cast<size_t>(g)] * sum));
      }
    }
    t_v = depths(a_v, budget_v);
    v_hat = decoded(v, mu_v, sigma_v,
                    [&](int64_t j, int g, int) { return t_v[static_cast<size_t>(g * T + j)]; });
    out.assign(static_cast<size_t>(heads * d), 0.0);
    for (int h = 0; h < heads; ++h) {
      for (int64_t j = 0; j < T; ++j) {
        for (int c = 0; c < d; ++c)
          out[channel(h, c)] +=
              alpha[static_cast<size_t>(h * T + j)] * double{v_hat[at(j, h / group, c)]};
      }
    }
  }

  CertificateInput certificate() const {
    return {heads, kv_heads, d, T, scale, q, k, v, k_hat, v_hat, alpha, sigma_k, t_k, t_v, s};
  }

 private:
  std::vector<uint8_t> depths(const std::vector<float>& a, int64_t budget) const {
    DepthWorkspace workspace;
    workspace.reserve(static_cast<int64_t>(a.size()));
    std::vector<uint8_t> t(a.size());
    choose_depths(a, max_depth, 0, budget, t, workspace);
    return t;
  }

  template <typename Depth>
  std::vector<float> decoded(const std::vector<float>& x, const std::vector<float>& mu,
                             const std::vector<float>& sigma, Depth depth) const {
    std::vector<float> read(x.size());
    for (int64_t j = 0; j < T; ++j) {
      for (int g = 0; g < kv_heads; ++g) {
        for (int c = 0; c < d; ++c) {
          const float m = mu[channel(g, c)], spread = sigma[channel(g, c)];
          const uint8_t leaf = kernels::tree_leaf((x[at(j, g, c)] - m) / spread);
          read[at(j, g, c)] = m + spread * kernels::tree_value(leaf, depth(j, g, c));
        }
      }
    }
    return read;
  }

  void attend(int group) {
    alpha.clear();
    for (int h = 0; h < heads; ++h) {
      std::vector<double> z;
      for (int64_t j = 0; j < T; ++j) {
        double sum = 0;
        for (int c = 0; c < d; ++c)
          sum += double{q[channel(h, c)]} * double{k_hat[at(j, h / group, c)]};
        z.push_back(scale * sum);
      }
      const double top = *std::max_element(z.begin(), z.end());
      double total = 0;
      for (double& x : z) total += x = std::exp(x - top);
      for (double x : z) alpha.push_back(x / total);
    }
  }
};

}  // namespace kvist
