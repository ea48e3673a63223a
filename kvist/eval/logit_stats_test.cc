// SPDX-License-Identifier: MIT
// Statistics against hand-worked numbers.
#include "kvist/eval/logit_stats.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvist {
namespace {

TEST(LogitStats, ARunAgainstItselfDiffersByExactlyNothing) {
  const std::vector<float> logits{0.1f, -3.0f, 2.5f, 2.5f};
  LogitStats stats;
  for (int target = 0; target < 4; ++target) stats.add(logits, logits, target);
  EXPECT_EQ(stats.kl().mean, 0);
  EXPECT_EQ(stats.kl_percentile(1), 0);
  EXPECT_EQ(stats.same_top().mean, 1);
  EXPECT_EQ(stats.log_ratio().mean, 0);
  EXPECT_EQ(stats.perplexity(), stats.base_perplexity());
}

TEST(LogitStats, TwoTokensByHand) {
  // p = (3/4, 1/4), q = (1/2, 1/2): KL = 3/4 ln(3/2) + 1/4 ln(1/2).
  const std::vector<float> p{std::log(3.0f), 0}, q{0, 0};
  LogitStats stats;
  stats.add(p, q, 0);
  EXPECT_NEAR(stats.kl().mean, 0.75 * std::log(1.5) + 0.25 * std::log(0.5), 1e-7);
  EXPECT_EQ(stats.same_top().mean, 1) << "a tie goes to the lower id";
  EXPECT_NEAR(stats.base_perplexity(), 4.0 / 3, 1e-6);
  EXPECT_NEAR(stats.perplexity(), 2, 1e-6);
  EXPECT_NEAR(stats.log_ratio().mean, std::log(1.5), 1e-6);
  stats.add(q, p, 1);
  EXPECT_NEAR(stats.log_ratio().mean, (std::log(1.5) + std::log(2.0)) / 2, 1e-6);
}

TEST(LogitStats, ErrorsAndPercentilesByHand) {
  const std::vector<double> x{1, 2, 3, 6};
  EXPECT_DOUBLE_EQ(mean_of(x).mean, 3);
  EXPECT_DOUBLE_EQ(mean_of(x).se, std::sqrt((4 + 1 + 0 + 9) / 4.0 / 3.0));
  EXPECT_DOUBLE_EQ(percentile({6, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(percentile({6, 1, 3, 2}, 1), 6);
  EXPECT_DOUBLE_EQ(percentile({5}, 0.3), 5);
}

}  // namespace
}  // namespace kvist
