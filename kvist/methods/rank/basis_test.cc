// SPDX-License-Identifier: MIT
#include "kvist/methods/rank/basis.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "kvist/core/error.h"
#include "kvist/core/rng.h"
#include "kvist/methods/rank/anchors.h"
#include "kvist/methods/rank/learn_basis.h"
#include "kvist/methods/test_layer.h"

namespace kvist {
namespace {

RankPlan small_plan() {
  RankPlan plan;
  plan.stride = 8;
  plan.window = 10;
  plan.neighbours = 3;
  plan.value_scale = 0.5;
  return plan;
}

// Two layers of two heads of width 4, over two texts of different length.
RankBasis learned(int n_rows, int threads, RankPlan::Basis kind = RankPlan::Basis::residual) {
  const ReadSource source{"a hash", "theta 10000", {2, 2, 4, 4}};
  BasisLearner learner(source, small_plan());
  ThreadPool pool(threads);
  for (const int n : {300, 200, 10}) {
    for (const int layer : {0, 1}) {
      TestLayer text = TestLayer::random(n, 2, 2, 4, 0, static_cast<uint64_t>(n + layer));
      const LayerInput in = text.input(pool, layer);
      learner.add(in, RotationTable(*in.rope, n));
    }
  }
  return learner.finish(kind, n_rows, pool);
}

TEST(RankBasis, RowsAreEigenvectorsOfTheResiduals) {
  const RankBasis basis = learned(16, 2);
  ASSERT_EQ(basis.layers.size(), 2u);
  // 300 and 200 tokens without 10 + 37 and 10 + 24 exact ones; the third text is all window.
  EXPECT_EQ(basis.residuals, 253 + 166);
  ThreadPool pool(1);
  std::vector<double> s(16 * 16, 0);
  for (const int n : {300, 200}) {
    TestLayer text = TestLayer::random(n, 2, 2, 4, 0, static_cast<uint64_t>(n + 1));
    const LayerInput in = text.input(pool, 1);
    const Buffer<float> z = joint_rows(in, RotationTable(*in.rope, n), 0.5);
    const AnchorSets sets = anchor_sets(n, 8, 10);
    const auto near = nearest_anchors(z.data(), 16, sets, 3, false, pool);
    for (size_t i = 0; i < sets.coded.size(); ++i) {
      float mean[16];
      anchor_mean(z.data(), 16, sets, {near.data() + 3 * i, 3}, mean);
      double e[16];
      for (size_t c = 0; c < 16; ++c)
        e[c] = static_cast<double>(z[static_cast<size_t>(sets.coded[i]) * 16 + c] - mean[c]);
      for (size_t a = 0; a < 16; ++a)
        for (size_t b = 0; b < 16; ++b) s[a * 16 + b] += e[a] * e[b] / 419;
    }
  }
  const RankBasisLayer& layer = basis.layers[1];
  double trace = 0;
  for (int j = 0; j < 16; ++j) {
    const float* v = layer.row(j);
    size_t largest = 0;
    for (size_t a = 0; a < 16; ++a) {
      double product = 0;
      for (size_t b = 0; b < 16; ++b) product += s[a * 16 + b] * static_cast<double>(v[b]);
      const auto value = static_cast<double>(layer.eigenvalues[static_cast<size_t>(j)]);
      EXPECT_NEAR(product, value * static_cast<double>(v[a]), 1e-4) << j;
      if (std::abs(v[a]) > std::abs(v[largest])) largest = a;
    }
    EXPECT_GT(v[largest], 0) << j;
    if (j > 0) {
      EXPECT_LE(layer.eigenvalues[static_cast<size_t>(j)],
                layer.eigenvalues[static_cast<size_t>(j - 1)]);
    }
    trace += s[static_cast<size_t>(j) * 17];
  }
  EXPECT_NEAR(layer.residual_energy, trace, 1e-4 * trace);
  double raw = 0;
  for (const float x : layer.raw_eigenvalues) raw += static_cast<double>(x);
  EXPECT_LT(raw, layer.total_energy);
  EXPECT_GT(raw, 0);
}

// z of the coded tokens of layer 1 in both texts: [419][16].
std::vector<double> whole_tokens() {
  ThreadPool pool(1);
  std::vector<double> out;
  for (const int n : {300, 200}) {
    TestLayer text = TestLayer::random(n, 2, 2, 4, 0, static_cast<uint64_t>(n + 1));
    const LayerInput in = text.input(pool, 1);
    const Buffer<float> z = joint_rows(in, RotationTable(*in.rope, n), 0.5);
    for (const int32_t t : anchor_sets(n, 8, 10).coded)
      for (size_t c = 0; c < 16; ++c)
        out.push_back(static_cast<double>(z[static_cast<size_t>(t) * 16 + c]));
  }
  return out;
}

// Whether rows and eigenvalues of layer 1 are those of the second moment of whole tokens, seen
// through coordinates [first, first + width) alone.
void expect_directions_of_tokens(const RankBasisLayer& layer, int j, size_t first, size_t width) {
  const std::vector<double> z = whole_tokens();
  const float* v = layer.row(j);
  std::vector<double> product(16, 0);
  for (size_t t = 0; t < 419; ++t) {
    double dot = 0;
    for (size_t c = 0; c < 16; ++c) dot += z[t * 16 + c] * static_cast<double>(v[c]);
    for (size_t c = 0; c < 16; ++c) product[c] += dot * z[t * 16 + c] / 419;
  }
  const auto value = static_cast<double>(layer.eigenvalues[static_cast<size_t>(j)]);
  for (size_t c = 0; c < 16; ++c) {
    if (c < first || c >= first + width)
      EXPECT_EQ(v[c], 0) << j;
    else
      EXPECT_NEAR(product[c], value * static_cast<double>(v[c]), 1e-4) << j;
  }
}

TEST(RankBasis, OfTokensIsThatOfWholeTokensAboutTheOrigin) {
  const RankBasis basis = learned(16, 2, RankPlan::Basis::token);
  EXPECT_EQ(basis.kind, RankPlan::Basis::token);
  for (int j = 0; j < 16; ++j) expect_directions_of_tokens(basis.layers[1], j, 0, 16);
  double sum = 0;
  for (const float x : basis.layers[1].eigenvalues) sum += static_cast<double>(x);
  EXPECT_NEAR(sum, basis.layers[1].total_energy, 1e-4 * sum);
}

// Two heads of width 4 make one group of keys and one of values, each in one portion of 8 rows.
TEST(RankBasis, OfHeadsTurnsKeysAndValuesApart) {
  const RankBasis basis = learned(16, 2, RankPlan::Basis::heads);
  for (const RankBasisLayer& layer : basis.layers) {
    ASSERT_EQ(layer.portions.size(), 2u);
    EXPECT_EQ(layer.portions[0].rows, 8);
    EXPECT_DOUBLE_EQ(layer.portions[0].worth, 1.0 / 8);
  }
  for (int j = 0; j < 16; ++j) expect_directions_of_tokens(basis.layers[1], j, j < 8 ? 0 : 8, 8);
  // Equal worth: layer after layer, keys before values.
  EXPECT_EQ(basis.layers[0].portions[1].reached, 16);
  EXPECT_EQ(basis.layers[1].portions[0].reached, 24);
  EXPECT_EQ(basis.layers[0].rows_within(7), 0);
  EXPECT_EQ(basis.layers[0].rows_within(31), 16);
  EXPECT_EQ(basis.layers[1].rows_within(31), 8);
  EXPECT_EQ(basis.layers[1].rows_within(32), 16);
}

// Six heads of width 16: groups of four and of two, in portions of 32 rows.
TEST(RankBasis, PortionsGoWhereMostOfAGroupsEnergyIs) {
  constexpr int kHeads = 6, kWidth = 16, kLayers = 3;
  BasisLearner learner({"a hash", "theta 10000", {kLayers, kHeads, kHeads, kWidth}}, small_plan());
  ThreadPool pool(2);
  for (int layer = 0; layer < kLayers; ++layer) {
    TestLayer text =
        TestLayer::random(400, kHeads, kHeads, kWidth, 0, static_cast<uint64_t>(layer));
    const LayerInput in = text.input(pool, layer);
    learner.add(in, RotationTable(*in.rope, 400));
  }
  const RankBasis basis = learner.finish(RankPlan::Basis::heads, 1000, pool);
  const auto group_of = [](const float* row) {  // 0, 1 of keys, 2, 3 of values
    int c = 0;
    while (row[c] == 0) ++c;
    return c / (kHeads * kWidth) * 2 + c % (kHeads * kWidth) / (4 * kWidth);
  };
  struct Step {
    double worth;
    int layer, rows;
  };
  std::vector<Step> greedy;
  for (int layer = 0; layer < kLayers; ++layer) {
    const RankBasisLayer& of = basis.layers[static_cast<size_t>(layer)];
    ASSERT_EQ(of.n_rows, 2 * kHeads * kWidth);
    double energy[4] = {};
    for (int j = 0; j < of.n_rows; ++j)
      energy[group_of(of.row(j))] += static_cast<double>(of.eigenvalues[static_cast<size_t>(j)]);
    int j = 0, seen[4] = {};
    for (const RankBasisLayer::Portion& portion : of.portions) {
      const int group = group_of(of.row(j));
      EXPECT_EQ(portion.rows, 32);
      EXPECT_LT(seen[group], group % 2 == 0 ? 2 : 1);  // of 64 and of 32 rows
      ++seen[group];
      double sum = 0;
      for (const int end = j + portion.rows; j < end; ++j) {
        EXPECT_EQ(group_of(of.row(j)), group);
        sum += static_cast<double>(of.eigenvalues[static_cast<size_t>(j)]);
      }
      greedy.push_back({sum / energy[group] / portion.rows, layer, portion.rows});
    }
  }
  std::stable_sort(greedy.begin(), greedy.end(),
                   [](const Step& a, const Step& b) { return a.worth > b.worth; });
  int64_t total = 0;
  std::vector<int> rows(kLayers, 0);
  for (const Step& step : greedy) {
    total += step.rows;
    rows[static_cast<size_t>(step.layer)] += step.rows;
    for (int layer = 0; layer < kLayers; ++layer)
      EXPECT_EQ(basis.layers[static_cast<size_t>(layer)].rows_within(total),
                rows[static_cast<size_t>(layer)]);
  }
  EXPECT_EQ(total, int64_t{kLayers} * 2 * kHeads * kWidth);
}

TEST(RankBasis, IsTheSameForAnyNumberOfThreadsAndAPrefixOfMoreRows) {
  const RankBasis one = learned(16, 1), three = learned(16, 3), few = learned(5, 2);
  EXPECT_EQ(encode(one), encode(three));
  for (size_t l = 0; l < 2; ++l) {
    EXPECT_EQ(few.layers[l].n_rows, 5);
    EXPECT_TRUE(std::equal(few.layers[l].rows.begin(), few.layers[l].rows.end(),
                           one.layers[l].rows.begin()));
  }
}

TEST(RankBasis, RowsOfF16AreThoseThatAreStored) {
  SecondMoment moment(24);
  ThreadPool pool(1);
  Rng rng(3);
  std::vector<float> x(100 * 24);
  for (float& v : x) v = static_cast<float>(rng.gaussian());
  moment.add(x.data(), 100, pool);
  const RankBasisLayer wide = principal_rows(moment, 24, Scalar::f32);
  const RankBasisLayer half = principal_rows(moment, 24, Scalar::f16);
  for (size_t i = 0; i < wide.rows.size(); ++i)
    EXPECT_EQ(half.rows[i], to_float(to_f16(wide.rows[i])));
}

// Fewer residuals than rows: the rest of the basis completes it.
TEST(RankBasis, IsCompleteWhateverTheRank) {
  SecondMoment moment(12);
  ThreadPool pool(1);
  const std::vector<float> x = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  moment.add(x.data(), 1, pool);
  const RankBasisLayer layer = principal_rows(moment, 12, Scalar::f32);
  EXPECT_EQ(layer.n_rows, 12);
  EXPECT_NEAR(layer.eigenvalues[0], 650, 1e-3);
  EXPECT_NEAR(layer.eigenvalues[1], 0, 1e-3);
}

TEST(RankBasis, RanksOfEnergy) {
  const std::vector<float> values = {5, 3, 1, 1};
  EXPECT_EQ(rank_of_energy(values, 0.5), 1);
  EXPECT_EQ(rank_of_energy(values, 0.51), 2);
  EXPECT_EQ(rank_of_energy(values, 0.9), 3);
  EXPECT_EQ(rank_of_energy(values, 1), 4);
}

TEST(RankBasis, FilesKeepEverything) {
  for (const auto kind :
       {RankPlan::Basis::residual, RankPlan::Basis::token, RankPlan::Basis::heads}) {
    const RankBasis basis = learned(9, 2, kind);
    const auto folder = std::filesystem::temp_directory_path() / "kvist_basis_test";
    std::filesystem::create_directories(folder);
    const std::string path = folder / "a.varrate";
    save(basis, path);
    const RankBasis again = load_basis(path);
    EXPECT_EQ(encode(again), encode(basis));
    EXPECT_EQ(again.source, basis.source);
    EXPECT_EQ(again.layers[1].rows, basis.layers[1].rows);
    EXPECT_EQ(again.residuals, basis.residuals);
    EXPECT_EQ(again.kind, kind);
    EXPECT_EQ(again.layers[1].portions.size(), kind == RankPlan::Basis::heads ? 2u : 0u);
    EXPECT_EQ(again.layers[1].rows_within(17), basis.layers[1].rows_within(17));
    std::filesystem::remove_all(folder);
    EXPECT_THROW(load_basis(path), Error);
  }
}

// Version 1 had no kinds.
TEST(RankBasis, AnOlderFileIsRefusedByItsVersion) {
  std::vector<uint8_t> bytes = encode(learned(3, 1));
  ASSERT_EQ(bytes[8], 2);
  bytes[8] = 1;
  try {
    decode_basis(bytes, "x.varrate");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::corrupt);
    EXPECT_STREQ(
        error.what(),
        "x.varrate: version: found 1; expected 2; make the file anew with kvist calibrate");
  }
}

// Every byte counts: whatever is changed or missing is refused as corrupt and by name.
TEST(RankBasis, DamagedFilesAreRefused) {
  for (const auto kind : {RankPlan::Basis::residual, RankPlan::Basis::heads}) {
    const std::vector<uint8_t> bytes = encode(learned(3, 1, kind));
    const auto refused = [](std::vector<uint8_t> damaged) {
      try {
        decode_basis(damaged, "x.varrate");
        return false;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::corrupt);
        EXPECT_TRUE(std::string(error.what()).starts_with("x.varrate: ")) << error.what();
        return true;
      }
    };
    for (size_t i = 0; i < bytes.size(); i += i < 200 ? 1 : 37) {
      std::vector<uint8_t> changed = bytes;
      changed[i] ^= 0x10;
      EXPECT_TRUE(refused(changed)) << "byte " << i;
      EXPECT_TRUE(refused({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(i)})) << i;
    }
  }
}

TEST(RankBasis, AnotherModelOrRopeOrScaleIsRefused) {
  const RankBasis basis = learned(3, 1);
  EXPECT_NO_THROW(basis.check_fits(basis.source, small_plan()));
  RankPlan plan = small_plan();
  plan.value_scale = 1;
  EXPECT_THROW(basis.check_fits(basis.source, plan), Error);
  plan = small_plan();
  plan.basis = RankPlan::Basis::token;
  try {
    basis.check_fits(basis.source, plan);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "the basis is of the kind residual; it is to be used with basis=token");
  }
  ReadSource other = basis.source;
  other.rope = "theta 500000";
  try {
    basis.check_fits(other, small_plan());
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    for (const char* side : {"theta 10000", "theta 500000"})
      EXPECT_NE(std::string(error.what()).find(side), std::string::npos) << error.what();
  }
  other = basis.source;
  other.model = "another hash";
  EXPECT_THROW(basis.check_fits(other, small_plan()), Error);
}

TEST(RankBasis, TextsThatAreAllWindowTeachNothing) {
  const ReadSource source{"a hash", "theta 10000", {1, 2, 4, 4}};
  ThreadPool pool(1);
  EXPECT_THROW(BasisLearner(source, small_plan()).finish(RankPlan::Basis::token, 4, pool), Error);
}

}  // namespace
}  // namespace kvist
