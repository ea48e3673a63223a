// SPDX-License-Identifier: MIT
// What the theorems of ReadKV (arXiv:2610.11245) say in numbers: the separations of Theorems 1 and
// 2, run as readers, and the constants of their converses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <vector>

#include "kvist/core/rng.h"
#include "kvist/kernels/tree_code.h"
#include "kvist/methods/read/plain_reader.h"
#include "kvist/methods/read/transform.h"

namespace kvist {
namespace {

using kernels::tree_leaf, kernels::tree_value;
using std::numbers::pi, std::numbers::e;

constexpr double kEpsilon = 0.009654343128;  // sup over |u| <= 1 of |u - Q_8(u)|, RK-03
const float kC1 = kernels::tree_centroids(1)[1];
const double kP = 1 / (1 + std::exp(-10.0)), kRho = 1 / (1 + std::exp(10.0));

double gain(int level) { return double{kernels::kTreeGains[level - 1]}; }

std::vector<uint8_t> depths(const std::vector<float>& weights, int64_t budget) {
  DepthWorkspace workspace;
  workspace.reserve(static_cast<int64_t>(weights.size()));
  std::vector<uint8_t> out(weights.size());
  choose_depths(weights, 8, 0, budget, out, workspace);
  return out;
}

// The least worst-case error of any reader whose r probes do not depend on the query.
double converse(double r, double d) { return std::exp2(1 - 2 * r / d) / (pi * e * d); }

// The depth to which k channels can be read: L of Theorem 1 for records of w bits and r probes.
int deepest(int w, int r, int d, int k) { return std::min({8, w / d, r / k}); }

TEST(Theory, Rk08SeparationOfTheoremOne) {
  const double d = 128, k = 32, r = 2 * d;
  const auto ratio = [&](double epsilon) { return converse(r, d) / (k * epsilon * epsilon / d); };
  EXPECT_NEAR(ratio(0.0097), 4.8615, 5e-5);
  EXPECT_NEAR(ratio(kEpsilon), 4.9076, 5e-5);
  const double bounded = 1 / (8 * 3.142 * 2.719) / (k * 0.0097 * 0.0097);  // pi < 3.142, e < 2.719
  EXPECT_NEAR(bounded, 155.507 / 32, 5e-5);
  EXPECT_GT(bounded, 4.85);
}

TEST(Theory, Rk09TheoremOneReaderWithinItsBound) {
  Rng rng(9);
  for (int trial = 0; trial < 300; ++trial) {
    const int d = 128, k = 1 + static_cast<int>(rng.below(32));
    std::vector<float> z(d), q(d, 0.0f), weights(d);
    for (float& x : z) x = static_cast<float>(2 * rng.uniform() - 1);
    double norm = 0;
    for (int i = 0; i < k; ++i) {  // channels 4 i: any k of them do
      q[static_cast<size_t>(4 * i)] = static_cast<float>(rng.gaussian());
      norm += std::pow(double{q[static_cast<size_t>(4 * i)]}, 2);
    }
    for (float& x : q) x = static_cast<float>(double{x} / std::sqrt(norm));
    for (size_t i = 0; i < z.size(); ++i)
      weights[i] = static_cast<float>(double{q[i]} * double{q[i]} / d);
    const std::vector<uint8_t> t = depths(weights, 8 * k);
    double error = 0;
    for (size_t i = 0; i < z.size(); ++i) {
      ASSERT_EQ(t[i], q[i] != 0 ? 8 : 0);
      error += double{q[i]} * (double{z[i]} - double{tree_value(tree_leaf(z[i]), t[i])}) /
               std::sqrt(double{d});
    }
    ASSERT_LE(error * error, k * kEpsilon * kEpsilon / d * (1 + 1e-6));
  }
}

TEST(Theory, Rk10ConverseOfTheoremOne) {
  EXPECT_NEAR(converse(256, 128), 1 / (8 * pi * e * 128), 1e-18);
  EXPECT_NEAR(converse(0, 64), 2 / (pi * e * 64), 1e-18);
  EXPECT_EQ(deepest(8 * 128, 256, 128, 32), 8);
  EXPECT_EQ(deepest(4 * 128, 256, 128, 32), 4);
  EXPECT_EQ(deepest(8 * 128, 100, 128, 32), 3);
}

TEST(Theory, Rk11UpperBoundOfTheoremTwo) {
  EXPECT_NEAR(std::pow(0.0097 + 1.0 / 22001, 2), 9.49738e-5, 5e-10);
  EXPECT_LT(std::pow(0.0097 + 1.0 / 22001, 2), 9.50e-5);
  EXPECT_LT(kRho, 1.0 / 22001);
  EXPECT_NEAR(std::pow(kP * kEpsilon + kRho, 2), 9.40765e-5, 5e-10);
}

TEST(Theory, Rk12ScheduleOfTheoremTwoIsForced) {
  EXPECT_NEAR(kP * kP * gain(8) / (kRho * kRho * gain(1)), 104652, 1);
  EXPECT_GT(kP * kP * gain(8) / (kRho * kRho * gain(1)), 104400);
}

// Two tokens with keys +-c_1 e_1 and values v_1, v_2 in [-1,1]^m, a query +-(5 sqrt(m) / c_1) e_1.
PlainReader two_tokens(int m, const std::vector<float>& values, float sign) {
  PlainReader r;
  r.d = m;
  r.T = 2;
  r.scale = 1 / std::sqrt(static_cast<double>(m));
  const auto n = static_cast<size_t>(m);
  r.q.assign(n, 0.0f);
  r.q[0] = sign * static_cast<float>(5 * std::sqrt(static_cast<double>(m)) / double{kC1});
  r.k.assign(2 * n, 0.0f);
  r.k[0] = kC1;
  r.k[n] = -kC1;
  r.v = values;
  r.mu_k.assign(n, 0.0f);
  r.sigma_k.assign(n, 1.0f);
  r.mu_v = r.mu_k;
  r.sigma_v = r.sigma_k;
  r.s = {1.0};
  r.budget_k = 1;
  r.budget_v = 8;
  r.read();
  return r;
}

double error_per_coordinate(const PlainReader& r) {
  const LayerCertificate c = certify(r.certificate());
  return c.error / r.d;
}

TEST(Theory, Rk13TheoremTwoEndToEnd) {
  Rng rng(13);
  for (int m : {1, 2, 8, 64}) {
    for (int trial = 0; trial < 50; ++trial) {
      std::vector<float> values(static_cast<size_t>(2 * m));
      for (float& x : values) {
        x = static_cast<float>(2 * rng.uniform() - 1);
        if (trial % 3 == 0) x = x < 0 ? -1.0f : 1.0f;
      }
      for (float sign : {1.0f, -1.0f}) {
        const PlainReader r = two_tokens(m, values, sign);
        std::vector<uint8_t> first(static_cast<size_t>(m), 0);
        first[0] = 1;
        ASSERT_EQ(r.t_k, first);
        ASSERT_EQ(r.t_v, sign > 0 ? (std::vector<uint8_t>{8, 0}) : (std::vector<uint8_t>{0, 8}));
        ASSERT_NEAR(std::max(r.alpha[0], r.alpha[1]), kP, 1e-9);
        ASSERT_LE(error_per_coordinate(r), 9.40765e-5);
      }
    }
  }
  // The worst pair for m = 1: just below the threshold -0.98159882, and 1 of the same sign of
  // error.
  const float worst = std::nextafter(-0.98159882f, -1.0f);
  const double error = error_per_coordinate(two_tokens(1, {worst, 1.0f}, 1));
  EXPECT_NEAR(error, 9.40759e-5, 2e-9);
  EXPECT_LE(error, 9.40765e-5);
}

TEST(Theory, Rk14ConverseOfTheoremTwo) {
  const auto least = [](double m) {
    return std::pow(std::tanh(5.0), 2) / 2 * std::exp2(-6 - 2 / m) / (pi * e);
  };
  EXPECT_NEAR(std::pow(std::tanh(5.0), 2), std::pow(kP - kRho, 2), 1e-12);
  EXPECT_NEAR(least(1), 2.28669e-4, 5e-10);
  EXPECT_NEAR(least(1) / 9.50e-5, 2.41, 5e-3);
  EXPECT_NEAR(least(8), 7.69147e-4, 5e-10);
  EXPECT_NEAR(least(128), 9.04822e-4, 5e-10);
}

TEST(Theory, Rk15FullBallObstruction) {
  for (int d : {2, 8, 64, 256}) {
    const HeadTransform u = HeadTransform::hadamard(d, 20260801, HeadTransform::Kind::key, 0);
    for (int j : {0, d / 2, d - 1}) {
      std::vector<float> x(static_cast<size_t>(d), 0.0f), weights;
      x[static_cast<size_t>(j)] = 1;
      u.apply(x.data(), 1);  // +-1/sqrt(d), of keys scaled by sqrt(d) and of the query
      for (float q : x) weights.push_back(static_cast<float>(double{q} * double{q} / d));
      const std::vector<uint8_t> t = depths(weights, 2 * d);
      double estimate = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(t[i], 2);
        const float z = x[i] < 0 ? -1.0f : 1.0f;
        estimate += double{x[i]} * double{tree_value(tree_leaf(z), t[i])} / std::sqrt(double(d));
      }
      EXPECT_NEAR(estimate, 1.5104175806, 1e-6);
      EXPECT_NEAR(std::pow(estimate - 1, 2), 0.260526106590, 1e-6);
    }
  }
  const double error = double{tree_value(tree_leaf(1.0f), 2)} - 1;
  EXPECT_GT(error * error, 0.26052610);
}

// Four fixed levels at any depth-2 read; exact on +-1.
double oblivious(double z) {
  const double levels[4] = {-1, -1.0 / 3, 1.0 / 3, 1};
  return *std::min_element(levels, levels + 4,
                           [&](double a, double b) { return std::abs(z - a) < std::abs(z - b); });
}

TEST(Theory, Rk16ObliviousLevels) {
  EXPECT_EQ(oblivious(1), 1);
  EXPECT_EQ(oblivious(-1), -1);
  Rng rng(16);
  double worst = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const int d = 1 + static_cast<int>(rng.below(64));
    std::vector<double> q(static_cast<size_t>(d)), off(q.size());
    for (size_t i = 0; i < q.size(); ++i) {
      const double z = trial % 2 == 0 ? 2 * rng.uniform() - 1 : 0;  // 0 lies in the middle of a gap
      off[i] = z - oblivious(z);
      q[i] = trial % 2 == 0 ? rng.gaussian() : 1;
    }
    const double norm = std::sqrt(std::inner_product(q.begin(), q.end(), q.begin(), 0.0));
    const double error =
        std::inner_product(q.begin(), q.end(), off.begin(), 0.0) / norm / std::sqrt(double(d));
    worst = std::max(worst, error * error);
  }
  EXPECT_LE(worst, 1.0 / 9 + 1e-12);
  EXPECT_NEAR(worst, 1.0 / 9, 1e-12);
}

TEST(Theory, Rk17IntegerOverContinuous) {
  const auto ratio = [](double f) { return (1 - 3 * f / 4) * std::pow(4, f); };
  double best = 0, at = 0;
  for (int i = 0; i <= 1'000'000; ++i) {
    const double f = i / 1e6;
    if (ratio(f) > best) {
      best = ratio(f);
      at = f;
    }
  }
  EXPECT_NEAR(best, 1.263740721216, 1e-11);
  EXPECT_NEAR(at, 4.0 / 3 - 1 / std::log(4.0), 1e-6);
  EXPECT_NEAR(at, 0.611985813, 1e-6);
}

}  // namespace
}  // namespace kvist
