// SPDX-License-Identifier: MIT
// SparQ's choices over the code: outputs against doubles, what is charged, and where it is plain
// attention.
#include <gtest/gtest.h>

#include <numeric>

#include "kvist/cache/coded_test_world.h"
#include "kvist/kernels/targets.h"
#include "kvist/kernels/tree_code.h"

namespace kvist {
namespace {

constexpr ReadPlan kSome{.sparq_channels = 20, .sparq_tokens = 64};

// One row in double, step by step as the algorithm is written; a reader's choices of tokens are
// checked against the scores and then taken, as sums in fp32 may order near equals otherwise.
struct Plain {
  const World& w;
  const CodedLayer& all;
  const ReadPlan& plan;
  int n, row;

  int d() const { return w.shape.head_dim; }
  std::vector<float> query(int h) const {
    const float* from = w.q.data() + (row * w.shape.heads + h) * d();
    std::vector<float> q(from, from + d());
    w.u.front().apply(q.data(), 1);
    return q;
  }
  double key(int kv, int j, int c, int depth) const {
    const size_t p = static_cast<size_t>(kv * d() + c);
    return double{w.mu_k[p]} +
           double{w.sigma_k[p]} * double{kernels::tree_value(all.key_code(kv, j, c), depth)};
  }
  double value(int kv, int j, int c) const {
    const size_t p = static_cast<size_t>(kv * d() + c);
    return double{w.mu_v[p]} +
           double{w.sigma_v[p]} * double{kernels::tree_value(all.value_code(kv, j, c), plan.width)};
  }

  void expect(const Row& got, double tolerance) const {
    for (int kv = 0; kv < w.shape.kv_heads; ++kv) expect_head(got, kv, tolerance);
  }

  void expect_head(const Row& got, int kv, double tolerance) const {
    const int group = w.shape.group();
    std::vector<double> sums(static_cast<size_t>(d()), 0.0);
    for (int h = kv * group; h < (kv + 1) * group; ++h) {
      const auto q = query(h);
      for (size_t c = 0; c < q.size(); ++c) sums[c] += std::abs(double{q[c]});
    }
    std::vector<int> order(sums.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return sums[static_cast<size_t>(a)] > sums[static_cast<size_t>(b)];
    });
    order.resize(std::min(order.size(), static_cast<size_t>(plan.sparq_channels)));
    for (const int c : order)
      ASSERT_EQ(got.t_k[static_cast<size_t>(kv * d() + c)], ReadPlan::kSparqDepth);
    std::vector<double> score(static_cast<size_t>(n), 0.0);
    std::vector<std::vector<double>> approximate;
    for (int h = kv * group; h < (kv + 1) * group; ++h) {
      const auto q = query(h);
      double part = 0, whole = 0;
      for (const float x : q) whole += std::abs(double{x});
      for (const int c : order) part += std::abs(double{q[static_cast<size_t>(c)]});
      std::vector<double> z;
      for (int j = 0; j < n; ++j) {
        double dot = 0;
        for (const int c : order)
          dot += double{q[static_cast<size_t>(c)]} * key(kv, j, c, ReadPlan::kSparqDepth);
        z.push_back(dot / std::sqrt(d() * part / whole));
        score[static_cast<size_t>(j)] += z.back();
      }
      approximate.push_back(softmax(z));
    }
    const std::vector<int> chosen = taken(got, kv, score);
    for (int g = 0; g < group; ++g)
      expect_output(got, kv, kv * group + g, approximate[static_cast<size_t>(g)], chosen,
                    tolerance);
  }

  static std::vector<double> softmax(std::vector<double> z) {
    const double top = *std::max_element(z.begin(), z.end());
    double sum = 0;
    for (double& x : z) sum += x = std::exp(x - top);
    for (double& x : z) x /= sum;
    return z;
  }

  std::vector<int> taken(const Row& got, int kv, const std::vector<double>& score) const {
    std::vector<int> chosen;
    double least = INFINITY, most = -INFINITY;
    for (int j = 0; j < n; ++j) {
      const int depth = got.t_v[static_cast<size_t>(kv * n + j)];
      EXPECT_TRUE(depth == 0 || depth == plan.width);
      if (depth > 0) chosen.push_back(j);
      if (j == n - 1) continue;
      if (depth > 0) least = std::min(least, score[static_cast<size_t>(j)]);
      if (depth == 0) most = std::max(most, score[static_cast<size_t>(j)]);
    }
    EXPECT_EQ(std::ssize(chosen), std::min(n - 1, plan.sparq_tokens) + 1);
    EXPECT_EQ(chosen.back(), n - 1);
    EXPECT_GT(least, most - 1e-4);
    return chosen;
  }

  void expect_output(const Row& got, int kv, int h, const std::vector<double>& approximate,
                     const std::vector<int>& chosen, double tolerance) const {
    const auto q = query(h);
    std::vector<double> z;
    double share = 0;
    for (const int j : chosen) {
      double dot = 0;
      for (int c = 0; c < d(); ++c)
        dot += double{q[static_cast<size_t>(c)]} * key(kv, j, c, plan.width);
      z.push_back(dot * double{w.scale});
      share += approximate[static_cast<size_t>(j)];
    }
    const auto weight = softmax(z);
    std::vector<float> out;
    for (int c = 0; c < d(); ++c) {
      double sum = 0, mean = 0;
      for (size_t i = 0; i < chosen.size(); ++i) sum += weight[i] * value(kv, chosen[i], c);
      for (int j = 0; j < n; ++j) mean += value(kv, j, c) / n;
      out.push_back(static_cast<float>(share * sum + (1 - share) * mean));
    }
    w.u.back().undo(out.data(), 1);
    for (int c = 0; c < d(); ++c)
      ASSERT_NEAR(got.out[static_cast<size_t>(h * d() + c)], out[static_cast<size_t>(c)], tolerance)
          << "head " << h << " channel " << c;
  }
};

TEST(CodedSparQ, OutputIsThatOfTheAlgorithmInDouble) {
  for (const auto& [kv_heads, group, d, n_prefix, n] : {std::tuple{2, 3, 64, 1100, 1400},
                                                        {1, 7, 128, 512, 517},
                                                        {3, 1, 80, 0, 700},
                                                        {1, 2, 12, 30, 35}}) {
    const World w = make_world(kv_heads, group, d, n, 3, 40);
    for (const int width : {8, 4}) {
      ReadPlan plan = kSome;
      plan.width = width;
      const CodedLayer all = w.coded(plan, 0, n);
      const CodedLayer prefix = w.coded(plan, 0, n_prefix, true);
      const CodedLayer suffix = w.coded(plan, n_prefix, n);
      kernels::for_each_target([&](const std::string& target) {
        SCOPED_TRACE(target);
        const auto rows = read(w, plan, {&prefix, &suffix, 3, Precision::exact, 2});
        for (int r = 0; r < 3; ++r)  // the mean is kept in f16
          Plain{w, all, plan, n - 2 + r, r}.expect(rows[static_cast<size_t>(r)], 1e-3);
      });
    }
  }
}

// All channels and tokens: plain attention over what is stored.
TEST(CodedSparQ, WithNothingLeftOutIsTheFullReader) {
  const World w = make_world(2, 3, 64, 700, 1, 80);
  const ReadPlan plan{.sparq_channels = 64, .sparq_tokens = 699};
  const ReadPlan full{.key_rate = {8, 1}, .value_rate = {8, 1}};
  const CodedLayer layer = w.coded(plan, 0, 700);
  const Row got = read(w, plan, {nullptr, &layer})[0];
  const Row want = read(w, full, {nullptr, &layer})[0];
  for (size_t i = 0; i < want.out.size(); ++i) EXPECT_NEAR(got.out[i], want.out[i], 3e-5);
}

TEST(CodedSparQ, SameBytesForAnyNumberOfWorkers) {
  const World w = make_world(2, 3, 64, 1300, 4, 50);
  const CodedLayer prefix = w.coded(kSome, 0, 900, true), suffix = w.coded(kSome, 900, 1300);
  for (Precision precision : {Precision::exact, Precision::fast}) {
    const auto rows = read(w, kSome, {&prefix, &suffix, 4, precision, 1});
    const auto other = read(w, kSome, {&prefix, &suffix, 4, precision, 5});
    for (size_t r = 0; r < 4; ++r) EXPECT_EQ(other[r].out, rows[r].out);
  }
}

// baselines-quantization.md 5.3: the probe of all older tokens, the chosen ones whole and charged
// again, the mean.
TEST(CodedSparQ, ChargesTheProbeTheChosenAndTheMean) {
  for (const int n : {50, 777}) {
    const World w = make_world(2, 3, 64, n, 1, 100);
    const CodedLayer layer = w.coded(kSome, 0, n);
    ReadTrace trace;
    read(w, kSome, {nullptr, &layer}, &trace);
    const int64_t whole = std::min(64, n - 1) + 1;
    EXPECT_EQ(trace.key_bits, 2 * ((n - 1) * 20 * 2 + whole * 64 * 8));
    EXPECT_EQ(trace.value_bits, 2 * (whole * 64 * 8 + 64 * 16));
    EXPECT_EQ(trace.budget_per_number(), trace.bits_per_number());
    EXPECT_GE(trace.lines * 512, 2 * whole * 64 * 8);
  }
}

}  // namespace
}  // namespace kvist
