// SPDX-License-Identifier: MIT
// Tests of the division of slots over heads: the paper's numbers, and the exact budget on every
// small case.
#include "kvist/methods/select/quota.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "kvist/core/rng.h"

namespace kvist {
namespace {

using Ints = std::vector<int>;

TEST(MixedQuotas, WorkedExamples) {
  EXPECT_EQ(mixed_quotas(Ints{80, 296}, 188), (Ints{134, 242}));
  EXPECT_EQ(mixed_quotas(Ints{3, 0, 1, 4}, 2), (Ints{3, 1, 1, 3}));
  EXPECT_EQ(mixed_quotas(Ints{5, 0, 1}, 2), (Ints{4, 1, 1}));
  EXPECT_EQ(mixed_quotas(Ints{}, 3), Ints{});
}

TEST(MixedQuotas, SumFloorAndCapHoldOnEverySmallCase) {
  for (int heads = 1; heads <= 4; ++heads) {
    for (int open = 0; open <= 6; ++open) {
      for (int slots = 0; slots <= open; ++slots) {
        Ints g(static_cast<size_t>(heads));
        const std::function<void(int, int)> fill = [&](int head, int left) {
          if (head == heads) {
            if (left != 0) return;
            const Ints u = mixed_quotas(g, slots);
            ASSERT_EQ(std::accumulate(u.begin(), u.end(), 0), heads * slots);
            for (size_t h = 0; h < u.size(); ++h) {
              ASSERT_GE(u[h], slots / 2);
              ASSERT_LE(u[h], open);
              ASSERT_LE(std::abs(2 * u[h] - g[h] - slots), 1);
            }
            return;
          }
          for (int won = 0; won <= std::min(open, left); ++won) {
            g[static_cast<size_t>(head)] = won;
            fill(head + 1, left - won);
          }
        };
        fill(0, heads * slots);
      }
    }
  }
}

Ints counts(const std::vector<float>& z, int heads, int slots) {
  return global_counts({z.data(), {heads, static_cast<int64_t>(z.size()) / heads}}, slots);
}

TEST(GlobalCounts, TiesGoByHeadThenPosition) {
  const std::vector<float> equal(10, 0.5f);
  EXPECT_EQ(counts(equal, 2, 2), (Ints{4, 0}));
  EXPECT_EQ(mixed_quotas(counts(equal, 2, 2), 2), (Ints{3, 1}));
  EXPECT_EQ(counts({0, 0, 1, 0, 0, 0}, 2, 2), (Ints{3, 1}));
}

TEST(GlobalCounts, AllZeroIsUniformAndNanCountsAsZero) {
  const float nan = std::nanf("");
  EXPECT_EQ(counts(std::vector<float>(10, 0.0f), 2, 2), (Ints{2, 2}));
  EXPECT_EQ(counts({nan, nan, 0, -0.0f}, 2, 1), (Ints{1, 1}));
  EXPECT_EQ(counts({nan, nan, 0, 1}, 2, 1), (Ints{1, 1}));
}

TEST(GlobalCounts, WorkedExampleOfTwelveTokens) {
  const std::vector<float> z = {.05f, .04f, .03f, .02f, .30f, .01f, .01f, .01f, .01f,
                                .20f, .01f, .01f, .01f, .01f, .01f, .01f, .01f, .01f};
  EXPECT_EQ(counts(z, 2, 3), (Ints{5, 1}));
  EXPECT_EQ(mixed_quotas(Ints{5, 1}, 3), (Ints{4, 2}));
}

TEST(GlobalCounts, EqualsAStableSort) {
  for (uint64_t seed = 1; seed <= 80; ++seed) {
    Rng rng(seed);
    const int heads = 1 + static_cast<int>(rng.below(4)),
              open = 1 + static_cast<int>(rng.below(12));
    const int slots = static_cast<int>(rng.below(static_cast<uint64_t>(open) + 1));
    std::vector<float> z(static_cast<size_t>(heads * open));
    for (float& x : z) x = static_cast<float>(rng.below(4)) / 8;
    Ints order(z.size()), want(static_cast<size_t>(heads), 0);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return z[static_cast<size_t>(a)] > z[static_cast<size_t>(b)];
    });
    for (int i = 0; i < heads * slots; ++i)
      ++want[static_cast<size_t>(order[static_cast<size_t>(i)] / open)];
    if (std::all_of(z.begin(), z.end(), [](float x) { return x == 0; }))
      want.assign(want.size(), slots);
    EXPECT_EQ(counts(z, heads, slots), want) << "seed " << seed;
  }
}

}  // namespace
}  // namespace kvist
