// SPDX-License-Identifier: MIT
#include "kvist/methods/rank/salience.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kvist/core/error.h"
#include "kvist/core/half.h"
#include "kvist/methods/test_layer.h"

namespace kvist {
namespace {

using Kind = RankPlan::Salience;

RankPlan plan(Kind kind, int window) {
  RankPlan p;
  p.salience = kind;
  p.scoring_window = window;
  return p;
}

std::vector<int32_t> positions(int begin, int end) {
  std::vector<int32_t> out(static_cast<size_t>(end - begin));
  std::iota(out.begin(), out.end(), begin);
  return out;
}

// varrate.md 18, example 3; halves go to the even neighbour.
TEST(Salience, IsQuantisedToTheNearest) {
  EXPECT_EQ(quantized_salience(std::vector<double>{0, .1, .5, 1}),
            (std::vector<uint32_t>{0, 1677722, 8388608, 16777216}));
  EXPECT_EQ(quantized_salience(std::vector<double>{0x1p-25, 0x3p-25}),
            (std::vector<uint32_t>{0, 2}));
}

// Attention in double, pooled and stretched as the specification says.
TEST(Salience, WindowIsPooledMeanAttention) {
  constexpr int kN = 60, kWindow = 8;
  TestLayer layer = TestLayer::random(kN, 2, 3, 6, kWindow, 21);
  ThreadPool pool(2);
  const LayerInput in = layer.input(pool);
  std::vector<double> s(kN - kWindow, 0);
  for (int t = 0; t < kWindow; ++t) {
    for (int h = 0; h < in.heads; ++h) {
      std::vector<double> a;
      for (int j = 0; j <= kN - kWindow + t; ++j) {
        double dot = 0;
        for (int c = 0; c < 6; ++c)
          dot += static_cast<double>(in.q(t, h, c)) * static_cast<double>(layer.key(j, h / 3)[c]);
        a.push_back(std::exp(dot * static_cast<double>(in.logit_scale)));
      }
      const double total = std::accumulate(a.begin(), a.end(), 0.0);
      for (size_t j = 0; j < s.size(); ++j) s[j] += a[j] / total / kWindow / in.heads;
    }
  }
  const auto means = window_means(in, plan(Kind::window, kWindow));
  for (size_t j = 0; j < s.size(); ++j) EXPECT_NEAR(means[j], s[j], 1e-6);

  // Coded from 5 on, every one but multiples of 4, up to and into the window's positions.
  std::vector<int32_t> coded;
  for (int t = 5; t < 56; ++t)
    if (t % 4 != 0) coded.push_back(t);
  std::vector<double> want;
  for (const int t : coded) {
    double sum = 0;
    for (int j = t - 2; j <= t + 2; ++j)
      if (j < kN - kWindow) sum += s[static_cast<size_t>(j)];
    if (t < kN - kWindow) want.push_back(sum / 5);
  }
  const auto [low, high] = std::minmax_element(want.begin(), want.end());
  const double least = *low, most = *high;
  for (double& w : want) w = (w - least) / (most - least);
  want.resize(coded.size(), 1);
  const auto got = salience(in, plan(Kind::window, kWindow), coded, {});
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5) << coded[i];
  RankPlan root = plan(Kind::window, kWindow);
  root.salience_power = 0.5;
  EXPECT_NEAR(salience(in, root, coded, {})[3], std::sqrt(got[3]), 1e-12);

  // The mix lies between its parts; the shuffle holds the same numbers.
  RankPlan mix = plan(Kind::mix, kWindow);
  mix.mix_twin = 0.25;
  const auto mixed = salience(in, mix, coded, {});
  const auto twin = salience(in, plan(Kind::twin, kWindow), coded, {});
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(mixed[i], 0.75 * got[i] + 0.25 * twin[i], 1e-12);
  auto shuffled = salience(in, plan(Kind::shuffle, kWindow), coded, {}), sorted = got;
  EXPECT_NE(shuffled, got);
  std::sort(shuffled.begin(), shuffled.end());
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(shuffled, sorted);
}

TEST(Salience, WeightsRoundedToBf16AreThoseOfTheReference) {
  TestLayer layer = TestLayer::random(70, 1, 1, 8, 1, 4);
  ThreadPool pool(1);
  const LayerInput in = layer.input(pool);
  RankPlan p = plan(Kind::window, 1);
  const auto exact = window_means(in, p);
  p.bf16_scores = true;
  const auto rounded = window_means(in, p);
  int differ = 0;
  for (size_t t = 0; t < exact.size(); ++t) {
    EXPECT_EQ(rounded[t], static_cast<double>(to_float(to_bf16(static_cast<float>(exact[t])))));
    differ += rounded[t] != exact[t];
  }
  EXPECT_GT(differ, 10);
}

// A token that one query alone sees, with a value far from all outputs, weighs most.
TEST(Salience, FisherSeesValuesFarFromTheOutput) {
  TestLayer layer(40, 1, 1, 4, 4);
  layer.key(7, 0)[0] = layer.key(9, 0)[0] = 30;
  layer.value(7, 0)[1] = 3;
  layer.value(9, 0)[1] = -1;
  for (int t = 0; t < 4; ++t) layer.q[static_cast<size_t>(4 * t)] = 1;
  ThreadPool pool(2);
  // Both have almost half the attention of each query, and the output is (3 - 1) / 2 = 1.
  const auto s = salience(layer.input(pool), plan(Kind::fisher, 4), positions(0, 36), {});
  EXPECT_EQ(s[7], 1);
  EXPECT_NEAR(s[9], 1, 1e-3);
  EXPECT_LT(s[8], 1e-3);
}

TEST(Salience, ControlsNeedNoQuery) {
  TestLayer layer(100, 1, 1, 4, 0);
  ThreadPool pool(1);
  const LayerInput in = layer.input(pool);
  const auto coded = positions(0, 90);
  EXPECT_EQ(salience(in, plan(Kind::flat, 64), coded, {}), std::vector<double>(90, 1));
  EXPECT_EQ(salience(in, plan(Kind::norm, 64), positions(0, 3), std::vector<double>{4, 8, 5}),
            (std::vector<double>{0, 1, 0.25}));
  const auto shape = salience(in, plan(Kind::position, 64), coded, {});
  EXPECT_EQ(shape[0], 1);
  EXPECT_NEAR(shape[64], std::exp(-1.0), 1e-12);
  EXPECT_NEAR(shape[89], std::exp(-10 / 12.5), 1e-12);
  RankPlan gold = plan(Kind::oracle, 64);
  gold.gold_begin = 3;
  gold.gold_end = 5;
  EXPECT_EQ(salience(in, gold, positions(2, 6), {}), (std::vector<double>{0, 1, 1, 0}));
  for (const Kind kind : {Kind::twin, Kind::norm, Kind::flat, Kind::random, Kind::position})
    EXPECT_EQ(plan(kind, 64).window_queries(), 0);
  EXPECT_EQ(plan(Kind::mix, 32).window_queries(), 32);
  EXPECT_THROW(salience(in, plan(Kind::window, 8), coded, {}), Error);
}

// A prompt no longer than the window scores nothing: every token alike.
TEST(Salience, ShortPromptsAreFlat) {
  TestLayer layer = TestLayer::random(20, 1, 1, 4, 20, 1);
  ThreadPool pool(1);
  EXPECT_EQ(salience(layer.input(pool), plan(Kind::window, 20), positions(0, 9), {}),
            std::vector<double>(9, 1));
}

}  // namespace
}  // namespace kvist
