// SPDX-License-Identifier: MIT
// Tests of read budgets: the numbers of the specification, and the limits.
#include "kvist/methods/read/budget.h"

#include <gtest/gtest.h>

namespace kvist {
namespace {

TEST(ReadBudget, IntegerRatesAreExact) {
  EXPECT_EQ(read_budget({3, 1}, 3 * 64, {}), 576);
  EXPECT_EQ(read_budget({1, 1}, 3 * 320, {}), 960);
  EXPECT_EQ(read_budget({3, 1}, 4, {}), 12);  // the worked reader, G = 1, d = 4
  EXPECT_EQ(read_budget({1, 1}, 3, {}), 3);   // T = 3
}

TEST(ReadBudget, FractionsRoundDownExactly) {
  EXPECT_EQ(read_budget({5, 2}, 192, {}), 480);
  EXPECT_EQ(read_budget({4, 3}, 960, {}), 1280);
  EXPECT_EQ(read_budget({4, 3}, 961, {}), 1281);
  EXPECT_EQ(read_budget({1, 10}, 1'000'000'000'009, {}), 100'000'000'000);
  EXPECT_EQ(read_budget(Ratio::parse("0.3"), 10, {}), 3);  // 0.3 * 10 in doubles is below 3
}

TEST(ReadBudget, StaysWithinTheItems) {
  EXPECT_EQ(read_budget({9, 1}, 100, {}), 800);
  EXPECT_EQ(read_budget({9, 1}, 100, {0, 4}), 400);
  EXPECT_EQ(read_budget({1, 2}, 100, {1, 8}), 100);
  EXPECT_EQ(read_budget({0, 1}, 100, {}), 0);
  EXPECT_EQ(read_budget({2, 1}, 0, {1, 8}), 0);
}

TEST(ReadBudget, Packets) {
  EXPECT_EQ(value_packets(3, 5), 9);
  EXPECT_EQ(packet_budget({2, 1}, 1, 3, {1, 8}), 3);  // the worked restricted reader
  EXPECT_EQ(packet_budget({2, 1}, 3, 320, {0, 8}), 960);
  EXPECT_EQ(packet_budget({1, 1}, 1, 3, {1, 8}), 2);  // floor(3/2) is below one bit a packet
  EXPECT_EQ(packet_budget({1, 1}, 1, 3, {0, 8}), 1);
  EXPECT_EQ(packet_budget({5, 2}, 2, 7, {0, 8}), 17);  // floor(2.5 * 14 / 2)
  EXPECT_EQ(packet_budget({8, 1}, 1, 3, {0, 8}), 12);  // 8/2 short of full depth for an odd tail
}

TEST(ReadBudget, SplitsOfAMeanRate) {
  using Splits = std::vector<std::pair<int, int>>;
  EXPECT_EQ(rate_splits(2, 8), (Splits{{4, 0}, {3, 1}, {2, 2}, {1, 3}, {0, 4}}));
  EXPECT_EQ(rate_splits(2, 3), (Splits{{3, 1}, {2, 2}, {1, 3}}));
  EXPECT_EQ(rate_splits(4, 4), (Splits{{4, 4}}));
}

}  // namespace
}  // namespace kvist
