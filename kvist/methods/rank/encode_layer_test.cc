// SPDX-License-Identifier: MIT
// The encoder against the definition in plain double arithmetic, and the identities it must keep.
#include "kvist/methods/rank/encode_layer.h"

#include <gtest/gtest.h>

#include <Eigen/Dense>
#include <numeric>

#include "kvist/core/error.h"
#include "kvist/methods/rank/anchors.h"
#include "kvist/methods/test_layer.h"

namespace kvist {
namespace {

// A random orthonormal basis of `rows` rows.
RankBasisLayer orthonormal(int rows, int width, uint64_t seed) {
  Rng rng(seed);
  Eigen::MatrixXd a(width, width);
  for (int i = 0; i < width; ++i)
    for (int j = 0; j < width; ++j) a(i, j) = rng.gaussian();
  const Eigen::MatrixXd q = Eigen::HouseholderQR<Eigen::MatrixXd>(a).householderQ();
  RankBasisLayer basis;
  basis.n_rows = rows;
  basis.width = width;
  for (int j = 0; j < rows; ++j)
    for (int c = 0; c < width; ++c) basis.rows.push_back(static_cast<float>(q(c, j)));
  return basis;
}

RankPlan small_plan() {
  RankPlan plan;
  plan.keep = {3, 5};
  plan.stride = 8;
  plan.window = 10;
  plan.scoring_window = 12;
  plan.neighbours = 3;
  plan.least_rank = 2;
  return plan;
}

struct Encoded {
  TestLayer layer;
  RankBasisLayer basis;
  RankPlan plan;
  std::vector<float> z;
  RankedCode code;
};

Encoded encode(const RankPlan& plan, int rows = 24, int threads = 2, int n = 150) {
  Encoded e{TestLayer::random(n, 2, 2, 6, 16, 3), orthonormal(rows, 24, 5), plan, {}, {}};
  ThreadPool pool(threads);
  const LayerInput in = e.layer.input(pool, 4);
  const RotationTable rotation(*in.rope, n);
  const Buffer<float> z = joint_rows(in, rotation, plan.value_scale);
  e.z.assign(z.begin(), z.end());
  e.code = encode_layer(in, e.basis, plan, rotation, pool);
  return e;
}

// Residual of coded token i in double, from the neighbours found.
std::vector<double> residual(const Encoded& e, size_t i) {
  std::vector<double> out;
  const auto near = e.code.neighbours_of(i);
  for (int c = 0; c < 24; ++c) {
    double mean = 0;
    for (const uint16_t a : near)
      mean += static_cast<double>(e.z[static_cast<size_t>(e.code.anchors[a] * 24 + c)]);
    out.push_back(static_cast<double>(e.z[static_cast<size_t>(e.code.coded[i] * 24 + c)]) -
                  mean / static_cast<double>(near.size()));
  }
  return out;
}

TEST(EncodeLayer, CoefficientsAreTheResidualInTheBasis) {
  for (const bool causal : {false, true}) {
    RankPlan plan = small_plan();
    plan.causal_anchors = causal;
    plan.value_scale = 2;
    const Encoded e = encode(plan);
    ASSERT_EQ(e.code.coefficients.size(), e.code.offset.back());
    for (size_t i = 0; i < e.code.coded.size(); ++i) {
      const auto want = residual(e, i);
      const auto got = e.code.coefficients_of(i);
      ASSERT_EQ(got.size(), e.code.rank[i]);
      for (size_t j = 0; j < got.size(); ++j) {
        double sum = 0, length = 0;
        for (size_t c = 0; c < 24; ++c) {
          sum += want[c] * static_cast<double>(e.basis.row(static_cast<int>(j))[c]);
          length += want[c] * want[c];
        }
        EXPECT_NEAR(got[j], sum, 2e-5 * std::sqrt(length));
      }
    }
  }
}

// varrate.md 18, examples 7 and 8: full rank gives the token back; else the error is the energy
// dropped.
TEST(EncodeLayer, TruncationDropsTheEnergyOfTheRest) {
  RankPlan plan = small_plan();
  const Encoded e = encode(plan);
  bool truncated = false;
  for (size_t i = 0; i < e.code.coded.size(); ++i) {
    const auto want = residual(e, i);
    std::vector<double> rest = want;
    double kept = 0, all = 0, left = 0;
    const auto got = e.code.coefficients_of(i);
    for (size_t j = 0; j < got.size(); ++j) {
      kept += static_cast<double>(got[j]) * static_cast<double>(got[j]);
      for (size_t c = 0; c < 24; ++c)
        rest[c] -=
            static_cast<double>(got[j]) * static_cast<double>(e.basis.row(static_cast<int>(j))[c]);
    }
    for (size_t c = 0; c < 24; ++c) {
      all += want[c] * want[c];
      left += rest[c] * rest[c];
    }
    EXPECT_NEAR(left, all - kept, 1e-4 * all);
    EXPECT_LT(left, got.size() == 24 ? 1e-8 : all + 1e-4);
    truncated |= got.size() < 24;
  }
  EXPECT_TRUE(truncated);
}

TEST(EncodeLayer, SpendsTheBudgetUnderEveryRule) {
  for (const auto allocation : {RankPlan::Allocation::salience, RankPlan::Allocation::split,
                                RankPlan::Allocation::energy}) {
    for (const auto kind :
         {RankPlan::Salience::window, RankPlan::Salience::twin, RankPlan::Salience::mix,
          RankPlan::Salience::fisher, RankPlan::Salience::norm, RankPlan::Salience::flat,
          RankPlan::Salience::random, RankPlan::Salience::shuffle, RankPlan::Salience::position,
          RankPlan::Salience::oracle}) {
      for (const int least : {0, 2}) {
        RankPlan plan = small_plan();
        plan.allocation = allocation;
        plan.salience = kind;
        plan.least_rank = least;
        plan.gold_begin = 30;
        plan.gold_end = 40;
        const Encoded e = encode(plan, 24, 1);
        EXPECT_EQ(e.code.unspent, 0);
        // floor(0.6 * 24 * 150) - 24 * (10 + 18)
        EXPECT_EQ(e.code.offset.back(), 2160u - 672u);
        for (const uint16_t r : e.code.rank) EXPECT_GE(r, least);
      }
    }
  }
}

TEST(EncodeLayer, IsTheSameForAnyNumberOfThreads) {
  for (const auto allocation : {RankPlan::Allocation::salience, RankPlan::Allocation::energy}) {
    RankPlan plan = small_plan();
    plan.allocation = allocation;
    const Encoded one = encode(plan, 20, 1), three = encode(plan, 20, 3);
    EXPECT_EQ(one.code.rank, three.code.rank);
    EXPECT_EQ(one.code.neighbours, three.code.neighbours);
    EXPECT_EQ(one.code.coefficients, three.code.coefficients);
  }
}

// What the residual holds goes further than even ranks; weighted by salience or not.
TEST(EncodeLayer, EnergyLeavesLessErrorThanFlat) {
  const auto left = [](RankPlan::Allocation allocation) {
    RankPlan plan = small_plan();
    plan.allocation = allocation;
    plan.salience = RankPlan::Salience::flat;
    const Encoded e = encode(plan);
    double error = 0;
    for (size_t i = 0; i < e.code.coded.size(); ++i) {
      for (const double x : residual(e, i)) error += x * x;
      for (const float x : e.code.coefficients_of(i)) error -= static_cast<double>(x * x);
    }
    return error;
  };
  EXPECT_LT(left(RankPlan::Allocation::energy), 0.95 * left(RankPlan::Allocation::salience));
}

// Low rank without anchors: a token's own coordinates in the basis.
TEST(EncodeLayer, WithoutAnchorsTokensThemselvesAreProjected) {
  for (const auto allocation : {RankPlan::Allocation::salience, RankPlan::Allocation::energy}) {
    RankPlan plan = small_plan();
    plan.basis = RankPlan::Basis::token;
    plan.allocation = allocation;
    plan.salience = allocation == RankPlan::Allocation::energy ? RankPlan::Salience::window
                                                               : RankPlan::Salience::flat;
    const Encoded e = encode(plan);
    EXPECT_EQ(e.code.exact.size(), 11u);
    EXPECT_EQ(e.code.exact.front(), 0);
    EXPECT_TRUE(e.code.anchors.empty());
    EXPECT_EQ(e.code.n_neighbours, 0);
    EXPECT_EQ(e.code.stride, 0);
    EXPECT_EQ(e.code.unspent, 0);
    EXPECT_EQ(e.code.offset.back(), 2160u - 11 * 24);  // floor(0.6 * 24 * 150) less exact tokens
    for (size_t i = 0; i < e.code.coded.size(); ++i) {
      const auto got = e.code.coefficients_of(i);
      if (allocation == RankPlan::Allocation::salience) {
        EXPECT_NEAR(got.size(), 1896.0 / 139, 1);
      }
      for (size_t j = 0; j < got.size(); ++j) {
        double sum = 0;
        for (size_t c = 0; c < 24; ++c)
          sum += static_cast<double>(e.z[static_cast<size_t>(e.code.coded[i]) * 24 + c]) *
                 static_cast<double>(e.basis.row(static_cast<int>(j))[c]);
        EXPECT_NEAR(got[j], sum, 2e-5);
      }
    }
  }
}

// Portions of 5 rows of this layer are the first, third and fifth of all; five layers have a budget
// of floor(5 * 1896 / 139) = 68 rows together.
TEST(EncodeLayer, HeadsTakeTheirPartOfOneBudget) {
  RankPlan plan = small_plan();
  plan.basis = RankPlan::Basis::heads;
  EXPECT_THROW(encode(plan), Error);  // salience says otherwise
  plan.salience = RankPlan::Salience::flat;
  try {
    encode(plan);  // a basis without portions
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
  }
  TestLayer layer = TestLayer::random(150, 2, 2, 6, 16, 3);
  ThreadPool pool(2);
  const LayerInput in = layer.input(pool, 4);
  RankBasisLayer basis = orthonormal(15, 24, 5);
  const RotationTable rotation(*in.rope, 150);
  basis.portions = {{5, 0, 40}, {5, 0, 68}, {5, 0, 69}};
  for (const uint16_t r : encode_layer(in, basis, plan, rotation, pool).rank) ASSERT_EQ(r, 10);
  basis.portions[1].reached = 69;
  const RankedCode code = encode_layer(in, basis, plan, rotation, pool);
  for (const uint16_t r : code.rank) ASSERT_EQ(r, 5);
  EXPECT_EQ(code.unspent, 1896 - 139 * 5);
  plan.least_rank = 20;  // means nothing here
  EXPECT_NO_THROW(encode_layer(in, basis, plan, rotation, pool));
}

// varrate.md 18, example 10.
TEST(EncodeLayer, NothingIsCodedWhereNothingNeedBe) {
  RankPlan plan = small_plan();
  plan.keep = {1, 1};
  EXPECT_TRUE(encode(plan).code.coded.empty());
  EXPECT_EQ(encode(plan).code.exact.size(), 150u);
  EXPECT_TRUE(encode(small_plan(), 24, 1, 10).code.coded.empty());
  plan.keep = {1, 10};
  EXPECT_THROW(encode(plan), Error);
}

TEST(EncodeLayer, RefusesABasisOfAnotherWidth) {
  TestLayer layer = TestLayer::random(150, 2, 2, 8, 16, 3);
  ThreadPool pool(1);
  const LayerInput in = layer.input(pool, 4);
  try {
    encode_layer(in, orthonormal(24, 24, 1), small_plan(), RotationTable(*in.rope, 150), pool);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("layer 4: the basis is 24 numbers wide, a token 32"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace kvist
