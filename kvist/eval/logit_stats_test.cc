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

// Three targets over four tokens, worked out apart from this code to 15 digits.
TEST(LogitStats, ThreeTargetsOfAWorkedExample) {
  const std::vector<std::vector<float>> base{
      {2, 1, 0, -1}, {0.5f, 0.5f, 3, 0}, {1, 1.5f, 1.4f, -2}};
  const std::vector<std::vector<float>> other{
      {1.8f, 1.1f, 0.1f, -1}, {0.4f, 0.9f, 2.5f, 0.1f}, {1, 1.4f, 1.5f, -2}};
  const int targets[] = {0, 2, 1};
  const double kl[] = {0.010120891282053, 0.040783955525866, 0.003744250676125};
  const double nll[] = {0.553930451548849, 0.347179635519847, 1.032780214476879};
  const double base_nll[] = {0.440189698561195, 0.193885325962211, 0.932780214476879};
  const double dp[] = {-0.069227672126274, -0.117073989543613, -0.037442506761246};
  LogitStats stats;
  constexpr double kFloats = 2e-7;  // 1.4 and its like are no floats
  for (size_t i = 0; i < 3; ++i) {
    const TokenDistance d = distance_between(base[i], other[i], targets[i]);
    EXPECT_NEAR(d.kl, kl[i], kFloats);
    EXPECT_NEAR(d.nll, nll[i], kFloats);
    EXPECT_NEAR(d.base_nll, base_nll[i], kFloats);
    EXPECT_NEAR(d.dp, dp[i], kFloats);
    stats.add(d);
  }
  EXPECT_NEAR(distance_between(other[1], base[1], 0).kl, 0.048193975985731, kFloats)
      << "the other way round is another number";
  EXPECT_NEAR(stats.base_perplexity(), 1.685875611655584, kFloats);
  EXPECT_NEAR(stats.perplexity(), 1.905282136029604, kFloats);
  EXPECT_NEAR(100 * (stats.perplexity() / stats.base_perplexity() - 1), 13.014395774938, 2e-5);
  EXPECT_NEAR(stats.log_ratio().mean, 0.122345020848430, kFloats);
  EXPECT_NEAR(stats.log_ratio().se, 0.015974937943242, kFloats);
  EXPECT_NEAR(stats.kl().mean, 0.018216365828015, kFloats);
  EXPECT_NEAR(stats.dp_rms().mean, 0.081446773883821, kFloats);
  EXPECT_NEAR(stats.same_top().mean, 2.0 / 3, 1e-15);
  EXPECT_NEAR(stats.same_top().se, std::sqrt(2.0 / 9 / 2), 1e-15);
}

TEST(LogitStats, SamplingByHand) {
  // p = (3/4, 1/4), q = (1/2, 1/2).
  const TokenDistance d =
      distance_between(std::vector<float>{std::log(3.0f), 0}, std::vector<float>{0, 0}, 0);
  EXPECT_NEAR(d.same_sampled, 0.5, 1e-7);
  EXPECT_NEAR(d.base_same_sampled, 10.0 / 16, 1e-7);
  EXPECT_NEAR(d.dp, -0.25, 1e-7);
}

TEST(LogitStats, ErrorsAndPercentilesByHand) {
  const std::vector<double> x{1, 2, 3, 6};
  EXPECT_DOUBLE_EQ(mean_of(x).mean, 3);
  EXPECT_DOUBLE_EQ(mean_of(x).se, std::sqrt((4 + 1 + 0 + 9) / 4.0 / 3.0));
  const Mean rms = rms_of(std::vector<double>{3, -5});  // squares 9 and 25: mean 17, error 8
  EXPECT_DOUBLE_EQ(rms.mean, std::sqrt(17.0));
  EXPECT_DOUBLE_EQ(rms.se, 8 * 0.5 / std::sqrt(17.0));
  EXPECT_DOUBLE_EQ(correlation(x, std::vector<double>{2, 4, 6, 12}), 1);
  EXPECT_EQ(correlation(x, std::vector<double>{1, 1, 1, 1}), 0);
  EXPECT_DOUBLE_EQ(percentile({6, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(percentile({6, 1, 3, 2}, 1), 6);
  EXPECT_DOUBLE_EQ(percentile({5}, 0.3), 5);
}

}  // namespace
}  // namespace kvist
