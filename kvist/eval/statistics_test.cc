// SPDX-License-Identifier: MIT
// Statistics against numbers that a script of its own made from their definitions.
#include "kvist/eval/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kvist/eval/logit_stats.h"

namespace kvist {
namespace {

TEST(SignTest, ExactValues) {
  EXPECT_NEAR(sign_test(13, 3), 0.021270751953125, 1e-12);
  EXPECT_NEAR(sign_test(15, 1), 0.000518798828125, 1e-12);
  EXPECT_NEAR(sign_test(14, 1), 0.0009765625, 1e-12);
  EXPECT_NEAR(sign_test(11, 2), 0.0224609375, 1e-12);
  EXPECT_NEAR(sign_test(12, 4), 0.076812744140625, 1e-12);
  EXPECT_NEAR(sign_test(3, 0), 0.25, 1e-12);
  EXPECT_NEAR(sign_test(31, 1), 1.5366822481155396e-08, 1e-18);
  EXPECT_EQ(sign_test(8, 8), 1);
  EXPECT_EQ(sign_test(0, 0), 1);
  EXPECT_EQ(sign_test(3, 13), sign_test(13, 3));
  EXPECT_NEAR(sign_test(2000, 2000), 1, 1e-9) << "2^-4000 is no double";
}

TEST(Resampling, IndexesAreThoseOfSplitMix64) {
  ResampleIndexes outputs(1);
  EXPECT_EQ(outputs.next(), 10451216379200822465u);
  EXPECT_EQ(outputs.next(), 13757245211066428519u);
  EXPECT_EQ(outputs.next(), 17911839290282890590u);
  ResampleIndexes indexes(1);
  for (size_t expected : {4, 5, 7, 3, 3, 6, 7, 4, 2, 6, 3, 4})
    EXPECT_EQ(indexes.below(8), expected);
}

TEST(Percentiles, OfAllResamplesOfThreeNumbers) {
  EXPECT_NEAR(percentile({1, 2, 3, 4}, 0.25), 1.75, 1e-12);
  EXPECT_NEAR(percentile({1, 2, 3, 4}, 0.975), 3.925, 1e-12);
  const double d[] = {0, 1, 5};
  std::vector<double> means;
  for (double a : d)
    for (double b : d)
      for (double c : d) means.push_back((a + b + c) / 3);
  EXPECT_NEAR(mean_of(means).mean, 2, 1e-12);
  EXPECT_NEAR(percentile(means, 0.025), 0.216666666666667, 1e-12);
  EXPECT_NEAR(percentile(means, 0.5), 2, 1e-12);
  EXPECT_NEAR(percentile(means, 0.975), 4.133333333333333, 1e-12);
}

TEST(Bootstrap, OneCell) {
  const std::vector<std::vector<double>> cell{{1, 0, -0.5, 2, 0.5, 0, 1.5, -1}};
  const Interval a = paired_bootstrap(cell, 2000, 1);
  EXPECT_NEAR(a.mean, 0.4375, 1e-12);
  EXPECT_NEAR(a.low, -0.25, 1e-12);
  EXPECT_NEAR(a.high, 1.0625, 1e-12);
  EXPECT_EQ(a.not_above_zero, 241);
  EXPECT_EQ(a.units, 8);
  EXPECT_STREQ(a.verdict(), "tie");
  const Interval b = paired_bootstrap(cell, 2000, 2);
  EXPECT_NEAR(b.low, -0.1875, 1e-12);
  EXPECT_NEAR(b.high, 1.125, 1e-12);
  for (uint64_t seed : {1, 2}) {
    const Interval c = paired_bootstrap(cell, 20000, seed);
    EXPECT_NEAR(c.low, -0.1875, 1e-12);
    EXPECT_NEAR(c.high, 1.125, 1e-12);
  }
  EXPECT_EQ(paired_bootstrap(cell, 20000, 1).not_above_zero, 2296);
}

TEST(Bootstrap, TwoCells) {
  const std::vector<std::vector<double>> cells{{1, 0, 1}, {-1, 1, 0, 0, 1}};
  const Interval i = paired_bootstrap(cells, 2000, 1);
  EXPECT_NEAR(i.mean, 0.433333333333333, 1e-12);
  EXPECT_NEAR(i.low, -0.033333333333333, 1e-12);
  EXPECT_NEAR(i.high, 0.833333333333333, 1e-12);
  EXPECT_EQ(i.not_above_zero, 72);
}

TEST(Bootstrap, StrataKeepTheirSizes) {
  // One stratum always gives 1 and the other -1: three units of four.
  const std::vector<Strata> cells{{{1, 1, 1}, {-1}}};
  const Interval i = stratified_bootstrap(cells, 500, 1);
  EXPECT_EQ(i.mean, 0.5);
  EXPECT_EQ(i.low, 0.5);
  EXPECT_EQ(i.high, 0.5);
  EXPECT_EQ(i.units, 4);
  const std::vector<std::vector<double>> loose{{1, 1, 1, -1}};
  EXPECT_LT(paired_bootstrap(loose, 500, 1).low, 0.5);
  // A single stratum is the plain bootstrap.
  const std::vector<Strata> plain{{loose[0]}};
  EXPECT_EQ(stratified_bootstrap(plain, 500, 1).low, paired_bootstrap(loose, 500, 1).low);
}

TEST(Spread, LeavesOutWhatWasNotMeasured) {
  const Spread s = spread_of({3, 0, 1, 2, 0});
  EXPECT_EQ(s.median, 2);
  EXPECT_EQ(s.least, 1);
  EXPECT_EQ(s.most, 3);
  EXPECT_EQ(spread_of({0, 0}).median, 0);
}

TEST(Bootstrap, WeighsPerplexityByTokens) {
  // NLL 6 over 3 targets and 1 over 1 against 0: exp(7/4), not the mean of exp(2) and exp(1).
  const std::vector<NllUnit> units{{6, 0, 3}, {1, 0, 1}};
  const Interval i = bootstrap_perplexity_change(units, 200, 1);
  EXPECT_NEAR(i.mean, 5.754602676005731 - 1, 1e-12);
  EXPECT_NEAR(i.low, std::exp(1.0) - 1, 1e-12);
  EXPECT_NEAR(i.high, std::exp(2.0) - 1, 1e-12);
  EXPECT_STREQ(i.verdict(), "better") << "above 0";
}

}  // namespace
}  // namespace kvist
