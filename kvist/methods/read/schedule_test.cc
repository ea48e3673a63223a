// SPDX-License-Identifier: MIT
// Schedules of a plan: budgets, pooled and per head, pairs, uniform depths, and refusals.
#include "kvist/methods/read/schedule.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "kvist/core/error.h"
#include "kvist/core/rng.h"

namespace kvist {
namespace {

std::vector<float> weights(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> out(n);
  for (float& x : out) x = static_cast<float>(rng.uniform() * rng.uniform());
  return out;
}

struct Made {
  Schedule schedule;
  std::vector<int> depths;
  int sum() const { return std::accumulate(depths.begin(), depths.end(), 0); }
};
template <typename Fn>
Made make(const Fn& fn, const ReadPlan& plan, const std::vector<float>& w, int heads) {
  ScheduleWorkspace workspace;
  workspace.reserve(static_cast<int64_t>(w.size()));
  std::vector<uint8_t> depths(w.size());
  const Schedule made = fn(plan, w, heads, depths, workspace);
  return {made, {depths.begin(), depths.end()}};
}
Made values(const ReadPlan& plan, const std::vector<float>& w, int heads) {
  return make(schedule_values, plan, w, heads);
}

TEST(Schedule, SpendsTheBudgetAndNoMore) {
  const auto w = weights(3 * 101, 1);
  for (const Ratio rate : {Ratio{2, 1}, {4, 3}, {0, 1}, {8, 1}}) {
    const Made made = values({.value_rate = rate}, w, 3);
    EXPECT_EQ(made.schedule.budget, floor_mul(303, rate));
    EXPECT_EQ(made.schedule.spent, made.schedule.budget);
    EXPECT_EQ(made.sum(), made.schedule.spent);
  }
}

TEST(Schedule, ScalingOneHeadMovesNothingWhereBudgetsArePerHead) {
  auto w = weights(2 * 77, 2);
  ReadPlan plan{.per_head = true};
  const Made before = values(plan, w, 2);
  plan.per_head = false;
  const Made pooled = values(plan, w, 2);
  for (size_t j = 0; j < 77; ++j) w[j] *= 1024;
  EXPECT_NE(values(plan, w, 2).depths, pooled.depths);
  plan.per_head = true;
  EXPECT_EQ(values(plan, w, 2).depths, before.depths);
  EXPECT_EQ(std::accumulate(before.depths.begin(), before.depths.begin() + 77, 0), 2 * 77);
}

TEST(Schedule, PairsShareADepthAndAnOddTailIsWhole) {
  const auto w = weights(2 * 9, 3);
  const ReadPlan plan{.min_depth = 1, .pairs = true};
  const Made made = values(plan, w, 2);
  EXPECT_EQ(made.schedule.budget, 2 * 9);  // floor(2 * 18 / 2) packet increments
  int packets = 0;
  for (size_t head = 0; head < 2; ++head)
    for (size_t j = 0; j < 9; ++j) {
      const int depth = made.depths[head * 9 + j];
      EXPECT_GE(depth, 1);
      if (j % 2 == 0) {
        packets += depth;
      } else {
        EXPECT_EQ(depth, made.depths[head * 9 + j - 1]);
      }
    }
  EXPECT_EQ(packets, made.schedule.spent);
}

TEST(Schedule, UniformDepthsIgnoreWeights) {
  const Made made = values({.value_rate = {3, 1}, .uniform_values = true}, weights(40, 4), 2);
  EXPECT_EQ(made.depths, std::vector<int>(40, 3));
}

TEST(Schedule, RefusesPlansThatCannotBe) {
  EXPECT_NO_THROW(check(ReadPlan{}));
  for (const ReadPlan& plan :
       {ReadPlan{.width = 9}, ReadPlan{.width = 0}, ReadPlan{.width = 4, .key_rate = {9, 2}},
        ReadPlan{.value_rate = {-1, 1}}, ReadPlan{.key_rate = {5, 2}, .uniform_keys = true},
        ReadPlan{.min_depth = 2}, ReadPlan{.key_rate = {1, 2}, .two_depth_keys = true, .low = 1},
        ReadPlan{.sinks = -1}, ReadPlan{.sparq_channels = -1},
        ReadPlan{.sparq_channels = 8, .sinks = 4},
        ReadPlan{.width = 1, .key_rate = {1, 1}, .value_rate = {1, 1}, .sparq_channels = 8},
        ReadPlan{.pairs = true, .sparq_channels = 8}})
    EXPECT_THROW(check(plan), Error);
}

TEST(Schedule, TiltMovesKeyBitsToEarlyLayersAndKeepsTheirMean) {
  const ReadPlan plan{.key_rate = {3, 1}, .value_rate = {1, 1}, .tilt = {1, 6}};
  EXPECT_EQ(at_layer(plan, 0, 31).key_rate, (Ratio{7, 2}));
  EXPECT_EQ(at_layer(plan, 15, 31).key_rate, (Ratio{3, 1}));
  EXPECT_EQ(at_layer(plan, 30, 31).key_rate, (Ratio{5, 2}));
  EXPECT_EQ(at_layer(plan, 0, 31).value_rate, (Ratio{1, 1}));
  EXPECT_EQ(at_layer(plan, 0, 1).key_rate, (Ratio{3, 1}));
  // 7 (1 + 1/2) is more than is stored: the first layer reads all, the last as much less.
  const ReadPlan much{.key_rate = {7, 1}, .tilt = {1, 2}};
  EXPECT_EQ(at_layer(much, 0, 4).key_rate, (Ratio{8, 1}));
  EXPECT_EQ(at_layer(much, 3, 4).key_rate, (Ratio{6, 1}));
  for (const auto& [one, n] : {std::pair{plan, 30}, {plan, 7}, {much, 30}}) {
    double sum = 0;
    for (int layer = 0; layer < n; ++layer) sum += at_layer(one, layer, n).key_rate.value();
    EXPECT_NEAR(sum / n, one.key_rate.value(), 1e-12);
  }
}

TEST(Schedule, ProtectsAtMostHalfTheLayersAtEachEnd) {
  const ReadPlan plan{.protect = 2};
  EXPECT_TRUE(is_protected(plan, 1, 30));
  EXPECT_FALSE(is_protected(plan, 2, 30));
  EXPECT_TRUE(is_protected(plan, 28, 30));
  EXPECT_FALSE(is_protected(plan, 1, 3));
  EXPECT_TRUE(is_protected(plan, 0, 3));
  EXPECT_FALSE(is_protected(plan, 0, 1));
}

Made ragged(const ReadPlan& plan, const std::vector<float>& w, const std::vector<int64_t>& tokens) {
  ScheduleWorkspace workspace;
  workspace.reserve(static_cast<int64_t>(w.size()));
  std::vector<uint8_t> depths(w.size());
  const Schedule made = schedule_ragged_values(plan, w, tokens, depths, workspace);
  return {made, {depths.begin(), depths.end()}};
}

TEST(Schedule, HeadsOfDifferentLengthsShareWhatTheirItemsBuy) {
  const auto w = weights(101 + 1 + 40, 5);
  const Ratio rate{4, 3};
  const Made all = ragged({.value_rate = rate}, w, {101, 1, 40});
  EXPECT_EQ(all.schedule.budget, floor_mul(142, rate));
  EXPECT_EQ(all.schedule.spent, all.schedule.budget);
  EXPECT_EQ(all.depths, values({.value_rate = rate}, w, 1).depths);  // items cost the same

  const Made paired = ragged({.value_rate = rate, .pairs = true}, w, {101, 1, 40});
  EXPECT_EQ(paired.schedule.budget, floor_mul(142, {4, 6}));
  for (size_t j = 0; j < 100; j += 2) EXPECT_EQ(paired.depths[j], paired.depths[j + 1]);
  for (size_t j = 102; j < 142; j += 2)
    EXPECT_EQ(paired.depths[j], paired.depths[j + 1]) << "pairs begin anew in every head";
}

TEST(Schedule, HeadsOfDifferentLengthsMayBeScheduledAlone) {
  const auto w = weights(101 + 0 + 40, 6);
  const std::vector<float> first(w.begin(), w.begin() + 101), last(w.begin() + 101, w.end());
  for (const bool pairs : {false, true}) {
    const ReadPlan plan{.value_rate = {5, 3}, .per_head = true, .pairs = pairs};
    const Made made = ragged(plan, w, {101, 0, 40});
    std::vector<int> want = values(plan, first, 1).depths;
    const Made rest = values(plan, last, 1);
    want.insert(want.end(), rest.depths.begin(), rest.depths.end());
    EXPECT_EQ(made.depths, want);
    EXPECT_EQ(ragged(plan, weights(60, 7), {20, 20, 20}).depths,
              values(plan, weights(60, 7), 3).depths);
  }
}

}  // namespace
}  // namespace kvist
