// SPDX-License-Identifier: MIT
// Tests of the certificate: the inequality on random layers, the worst cases of correlation, and
// what is 0 or infinite.
#include "kvist/methods/read/certificate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kvist/core/rng.h"
#include "kvist/methods/read/plain_reader.h"

namespace kvist {
namespace {

PlainReader random_layer(uint64_t seed) {
  Rng rng(seed);
  PlainReader r;
  r.kv_heads = 1 + static_cast<int>(rng.below(3));
  r.heads = r.kv_heads * (1 + static_cast<int>(rng.below(3)));
  r.d = 1 + static_cast<int>(rng.below(12));
  r.T = 1 + static_cast<int64_t>(rng.below(30));
  r.scale = 1 / std::sqrt(static_cast<double>(r.d));
  const auto fill = [&](std::vector<float>& x, int64_t n, double mean, double sd) {
    x.resize(static_cast<size_t>(n));
    for (float& value : x) value = static_cast<float>(mean + sd * rng.gaussian());
  };
  fill(r.q, r.heads * r.d, 0, 1);
  fill(r.k, r.T * r.kv_heads * r.d, 0.3, 1.5);
  fill(r.v, r.T * r.kv_heads * r.d, -0.2, 1);
  const auto channels = static_cast<size_t>(r.kv_heads * r.d);
  r.mu_k.assign(channels, 0.25f);
  r.sigma_k.assign(channels, 1.5f);
  r.mu_v.assign(channels, 0.0f);
  r.sigma_v.assign(channels, 1.0f);
  r.s.assign(static_cast<size_t>(r.kv_heads), seed % 2 == 0 ? 1.0 : r.d);
  r.budget_k = static_cast<int64_t>(rng.below(channels * 8 + 1));
  r.budget_v = static_cast<int64_t>(rng.below(static_cast<uint64_t>(r.kv_heads * r.T * 8 + 1)));
  return r;
}

TEST(Certificate, Rk39Holds) {
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    PlainReader r = random_layer(seed);
    r.read();
    const LayerCertificate c = certify(r.certificate());
    ASSERT_EQ(c.heads.size(), static_cast<size_t>(r.heads));
    double error = 0;
    for (size_t h = 0; h < c.heads.size(); ++h) {
      const HeadCertificate& head = c.heads[h];
      EXPECT_LE(head.error, head.bound * (1 + 1e-12) + 1e-28) << "seed " << seed;
      EXPECT_NEAR(head.bound, head.keys.beta * head.keys.s + head.values.beta * head.values.s,
                  1e-9 * head.bound);
      error += head.error;
    }
    EXPECT_NEAR(c.error, error, 1e-12 * error);
    EXPECT_LE(c.error, c.bound * (1 + 1e-12) + 1e-28) << "seed " << seed;
    // Sums of S are the allocator's objectives.
    double s_k = 0, s_v = 0;
    for (size_t i = 0; i < r.a_k.size(); ++i)
      s_k += double{r.a_k[i]} * kernels::tree_distortion(r.t_k[i]);
    for (size_t i = 0; i < r.a_v.size(); ++i)
      s_v += double{r.a_v[i]} * kernels::tree_distortion(r.t_v[i]);
    EXPECT_NEAR(c.s_keys, static_cast<double>(r.T) / r.d * s_k, 1e-6 * c.s_keys);
    EXPECT_NEAR(c.s_values, s_v, 1e-6 * c.s_values);
  }
}

// Keys apart from what was read by `residual` everywhere, values likewise.
PlainReader with_residuals(int64_t T, int d, float key, float value) {
  PlainReader r;
  r.T = T;
  r.d = d;
  r.scale = 1 / std::sqrt(static_cast<double>(d));
  const auto n = static_cast<size_t>(T * d), channels = static_cast<size_t>(d);
  r.q.assign(channels, static_cast<float>(1 / std::sqrt(static_cast<double>(d))));
  r.k.assign(n, key);
  r.v.assign(n, 0.0f);
  for (size_t i = 0; i < n; i += channels) r.v[i] = value;
  r.k_hat.assign(n, 0.0f);
  r.v_hat.assign(n, 0.0f);
  r.sigma_k.assign(channels, 1.0f);
  r.t_k.assign(channels, 0);
  r.t_v.assign(static_cast<size_t>(T), 0);
  r.alpha.assign(static_cast<size_t>(T), 1 / static_cast<double>(T));
  r.s = {1.0};
  return r;
}

TEST(Certificate, Rk19CorrelationReachesItsRatio) {
  for (int m : {1, 2, 4, 16, 64}) {
    const PlainReader keys = with_residuals(1, m, 1, 0);
    const HeadCertificate k = certify(keys.certificate()).heads[0];
    EXPECT_NEAR(k.keys.kappa, m, 1e-9 * m);
    // The logit is off by (1/sqrt m) sum of q' = 1; its square over A is the ratio.
    EXPECT_NEAR(1 / k.keys.a, m, 1e-5 * m);
    const PlainReader values = with_residuals(m, 4, 0, 1);
    const HeadCertificate v = certify(values.certificate()).heads[0];
    EXPECT_NEAR(v.values.kappa, m, 1e-9 * m);
    EXPECT_NEAR(v.error / v.values.a, m, 1e-9 * m);
    EXPECT_LE(v.error, v.bound);
  }
}

TEST(Certificate, ZerosAndInfinities) {
  PlainReader r = with_residuals(3, 2, 0, 0);  // nothing is wrong
  HeadCertificate c = certify(r.certificate()).heads[0];
  EXPECT_EQ(c.keys.a, 0);
  EXPECT_EQ(c.keys.gamma, 0);
  EXPECT_EQ(c.keys.kappa, 0);
  EXPECT_EQ(c.bound, 0);
  EXPECT_EQ(c.error, 0);
  r = with_residuals(3, 2, 0, 1);  // S = 0 < A
  r.s = {0.0};
  const LayerCertificate layer = certify(r.certificate());
  c = layer.heads[0];
  EXPECT_EQ(c.values.gamma, std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isfinite(c.bound));
  EXPECT_EQ(layer.bound, c.bound);
  EXPECT_LE(c.error, c.bound);
  r = with_residuals(2, 2, 1, 0);  // a query of zeros touches no channel
  r.q.assign(2, 0.0f);
  c = certify(r.certificate()).heads[0];
  EXPECT_EQ(c.keys.kappa, 0);
  EXPECT_EQ(c.keys.gamma, 0);
}

}  // namespace
}  // namespace kvist
