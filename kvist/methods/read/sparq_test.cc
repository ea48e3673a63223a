// SPDX-License-Identifier: MIT
#include "kvist/methods/read/sparq.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

namespace kvist {
namespace {

using std::array;

// baselines-quantization.md, 8.5: two query heads of four channels.
TEST(SparQ, ChoosesChannelsAndTokensOfTheWorkedExample) {
  const array<float, 4> q1 = {2, -1, 0.5f, 0}, q2 = {1, 0, -3, 0.5f};
  const array<float, 4> sums = {3, 1, 3.5f, 0.5f};
  array<uint8_t, 4> chosen;
  array<uint32_t, 4> order;
  choose_channels(sums, 2, chosen, order);
  EXPECT_EQ(chosen, (array<uint8_t, 4>{1, 0, 1, 0}));
  EXPECT_NEAR(std::sqrt(4 * chosen_share(q1, chosen)), 1.6903085095, 1e-10);
  EXPECT_NEAR(std::sqrt(4 * chosen_share(q2, chosen)), 1.8856180832, 1e-10);

  const array<float, 4> scores = {1.7135f, -1.2952f, -0.4184f, 0.8568f};
  ASSERT_EQ(choose_tokens(scores, 1, order), 2);
  EXPECT_EQ(order[0], 0u);
  EXPECT_EQ(order[1], 3u);  // the last one, whatever its score
}

// BQ-10.
TEST(SparQ, EachSiblingHasATemperatureOfItsOwn) {
  const array<float, 2> q1 = {1, 10}, q2 = {-20, 2}, sums = {21, 12};
  array<uint8_t, 2> chosen;
  array<uint32_t, 2> order;
  choose_channels(sums, 1, chosen, order);
  EXPECT_EQ(chosen, (array<uint8_t, 2>{1, 0}));
  EXPECT_DOUBLE_EQ(chosen_share(q1, chosen), 1.0 / 11);
  EXPECT_DOUBLE_EQ(chosen_share(q2, chosen), 20.0 / 22);
}

TEST(SparQ, AmongEqualsTheFirstIsChosen) {
  const std::vector<float> same(6, 1.5f);
  std::vector<uint8_t> chosen(6);
  std::vector<uint32_t> order(6);
  choose_channels(same, 2, chosen, order);
  EXPECT_EQ(chosen, (std::vector<uint8_t>{1, 1, 0, 0, 0, 0}));
  ASSERT_EQ(choose_tokens(same, 2, order), 3);
  EXPECT_EQ(std::vector<uint32_t>(order.begin(), order.begin() + 3),
            (std::vector<uint32_t>{0, 1, 5}));
}

TEST(SparQ, TakesAllWhereThereAreNoMore) {
  const array<float, 3> scores = {3, 1, 2};
  array<uint8_t, 3> chosen;
  array<uint32_t, 3> order;
  choose_channels(scores, 9, chosen, order);
  EXPECT_EQ(chosen, (array<uint8_t, 3>{1, 1, 1}));
  EXPECT_EQ(choose_tokens(scores, 2, order), 3);
  EXPECT_EQ(choose_tokens(scores, 9, order), 3);
  EXPECT_EQ(order, (array<uint32_t, 3>{0, 1, 2}));
  EXPECT_EQ(choose_tokens({scores.data(), 1}, 4, order), 1);
  EXPECT_EQ(chosen_share(array<float, 2>{0, 0}, array<uint8_t, 2>{1, 0}), 1);
}

}  // namespace
}  // namespace kvist
