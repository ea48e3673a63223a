// SPDX-License-Identifier: MIT
// What VarRate's encoder computes, stage by stage, against reference arrays.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "kvist/core/rng.h"
#include "kvist/core/thread_pool.h"
#include "kvist/kernels/products.h"
#include "kvist/methods/array_rows.h"
#include "kvist/methods/rank/anchors.h"
#include "kvist/methods/rank/budget.h"
#include "kvist/methods/rank/encode_layer.h"
#include "kvist/methods/rank/learn_basis.h"
#include "kvist/methods/rank/salience.h"
#include "kvist/methods/rank/water_fill.h"
#include "tests/support/golden.h"

namespace kvist {
namespace {

using nlohmann::json;

// Keys, values and window queries of one layer, as the cases name them.
class Layer {
 public:
  Layer(const golden::Suite& suite, const json& item)
      : k_(suite.floats(item["inputs"]["k"])),
        v_(suite.floats(item["inputs"]["v"])),
        q_(suite.floats(item["inputs"]["q"])) {
    const auto positions = suite.ints(item["inputs"]["q_pos"]).data;
    const int kv_heads = static_cast<int>(k_.shape[1]), d = static_cast<int>(k_.shape[2]);
    const int heads = static_cast<int>(q_.shape[1]);
    keys_ = std::make_unique<ArrayRows>(k_.data.data(), kv_heads, d);
    values_ = std::make_unique<ArrayRows>(v_.data.data(), kv_heads, d);
    for (int f = 0; f < d / 2; ++f) rope_.frequencies.push_back(std::pow(1e5, -2.0 * f / d));
    rope_.adjacent = true;
    input.n_layers = 30;
    input.n_tokens = 320;
    input.kv_heads = kv_heads;
    input.heads = heads;
    input.head_dim = d;
    input.keys = keys_.get();
    input.values = values_.get();
    input.rope = &rope_;
    input.logit_scale = 1 / std::sqrt(static_cast<float>(d));
    input.pool = &pool_;
    const std::string name = item["inputs"]["k"];
    input.layer = std::stoi(name.substr(name.find('L') + 1));
    // The rows of the window: the last 64 positions of the prefix, which lie side by side.
    int64_t first = 0;
    while (positions[static_cast<size_t>(first)] != input.n_tokens - 64) ++first;
    input.q = {q_.data.data() + first * heads * d, {64, heads, d}};
    EXPECT_EQ(positions[static_cast<size_t>(first + 63)], input.n_tokens - 1);
    rotation = std::make_unique<RotationTable>(rope_, input.n_tokens);
  }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  LayerInput input;
  std::unique_ptr<RotationTable> rotation;
  int width() const { return 2 * input.kv_heads * input.head_dim; }

 private:
  golden::Array<float> k_, v_, q_;
  std::unique_ptr<ArrayRows> keys_, values_;
  Rope rope_;
  ThreadPool pool_{2};
};

// Anchor positions of all neighbours, nearest first.
std::vector<int32_t> positions_of(const std::vector<uint16_t>& neighbours, const AnchorSets& sets) {
  std::vector<int32_t> out;
  for (const uint16_t a : neighbours) out.push_back(sets.anchors[a]);
  return out;
}

std::vector<float> residuals(const Buffer<float>& z, int width, const AnchorSets& sets,
                             const std::vector<uint16_t>& neighbours, size_t c) {
  std::vector<float> out;
  std::vector<float> mean(static_cast<size_t>(width));
  for (size_t i = 0; i < sets.coded.size(); ++i) {
    anchor_mean(z.data(), width, sets, {neighbours.data() + i * c, c}, mean.data());
    for (size_t j = 0; j < mean.size(); ++j)
      out.push_back(z[static_cast<size_t>(sets.coded[i]) * mean.size() + j] - mean[j]);
  }
  return out;
}

class GoldenVarRate : public testing::Test {
 protected:
  void SetUp() override {
    const std::string folder = golden::whole_suite("varrate");
    if (folder.empty()) GTEST_SKIP() << "the reference arrays are not here";
    suite_ = std::make_unique<golden::Suite>(folder);
  }
  // Calls fn(case) for all cases whose name begins so; fails where there is none.
  template <typename Fn>
  void each(const std::string& prefix, const Fn& fn) {
    int seen = 0;
    for (const json& item : suite_->cases()) {
      const std::string name = item["name"];
      if (!name.starts_with(prefix)) continue;
      SCOPED_TRACE(name);
      fn(item);
      ++seen;
    }
    EXPECT_GT(seen, 0);
  }
  std::unique_ptr<golden::Suite> suite_;
};

TEST_F(GoldenVarRate, UnrotatesKeys) {
  int compared = 0;  // of large arrays, only one layer's are kept
  each("unrotate_", [&](const json& item) {
    const Layer layer(*suite_, item);
    const Buffer<float> z = joint_rows(layer.input, *layer.rotation, 1);
    compared += suite_->expect(item, "z", std::vector<float>(z.begin(), z.end()));
  });
  EXPECT_GT(compared, 0);
}

TEST_F(GoldenVarRate, FindsAnchorsAndResiduals) {
  int compared = 0;
  each("anchors_", [&](const json& item) {
    const Layer layer(*suite_, item);
    const Buffer<float> z = joint_rows(layer.input, *layer.rotation, 1);
    const AnchorSets sets = anchor_sets(layer.input.n_tokens, 16, 64);
    EXPECT_TRUE(suite_->expect(item, "anchors", sets.anchors));
    EXPECT_TRUE(suite_->expect(item, "exact", sets.exact));
    EXPECT_TRUE(suite_->expect(item, "coded", sets.coded));
    const auto neighbours =
        nearest_anchors(z.data(), layer.width(), sets, 4, false, *layer.input.pool);
    EXPECT_TRUE(suite_->expect(item, "neighbours", positions_of(neighbours, sets)));
    compared += suite_->expect(item, "residual", residuals(z, layer.width(), sets, neighbours, 4));
  });
  EXPECT_GT(compared, 0);
}

TEST_F(GoldenVarRate, FindsAnchorsAtAWiderStride) {
  each("rate_", [&](const json& item) {
    if (!item["expected"].contains("neighbours")) return;
    const Layer layer(*suite_, item);
    const Buffer<float> z = joint_rows(layer.input, *layer.rotation, 1);
    const AnchorSets sets = anchor_sets(layer.input.n_tokens, item["params"]["stride"], 64);
    const auto neighbours =
        nearest_anchors(z.data(), layer.width(), sets, 4, false, *layer.input.pool);
    EXPECT_TRUE(suite_->expect(item, "neighbours", positions_of(neighbours, sets)));
  });
}

std::vector<float> as_floats(const std::vector<double>& x) { return {x.begin(), x.end()}; }
std::vector<int32_t> as_ints(const Ranks& ranks) { return {ranks.begin(), ranks.end()}; }

TEST_F(GoldenVarRate, MeasuresSalience) {
  each("salience_L", [&](const json& item) {
    const Layer layer(*suite_, item);
    const AnchorSets sets = anchor_sets(layer.input.n_tokens, 16, 64);
    EXPECT_TRUE(suite_->expect(item, "s", as_floats(window_means(layer.input, RankPlan{}))));
    const auto shat = salience(layer.input, RankPlan{}, sets.coded, {});
    EXPECT_TRUE(suite_->expect(item, "shat", as_floats(shat)));
    const auto q = quantized_salience(shat);
    const json& expected = item["expected"]["q"];
    const double least = expected["tolerance"]["abs"], share = expected["tolerance"]["rel"];
    const auto want = suite_->ints(expected["array"]).data;
    ASSERT_EQ(q.size(), want.size());
    for (size_t i = 0; i < q.size(); ++i) EXPECT_NEAR(q[i], want[i], least + share * want[i]) << i;
  });
  each("salience_twin_", [&](const json& item) {
    const Layer layer(*suite_, item);
    const AnchorSets sets = anchor_sets(layer.input.n_tokens, 16, 64);
    RankPlan plan;
    plan.salience = RankPlan::Salience::twin;
    EXPECT_TRUE(
        suite_->expect(item, "shat", as_floats(salience(layer.input, plan, sets.coded, {}))));
  });
}

RankPlan plan_of(const json& item) {
  RankPlan plan;
  plan.keep = Ratio::parse(item["params"]["kappa"].get<std::string>());
  plan.stride = item["params"]["stride"];
  return plan;
}

TEST_F(GoldenVarRate, DividesTheBudget) {
  each("rate_", [&](const json& item) {
    const Layer layer(*suite_, item);
    const json& params = item["params"];
    const RankPlan plan = plan_of(item);
    const RankBudget budget = rank_budget(plan, 320, 384, 384);
    EXPECT_EQ(budget.exact, params["n_ref"].get<int64_t>());
    EXPECT_EQ(budget.coded, params["coded"].get<int64_t>());
    EXPECT_EQ(budget.spendable, params["B"].get<int64_t>() - params["unspent"].get<int64_t>());
    const FillLimits limits{.total = budget.spendable, .least = 16, .most = 384};
    const auto given = suite_->ints(item["inputs"]["salience"]).data;
    const std::vector<uint32_t> q(given.begin(), given.end());
    EXPECT_TRUE(suite_->expect(item, "ranks", as_ints(water_fill(q, limits))));
    EXPECT_TRUE(suite_->expect(item, "split", as_ints(split_fill(q, limits))));

    const AnchorSets sets = anchor_sets(320, plan.stride, plan.window);
    const auto control = [&](RankPlan::Salience kind) {
      RankPlan of = plan;
      of.salience = kind;
      return as_ints(
          water_fill(quantized_salience(salience(layer.input, of, sets.coded, {})), limits));
    };
    EXPECT_TRUE(suite_->expect(item, "flat", control(RankPlan::Salience::flat)));
    EXPECT_TRUE(suite_->expect(item, "random", control(RankPlan::Salience::random)));
    // The permutation of the given numbers is that of the measured ones.
    std::vector<uint32_t> shuffled = q;
    Rng rng(plan.seed, static_cast<uint32_t>(layer.input.layer), 0, 3);
    shuffle(std::span<uint32_t>(shuffled), rng);
    EXPECT_TRUE(suite_->expect(item, "shuffle", as_ints(water_fill(shuffled, limits))));
  });
  each("fill_", [&](const json& item) {
    const auto given = suite_->ints(item["inputs"]["q"]).data;
    const FillLimits limits{.total = item["params"]["B"],
                            .least = item["params"]["r_min"],
                            .most = item["params"]["R"]};
    EXPECT_TRUE(suite_->expect(
        item, "r", as_ints(water_fill(std::vector<uint32_t>(given.begin(), given.end()), limits))));
  });
}

// Eigenvectors are defined up to a rotation where eigenvalues are close: projections are compared.
TEST_F(GoldenVarRate, LearnsABasis) {
  each("moment_self_", [&](const json& item) {
    const Layer layer(*suite_, item);
    const Buffer<float> z = joint_rows(layer.input, *layer.rotation, 1);
    const AnchorSets sets = anchor_sets(320, 16, 64);
    const auto neighbours = nearest_anchors(z.data(), 384, sets, 4, false, *layer.input.pool);
    const auto e = residuals(z, 384, sets, neighbours, 4);
    SecondMoment moment(384);
    moment.add(e.data(), static_cast<int64_t>(sets.coded.size()), *layer.input.pool);
    const RankBasisLayer basis = principal_rows(moment, 384, Scalar::f32);
    const auto probes = suite_->floats(item["inputs"]["probes"]).data;
    std::vector<float> eigenvalues, by_s, by_8, by_32;
    for (size_t j = 0; j < 96; ++j)
      eigenvalues.push_back(basis.eigenvalues[j] * static_cast<float>(moment.count));
    for (size_t p = 0; p < 4; ++p) {
      std::vector<double> projected(384, 0);
      for (int j = 0; j < 32; ++j) {
        double dot = 0;
        for (size_t c = 0; c < 384; ++c)
          dot += static_cast<double>(probes[p * 384 + c]) * static_cast<double>(basis.row(j)[c]);
        for (size_t c = 0; c < 384; ++c) projected[c] += dot * static_cast<double>(basis.row(j)[c]);
        if (j == 7) by_8.insert(by_8.end(), projected.begin(), projected.end());
      }
      by_32.insert(by_32.end(), projected.begin(), projected.end());
      for (size_t c = 0; c < 384; ++c) {
        double sum = 0;
        for (size_t r = 0; r < 384; ++r)
          sum += static_cast<double>(probes[p * 384 + r]) * moment.sum[r * 384 + c];
        by_s.push_back(static_cast<float>(sum));
      }
    }
    EXPECT_TRUE(suite_->expect(item, "eigenvalues", eigenvalues));
    EXPECT_TRUE(suite_->expect(item, "s_probe", by_s));
    EXPECT_TRUE(suite_->expect(item, "proj8", by_8));
    EXPECT_TRUE(suite_->expect(item, "proj32", by_32));
  });
}

RankBasisLayer given_basis(const golden::Suite& suite, const json& item) {
  const auto array = suite.floats(item["inputs"]["basis"]);
  RankBasisLayer basis;
  basis.n_rows = static_cast<int>(array.shape[0]);
  basis.width = static_cast<int>(array.shape[1]);
  basis.rows = array.data;
  return basis;
}

// From ranks, neighbours and basis that are given.
TEST_F(GoldenVarRate, CodesResiduals) {
  int compared = 0;
  each("code_", [&](const json& item) {
    const Layer layer(*suite_, item);
    const RankBasisLayer basis = given_basis(*suite_, item);
    const auto ranks = suite_->ints(item["inputs"]["ranks"]).data;
    const Buffer<float> z = joint_rows(layer.input, *layer.rotation, 1);
    const AnchorSets sets = anchor_sets(320, item["params"]["stride"], 64);
    std::vector<uint16_t> neighbours;
    for (const int32_t position : suite_->ints(item["inputs"]["neighbours"]).data)
      neighbours.push_back(static_cast<uint16_t>(position / item["params"]["stride"].get<int>()));
    const auto e = residuals(z, 384, sets, neighbours, 4);
    const kernels::PackedRows rows(basis.rows.data(), 384, 384, 384);
    std::vector<float> all(sets.coded.size() * 384), coefficients, error, squares;
    kernels::DotProducts products(rows);
    products(e.data(), static_cast<int>(sets.coded.size()), 384, 384, all.data(), 384);
    for (size_t i = 0; i < sets.coded.size(); ++i) {
      const auto rank = static_cast<size_t>(ranks[i]);
      coefficients.insert(coefficients.end(), all.data() + i * 384, all.data() + i * 384 + rank);
      double whole = 0, left = 0;
      std::vector<double> rest(e.data() + i * 384, e.data() + (i + 1) * 384);
      for (const double x : rest) whole += x * x;
      for (size_t j = 0; j < rank; ++j)
        for (size_t c = 0; c < 384; ++c)
          rest[c] -= static_cast<double>(all[i * 384 + j]) *
                     static_cast<double>(basis.row(static_cast<int>(j))[c]);
      for (const double x : rest) left += x * x;
      squares.push_back(static_cast<float>(whole));
      error.push_back(static_cast<float>(left));
    }
    EXPECT_TRUE(suite_->expect(item, "err", error));
    EXPECT_TRUE(suite_->expect(item, "resid2", squares));
    compared += suite_->expect(item, "coef", coefficients);
  });
  EXPECT_GT(compared, 0);
}

// The stages in a row. Salience in fp32 may move a rank by one; the rest is as given.
TEST_F(GoldenVarRate, EncodesALayer) {
  each("code_", [&](const json& item) {
    const Layer layer(*suite_, item);
    const RankPlan plan = plan_of(item);
    const RankedCode code = encode_layer(layer.input, given_basis(*suite_, item), plan,
                                         *layer.rotation, *layer.input.pool);
    const auto ranks = suite_->ints(item["inputs"]["ranks"]).data;
    const auto neighbours = suite_->ints(item["inputs"]["neighbours"]).data;
    ASSERT_EQ(code.rank.size(), ranks.size());
    int64_t spent = 0;
    for (size_t i = 0; i < ranks.size(); ++i) {
      EXPECT_NEAR(code.rank[i], ranks[i], 1) << i;
      spent += code.rank[i];
      for (size_t k = 0; k < 4; ++k)
        EXPECT_EQ(code.anchors[code.neighbours[4 * i + k]], neighbours[4 * i + k]);
    }
    EXPECT_EQ(spent, item["params"]["B"].get<int64_t>());
    if (!item["expected"].contains("coef")) return;
    const auto want = suite_->floats(item["expected"]["coef"]["array"]).data;
    size_t begin = 0;
    for (size_t i = 0; i < ranks.size(); begin += static_cast<size_t>(ranks[i++])) {
      const auto got = code.coefficients_of(i);
      for (size_t j = 0; j < std::min<size_t>(got.size(), static_cast<size_t>(ranks[i])); ++j)
        EXPECT_NEAR(got[j], want[begin + j],
                    2e-5 + 1e-4 * std::abs(static_cast<double>(want[begin + j])));
    }
  });
}

}  // namespace
}  // namespace kvist
