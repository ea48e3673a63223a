// SPDX-License-Identifier: MIT
#include "kvist/methods/rank/water_fill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kvist/core/rng.h"

namespace kvist {
namespace {

int64_t sum_of(const Ranks& ranks) {
  return std::accumulate(ranks.begin(), ranks.end(), int64_t{0});
}

// varrate.md 18, example 2.
TEST(WaterFill, WorkedExamples) {
  const auto fill = [](std::vector<uint32_t> q, int64_t total, int least, int most) {
    return water_fill(q, {.total = total, .least = least, .most = most});
  };
  EXPECT_EQ(fill({0, 1, 2, 5}, 40, 2, 16), (Ranks{2, 8, 14, 16}));
  EXPECT_EQ(fill({1, 1, 1}, 11, 2, 16), (Ranks{4, 4, 3}));
  EXPECT_EQ(fill({0, 0, 0, 9}, 30, 2, 12), (Ranks{6, 6, 6, 12}));
  EXPECT_EQ(fill({0, 1, 10, 10}, 44, 4, 16), (Ranks{4, 8, 16, 16}));
  EXPECT_EQ(fill({3, 3, 7}, 25, 2, 16), (Ranks{7, 6, 12}));
  EXPECT_EQ(fill({0, 1, 3}, 48, 2, 16), (Ranks{16, 16, 16}));
  EXPECT_EQ(fill({1, 2, 3, 4, 0}, 53, 4, 20), (Ranks{7, 11, 14, 17, 4}));
  EXPECT_EQ(fill({0, 0, 0}, 11, 2, 16), (Ranks{4, 4, 3}));
}

// The paper's loop in long double: what clips is set to `most`, the rest shared again.
std::vector<long double> real_valued(const std::vector<uint32_t>& q, const FillLimits& l) {
  std::vector<long double> r(q.size(), l.least);
  std::vector<bool> full(q.size(), false);
  for (;;) {
    long double left = static_cast<long double>(l.total), sum = 0;
    for (size_t i = 0; i < q.size(); ++i) {
      left -= full[i] ? l.most : l.least;
      if (!full[i]) sum += q[i];
    }
    bool clipped = false;
    for (size_t i = 0; i < q.size(); ++i) {
      if (full[i]) continue;
      r[i] = l.least + (sum > 0 ? left * q[i] / sum : 0);
      if (r[i] > l.most) full[i] = clipped = true, r[i] = l.most;
    }
    if (!clipped) return r;
  }
}

TEST(WaterFill, IsThePapersRuleRoundedWithAnExactTotal) {
  Rng rng(11);
  for (int run = 0; run < 3000; ++run) {
    const size_t n = 1 + rng.below(40);
    FillLimits l{.least = static_cast<int>(rng.below(20))};
    l.most = l.least + 1 + static_cast<int>(rng.below(300));
    l.total = l.least * static_cast<int64_t>(n) +
              static_cast<int64_t>(rng.below(static_cast<uint64_t>(l.most - l.least) * n + 1));
    std::vector<uint32_t> q(n);
    for (uint32_t& x : q)
      x = static_cast<uint32_t>(rng.below(3) == 0 ? 0 : rng.below((1 << 24) + 1));
    SCOPED_TRACE("run " + std::to_string(run));
    const Ranks got = water_fill(q, l);
    EXPECT_EQ(sum_of(got), l.total);
    for (size_t i = 0; i < n; ++i) {
      EXPECT_GE(got[i], l.least);
      EXPECT_LE(got[i], l.most);
      for (size_t j = 0; j < n; ++j) EXPECT_TRUE(q[i] <= q[j] || got[i] >= got[j]) << i << " " << j;
    }
    const bool equal = std::all_of(q.begin(), q.end(), [&](uint32_t x) { return x == q[0]; });
    const auto want = real_valued(q, l);
    long double reached = 0;
    for (const long double w : want) reached += w;
    // Where all salient tokens are full the paper's loop has nowhere to go.
    if (equal || std::abs(reached - static_cast<long double>(l.total)) > 0.5L) continue;
    for (size_t i = 0; i < n; ++i) EXPECT_LT(std::abs(got[i] - want[i]), 1.0L) << i;
  }
}

TEST(WaterFill, RoundedUpItExceedsByLessThanOneEach) {
  const std::vector<uint32_t> q = {1, 2, 3, 4, 0};
  EXPECT_EQ(water_fill(q, {.total = 53, .least = 4, .most = 20, .round_up = true}),
            (Ranks{8, 11, 14, 18, 4}));
  EXPECT_EQ(water_fill(std::vector<uint32_t>{5, 5, 5},
                       {.total = 10, .least = 2, .most = 20, .round_up = true}),
            (Ranks{4, 4, 4}));
}

TEST(WaterFill, GranulesLeaveTheRestUnspent) {
  const std::vector<uint32_t> q = {1, 2, 3, 4, 0};
  const Ranks ranks = water_fill(q, {.total = 53, .least = 4, .most = 21, .granule = 4});
  for (const uint16_t r : ranks) EXPECT_EQ((r - 4) % 4, 0);
  EXPECT_EQ(sum_of(ranks), 52);
  // 17 above the floor hold 4 whole granules, whatever the budget.
  EXPECT_EQ(sum_of(water_fill(q, {.total = 105, .least = 4, .most = 21, .granule = 4})), 100);
}

TEST(SplitFill, FillsTheBestFirst) {
  EXPECT_EQ(split_fill(std::vector<uint32_t>{5, 9, 5, 1}, {.total = 30, .least = 2, .most = 12}),
            (Ranks{12, 12, 4, 2}));
  EXPECT_EQ(split_fill(std::vector<uint32_t>{5, 9}, {.total = 4, .least = 2, .most = 2}),
            (Ranks{2, 2}));
}

// Energy given to the last coefficient against all ways to divide a small budget.
TEST(EnergyFill, IsTheBestDivisionOfWholeGranules) {
  Rng rng(5);
  constexpr int kMost = 40, kTokens = 3;
  for (int run = 0; run < 50; ++run) {
    std::vector<float> c(kTokens * kMost);
    for (size_t i = 0; i < c.size(); ++i)
      c[i] = static_cast<float>(rng.gaussian() * std::pow(0.9, i % kMost));
    const std::vector<double> weights = {1, 0.05 + rng.uniform(), 0.5};
    const auto brought = [&](int token, int rank) {
      double sum = 0;
      for (int j = 0; j < rank; ++j)
        sum += std::pow(static_cast<double>(c[static_cast<size_t>(token * kMost + j)]), 2);
      return weights[static_cast<size_t>(token)] * sum;
    };
    const FillLimits l{.total = 8 * 7, .least = 0, .most = kMost};
    ThreadPool pool(2);
    const Ranks got = energy_fill(c.data(), kMost, weights, l, pool);
    EXPECT_EQ(sum_of(got), l.total);
    double mine = 0, best = 0;
    for (int t = 0; t < kTokens; ++t) mine += brought(t, got[static_cast<size_t>(t)]);
    for (int a = 0; a <= 5; ++a)
      for (int b = 0; b <= 5; ++b)
        if (const int rest = 7 - a - b; rest >= 0 && rest <= 5)
          best = std::max(best, brought(0, 8 * a) + brought(1, 8 * b) + brought(2, 8 * rest));
    // The majorant may end inside a segment longer than a granule: one segment's gain at most.
    double segment = 0;
    for (int t = 0; t < kTokens; ++t) segment = std::max(segment, brought(t, kMost) / 5);
    EXPECT_GE(mine, best - segment) << run;
  }
}

TEST(EnergyFill, SpendsExactlyAndIgnoresNoToken) {
  Rng rng(6);
  std::vector<float> c(100 * 50);
  for (float& x : c) x = static_cast<float>(rng.gaussian());
  std::fill_n(c.begin(), 50, 0.0f);  // nothing to gain from the first
  const std::vector<double> weights(100, 0.05);
  ThreadPool pool(2);
  for (const int64_t total : {300, 301, 1234, 4999, 5000}) {
    const Ranks ranks =
        energy_fill(c.data(), 50, weights, {.total = total, .least = 3, .most = 50}, pool);
    EXPECT_EQ(sum_of(ranks), total);
    EXPECT_GE(*std::min_element(ranks.begin(), ranks.end()), 3);
    EXPECT_LE(*std::max_element(ranks.begin(), ranks.end()), 50);
    EXPECT_TRUE(total > 4900 || ranks[0] == 3) << total;
  }
}

}  // namespace
}  // namespace kvist
