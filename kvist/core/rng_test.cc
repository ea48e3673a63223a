// SPDX-License-Identifier: MIT
// Tests of random numbers against the stated generator, and of their uniformity.
#include "kvist/core/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

namespace kvist {
namespace {

std::vector<int> shuffled(uint64_t seed, uint32_t layer, uint32_t head) {
  std::vector<int> items(10);
  std::iota(items.begin(), items.end(), 0);
  Rng rng(seed, layer, head, 0);
  shuffle(std::span<int>(items), rng);
  return items;
}

// Vectors of the TwinKV controls (seed, layer, head, stream).
TEST(Rng, GivesTheStatedStream) {
  Rng rng(11, 0, 0, 0);
  EXPECT_EQ(rng.next(), 0x9eab99d4522f4b65u);
  EXPECT_EQ(rng.next(), 0x110f38b9f8dbf40fu);
  EXPECT_EQ(rng.next(), 0xebf8855b24b0a8d2u);
}

TEST(Rng, ShufflesAsStated) {
  EXPECT_EQ(shuffled(11, 2, 1), (std::vector<int>{9, 6, 8, 1, 2, 4, 5, 7, 0, 3}));
  EXPECT_EQ(shuffled(29, 2, 1), (std::vector<int>{1, 8, 2, 9, 3, 4, 6, 7, 0, 5}));
  EXPECT_EQ(shuffled(47, 2, 1), (std::vector<int>{4, 6, 8, 5, 1, 0, 9, 3, 2, 7}));
}

TEST(Rng, StreamsLayersHeadsAndSeedsDiffer) {
  const uint64_t base = Rng(1, 2, 3, 4).next();
  EXPECT_NE(base, Rng(2, 2, 3, 4).next());
  EXPECT_NE(base, Rng(1, 3, 3, 4).next());
  EXPECT_NE(base, Rng(1, 2, 4, 4).next());
  EXPECT_NE(base, Rng(1, 2, 3, 5).next());
  EXPECT_EQ(base, Rng(1, 2, 3, 4).next());
}

TEST(Rng, BelowStaysBelowAndReachesEverything) {
  Rng rng(7);
  for (uint64_t n : {1u, 2u, 3u, 10u, 64u}) {
    std::vector<int> seen(n);
    for (int i = 0; i < 20000; ++i) ++seen[rng.below(n)];
    const double mean = 20000.0 / static_cast<double>(n);
    for (int count : seen) EXPECT_NEAR(count, mean, 6 * std::sqrt(mean) + 1) << n;
  }
  for (int i = 0; i < 1000; ++i) EXPECT_LT(rng.below(UINT64_MAX), UINT64_MAX);
  const uint64_t power = uint64_t{1}
                         << 63;  // nothing is rejected: two draws of one generator agree
  Rng a(3), b(3);
  EXPECT_EQ(a.below(power), b.next() % power);
}

TEST(Rng, UniformAndGaussianHaveTheirMoments) {
  Rng rng(5);
  double sum = 0, square = 0, flat = 0;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const double u = rng.uniform();
    ASSERT_TRUE(u >= 0 && u < 1);
    flat += u;
    const double g = rng.gaussian();
    ASSERT_TRUE(std::isfinite(g));
    sum += g;
    square += g * g;
  }
  EXPECT_NEAR(flat / kDraws, 0.5, 0.005);
  EXPECT_NEAR(sum / kDraws, 0.0, 0.015);
  EXPECT_NEAR(square / kDraws, 1.0, 0.025);
}

}  // namespace
}  // namespace kvist
