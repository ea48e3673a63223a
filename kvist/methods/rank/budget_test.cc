// SPDX-License-Identifier: MIT
#include "kvist/methods/rank/budget.h"

#include <gtest/gtest.h>

#include "kvist/core/error.h"

namespace kvist {
namespace {

using Infeasible = RankPlan::Infeasible;

RankPlan plan(Ratio keep, Infeasible policy = Infeasible::error) {
  RankPlan p;
  p.keep = keep;
  p.infeasible = policy;
  return p;
}

bool works(Ratio keep, int n, int width) {
  try {
    rank_budget(plan(keep), n, width, width);
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    return false;
  }
}

// varrate.md 6: the smallest length from which every longer one has the floor of 16.
TEST(RankBudget, SmallestLengthsOfThePaper) {
  struct Row {
    Ratio keep;
    int length[3];
  };
  const int widths[3] = {2048, 1024, 384};
  for (const Row& row : {Row{{1, 10}, {2002, 2614, -1}},
                         {{3, 20}, {754, 821, 1204}},
                         {{1, 5}, {460, 486, 594}},
                         {{1, 4}, {332, 345, 391}},
                         {{1, 2}, {140, 141, 147}}}) {
    for (size_t i = 0; i < 3; ++i) {
      int last_failing = 0;
      for (int n = 65; n <= 4000; ++n)
        if (!works(row.keep, n, widths[i])) last_failing = n;
      const int want = row.length[i] < 0 ? 4001 : row.length[i];
      EXPECT_EQ(last_failing + 1, want) << row.keep.text() << " of width " << widths[i];
    }
  }
}

// varrate.md 18, example 1, and 6, mean ranks.
TEST(RankBudget, IsExact) {
  EXPECT_EQ(rank_budget(plan({1, 5}), 16384, 2048, 1024).spendable, 4490854);
  const RankBudget b = rank_budget(plan({1, 5}), 2048, 384, 384);
  EXPECT_EQ(b.exact, 188);
  EXPECT_EQ(b.coded, 1860);
  EXPECT_EQ(b.spendable, 85094);
  const auto mean = [](Ratio keep, int width) {
    const RankBudget of = rank_budget(plan(keep, Infeasible::shrink_floor), 16384, width, width);
    return static_cast<double>(of.spendable) / static_cast<double>(of.coded);
  };
  EXPECT_NEAR(mean({1, 5}, 2048), 293.5, 0.05);
  EXPECT_NEAR(mean({1, 5}, 1024), 146.8, 0.05);
  EXPECT_NEAR(mean({1, 5}, 384), 55.0, 0.05);
  EXPECT_NEAR(mean({1, 10}, 2048), 74.2, 0.05);
  EXPECT_NEAR(mean({1, 10}, 1024), 37.1, 0.05);
  EXPECT_NEAR(mean({1, 10}, 384), 13.9, 0.05);
}

// varrate.md 6: beyond a share of 0.533 every token is full and the rest cannot be spent.
TEST(RankBudget, WhatFullRankDoesNotTakeIsUnspent) {
  const RankBudget b = rank_budget(plan({7, 10}), 16384, 2048, 1024);
  EXPECT_EQ(b.spendable, b.coded * 1024);
  EXPECT_GT(b.total, b.spendable);
  const RankBudget below = rank_budget(plan({53, 100}), 16384, 2048, 1024);
  EXPECT_EQ(below.total, below.spendable);
}

TEST(RankBudget, ShortPromptsAndAShareOfOneStayWhole) {
  for (const int n : {1, 63, 64}) EXPECT_EQ(rank_budget(plan({1, 5}), n, 384, 384).coded, 0);
  EXPECT_EQ(rank_budget(plan({1, 1}), 4000, 384, 384).coded, 0);
  EXPECT_EQ(rank_budget(plan({1, 1}), 4000, 384, 384).exact, 4000);
}

TEST(RankBudget, PoliciesFollowEachOther) {
  try {
    rank_budget(plan({1, 5}), 500, 384, 384);
    FAIL() << "accepted";
  } catch (const Error& error) {
    const std::string text = error.what();
    // n_ref = ceil(500 / 16) + 60 = 92; 0.2 * 384 * 500 - 92 * 384 = 3072; 16 * 408 = 6528.
    for (const char* part : {"keep=0.2", "500 tokens", "92 stay exact", "leaves 3072", "the 6528",
                             "other 408", "about 0.2180"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
    }
  }
  const RankBudget shrunk = rank_budget(plan({1, 5}, Infeasible::shrink_floor), 500, 384, 384);
  EXPECT_EQ(shrunk.stride, 16);
  EXPECT_EQ(shrunk.least_rank, 3072 / 408);
  EXPECT_EQ(shrunk.spendable, 3072);
  // At stride 32 are 78 exact and 8448 coefficients against 16 * 422.
  const RankBudget wide = rank_budget(plan({1, 5}, Infeasible::widen_stride), 500, 384, 384);
  EXPECT_EQ(wide.stride, 32);
  EXPECT_EQ(wide.least_rank, 16);
  EXPECT_EQ(wide.spendable, 8448);
  // 100 tokens at 0.7: 67 exact leave 1152 of 16 * 33 = 528; at 0.6 none are left at any stride.
  EXPECT_EQ(rank_budget(plan({7, 10}), 100, 384, 384).spendable, 1152);
  for (const auto policy : {Infeasible::widen_stride, Infeasible::shrink_floor, Infeasible::exact})
    EXPECT_EQ(rank_budget(plan({3, 5}, policy), 100, 384, 384).coded, 0);
  EXPECT_EQ(rank_budget(plan({1, 5}, Infeasible::exact), 500, 384, 384).coded, 0);
}

// varrate.md 11: floor((keep L D 16 - exact D 16 - metadata bits) / 16), however wide coefficients
// are stored.
TEST(RankBudget, StrictScalarsPayForTheirMetadata) {
  RankPlan p = plan({1, 5});
  p.strict = true;
  const int64_t whole = floor_mul(2048 * 384 * 16, {1, 5}) - 188 * 384 * 16;
  const int64_t metadata = 1860 * (4 * 7 + 16 + 8) + (1860 + 63) / 64 * 32;
  for (const int bits : {16, 8, 4}) {
    p.bits = bits;
    EXPECT_EQ(rank_budget(p, 2048, 384, 384).spendable, (whole - metadata) / 16);
  }
  p.bits = 8;
  p.code = RankPlan::Code::sigma;  // a gain for each token
  EXPECT_EQ(rank_budget(p, 2048, 384, 384).spendable, (whole - metadata - 1860 * 16) / 16);
  p = plan({1, 5});
  p.strict = true;
  p.rate = RankPlan::Rate::bytes;  // has paid already
  EXPECT_EQ(rank_budget(p, 2048, 384, 384).spendable, (whole - metadata) / 16);
  p = plan({1, 5});
  p.strict = true;
  try {
    rank_budget(p, 600, 384, 384);  // feasible if metadata were free
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
  }
  EXPECT_NO_THROW(rank_budget(plan({1, 5}), 600, 384, 384));
}

TEST(RankBudget, BytesIncludeEverything) {
  RankPlan p = plan({1, 5});
  p.rate = RankPlan::Rate::bytes;
  // varrate.md 10: mean affordable rank at 2,048 tokens of width 384, with 7-bit indices.
  const RankBudget b = rank_budget(p, 2048, 384, 384);
  const int64_t bits = floor_mul(2048 * 384 * 16, {1, 5}) - 188 * 384 * 16 -
                       1860 * (4 * 7 + 16 + 8) - (1860 + 63) / 64 * 32;
  EXPECT_EQ(b.spendable, bits / 16);
  p.bits = 4;
  const RankBudget four = rank_budget(p, 2048, 384, 384);
  EXPECT_GT(four.spendable, 3 * b.spendable - 1860 * 16);
  EXPECT_LT(four.spendable, 16 * b.spendable / 5);
}

TEST(RankBudget, RefusesWhatCannotBe) {
  RankPlan p = plan({1, 5});
  EXPECT_THROW(rank_budget(p, 2048, 8, 8), Error);  // a floor of 16 above 8 rows
  p.keep = {0, 1};
  EXPECT_THROW(rank_budget(p, 2048, 384, 384), Error);
  p = plan({1, 5});
  p.salience = RankPlan::Salience::oracle;
  EXPECT_THROW(rank_budget(p, 2048, 384, 384), Error);
  p = plan({1, 5});
  p.round_up = true;
  p.rate = RankPlan::Rate::bytes;
  EXPECT_THROW(rank_budget(p, 2048, 384, 384), Error);
}

}  // namespace
}  // namespace kvist
