// SPDX-License-Identifier: MIT
#include "kvist/methods/rank/anchors.h"

#include <gtest/gtest.h>

#include <limits>

#include "kvist/core/error.h"
#include "kvist/methods/rank/layer_code.h"
#include "kvist/methods/test_layer.h"

namespace kvist {
namespace {

// varrate.md 18, example 1, and the closed form for all lengths.
TEST(Anchors, SetsHaveTheSizesOfThePaper) {
  for (const auto& [n, anchors, exact] : {std::array{16384, 1024, 1084}, {2048, 128, 188}}) {
    const AnchorSets sets = anchor_sets(n, 16, 64);
    EXPECT_EQ(sets.anchors.size(), static_cast<size_t>(anchors));
    EXPECT_EQ(sets.exact.size(), static_cast<size_t>(exact));
    EXPECT_EQ(sets.coded.size(), static_cast<size_t>(n - exact));
    EXPECT_EQ(exact_count(n, 16, 64), exact);
  }
  for (int n = 1; n < 700; ++n) {
    EXPECT_EQ(exact_count(n, 16, 64), static_cast<int64_t>(anchor_sets(n, 16, 64).exact.size()));
    if (n <= 64) continue;
    EXPECT_EQ(exact_count(n, 16, 64), (n + 15) / 16 + 60) << n;
    EXPECT_EQ(exact_count(n, 64, 64), (n + 63) / 64 + 63) << n;
  }
}

// varrate.md 18, example 5.
TEST(Anchors, NearestAreByDistanceThenPosition) {
  const std::vector<float> z = {0, 0, 1, 0, 2, 2, 3, 0, 0, 4, 5, 0, 4, 4, 2, 1, 2, 0};
  const AnchorSets sets = anchor_sets(9, 2, 0);
  ThreadPool pool(1);
  const auto neighbours = nearest_anchors(z.data(), 2, sets, 2, false, pool);
  EXPECT_EQ(neighbours, (std::vector<uint16_t>{0, 4, 4, 1, 4, 1, 1, 4}));
  const std::vector<float> residuals = {0, 0, 1, -1, 3, -1, 0, 0};
  for (size_t i = 0; i < 4; ++i) {
    float mean[2];
    anchor_mean(z.data(), 2, sets, {neighbours.data() + 2 * i, 2}, mean);
    for (size_t c = 0; c < 2; ++c) {
      EXPECT_EQ(z[static_cast<size_t>(2 * sets.coded[i]) + c] - mean[c], residuals[2 * i + c]);
    }
  }
}

TEST(Anchors, CausalOnesComeBefore) {
  RankedCode code;
  code.n_neighbours = 4;
  code.causal = true;
  const AnchorSets sets = anchor_sets(100, 8, 8);
  code.anchors = sets.anchors;
  code.coded = sets.coded;
  const TestLayer layer = TestLayer::random(100, 1, 1, 6, 0, 7);
  ThreadPool pool(2);
  code.neighbours = nearest_anchors(layer.k.data(), 6, sets, 4, true, pool);
  for (size_t i = 0; i < code.coded.size(); ++i) {
    const auto near = code.neighbours_of(i);
    EXPECT_EQ(near.size(), static_cast<size_t>(std::min(4, code.coded[i] / 8 + 1)));
    for (const uint16_t a : near) EXPECT_LT(code.anchors[a], code.coded[i]);
  }
  code.causal = false;
  EXPECT_EQ(code.neighbours_of(0).size(), 4u);
}

// Three is no power of two: the sum is divided.
TEST(Anchors, MeanRoundsAsStated) {
  const std::vector<float> z = {1, 2, 4.000001f};
  AnchorSets sets;
  sets.anchors = {0, 1, 2};
  const std::vector<uint16_t> all = {2, 0, 1};
  float mean = 0;
  anchor_mean(z.data(), 1, sets, all, &mean);
  EXPECT_EQ(mean, ((4.000001f + 1) + 2) / 3);
}

TEST(Anchors, JointRowsAreKeysBeforeRopeAndScaledValues) {
  TestLayer layer = TestLayer::random(40, 2, 1, 6, 0, 9);
  ThreadPool pool(2);
  LayerInput in = layer.input(pool);
  const RotationTable rotation(*in.rope, 40);
  const Buffer<float> z = joint_rows(in, rotation, 0.5);
  for (int t : {0, 17, 39}) {
    for (int head = 0; head < 2; ++head) {
      std::vector<float> key(layer.key(t, head), layer.key(t, head) + 6);
      PairRotation::at(*in.rope, t).inverse().apply(key.data());
      for (int c = 0; c < 6; ++c) {
        EXPECT_NEAR(z[static_cast<size_t>(t * 24 + head * 6 + c)], key[static_cast<size_t>(c)],
                    1e-6);
        EXPECT_EQ(z[static_cast<size_t>(t * 24 + 12 + head * 6 + c)], layer.value(t, head)[c] / 2);
      }
    }
  }
  layer.value(33, 1)[2] = std::numeric_limits<float>::infinity();
  in = layer.input(pool);
  try {
    joint_rows(in, rotation, 1);
    FAIL() << "accepted an infinite value";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::corrupt);
    EXPECT_NE(std::string(error.what()).find("layer 0, head 1, position 33: the value"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace kvist
