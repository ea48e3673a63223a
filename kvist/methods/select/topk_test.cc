// SPDX-License-Identifier: MIT
// Tests of ranking: order of floats, ties, and equality with a plain stable sort.
#include "kvist/methods/select/topk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kvist/core/rng.h"

namespace kvist {
namespace {

template <typename T>
void expect_ascending() {
  constexpr T kInf = std::numeric_limits<T>::infinity();
  const T numbers[] = {-kInf,
                       std::numeric_limits<T>::lowest(),
                       T{-1},
                       -std::numeric_limits<T>::denorm_min(),
                       T{0},
                       std::numeric_limits<T>::denorm_min(),
                       T{1},
                       std::nextafter(T{1}, T{2}),
                       std::numeric_limits<T>::max(),
                       kInf};
  for (size_t i = 1; i < std::size(numbers); ++i)
    EXPECT_LT(ordered(numbers[i - 1]), ordered(numbers[i])) << numbers[i];
  EXPECT_EQ(ordered(-T{0}), ordered(T{0}));
  EXPECT_LT(ordered(std::numeric_limits<T>::quiet_NaN()), ordered(-kInf));
  EXPECT_LT(ordered(-std::numeric_limits<T>::quiet_NaN()), ordered(-kInf));
}

TEST(Ordered, FollowsTheNumbersWithNanLast) {
  expect_ascending<float>();
  expect_ascending<double>();
}

TEST(TopPositions, TiesGoToTheTiebreakThenTheSmallerPosition) {
  const std::vector<double> scores = {1, 2, 2, 2, 1};
  const std::vector<float> tiebreak = {9, 1, 3, 3, 9};
  EXPECT_EQ(ranked_positions({scores, tiebreak, 10}), (std::vector<int32_t>{12, 13, 11, 10, 14}));
  EXPECT_EQ(ranked_positions({scores, {}, 10}), (std::vector<int32_t>{11, 12, 13, 10, 14}));
  EXPECT_EQ(top_positions({scores, tiebreak, 10}, 2), (std::vector<int32_t>{12, 13}));
  EXPECT_EQ(top_positions({scores, {}, 0}, 4), (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_TRUE(top_positions({{}, {}, 0}, 0).empty());
}

TEST(TopPositions, EqualsAStableSortForEveryCount) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Rng rng(seed);
    const size_t n = rng.below(40);
    std::vector<double> scores;
    std::vector<float> tiebreak;
    for (size_t i = 0; i < n; ++i) {
      scores.push_back(static_cast<double>(rng.below(5)) - 2);
      tiebreak.push_back(static_cast<float>(rng.below(3)));
    }
    std::vector<int32_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      const auto i = static_cast<size_t>(a), j = static_cast<size_t>(b);
      return scores[i] != scores[j] ? scores[i] > scores[j] : tiebreak[i] > tiebreak[j];
    });
    EXPECT_EQ(ranked_positions({scores, tiebreak, 0}), order) << "seed " << seed;
    for (size_t k = 0; k <= n; ++k) {
      std::vector<int32_t> want(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k));
      std::sort(want.begin(), want.end());
      EXPECT_EQ(top_positions({scores, tiebreak, 0}, static_cast<int>(k)), want)
          << "seed " << seed << " k " << k;
    }
  }
}

}  // namespace
}  // namespace kvist
