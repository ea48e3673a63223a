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
RankBasis learned(int n_rows, int threads) {
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
  return learner.finish(n_rows, pool);
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
  const RankBasis basis = learned(9, 2);
  const auto folder = std::filesystem::temp_directory_path() / "kvist_basis_test";
  std::filesystem::create_directories(folder);
  const std::string path = folder / "a.varrate";
  save(basis, path);
  const RankBasis again = load_basis(path);
  EXPECT_EQ(encode(again), encode(basis));
  EXPECT_EQ(again.source, basis.source);
  EXPECT_EQ(again.layers[1].rows, basis.layers[1].rows);
  EXPECT_EQ(again.residuals, basis.residuals);
  std::filesystem::remove_all(folder);
  EXPECT_THROW(load_basis(path), Error);
}

// Every byte counts: whatever is changed or missing is refused as corrupt and by name.
TEST(RankBasis, DamagedFilesAreRefused) {
  const std::vector<uint8_t> bytes = encode(learned(3, 1));
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

TEST(RankBasis, AnotherModelOrRopeOrScaleIsRefused) {
  const RankBasis basis = learned(3, 1);
  EXPECT_NO_THROW(basis.check_fits(basis.source, 0.5));
  EXPECT_THROW(basis.check_fits(basis.source, 1), Error);
  ReadSource other = basis.source;
  other.rope = "theta 500000";
  try {
    basis.check_fits(other, 0.5);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    for (const char* side : {"theta 10000", "theta 500000"})
      EXPECT_NE(std::string(error.what()).find(side), std::string::npos) << error.what();
  }
  other = basis.source;
  other.model = "another hash";
  EXPECT_THROW(basis.check_fits(other, 0.5), Error);
}

TEST(RankBasis, TextsThatAreAllWindowTeachNothing) {
  const ReadSource source{"a hash", "theta 10000", {1, 2, 4, 4}};
  ThreadPool pool(1);
  EXPECT_THROW(BasisLearner(source, small_plan()).finish(4, pool), Error);
}

}  // namespace
}  // namespace kvist
