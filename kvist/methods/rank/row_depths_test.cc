// SPDX-License-Identifier: MIT
// Importance of rows against the average it stands for, and purchases against a heap of increments.
#include "kvist/methods/rank/row_depths.h"

#include <gtest/gtest.h>

#include <cmath>
#include <queue>

#include "kvist/core/rng.h"
#include "kvist/methods/rank/rotation_table.h"

namespace kvist {
namespace {

RankBasisLayer random_rows(int rows, int width, uint64_t seed) {
  RankBasisLayer basis;
  basis.n_rows = rows;
  basis.width = width;
  Rng rng(seed);
  for (int i = 0; i < rows * width; ++i) basis.rows.push_back(static_cast<float>(rng.gaussian()));
  return basis;
}

// varrate and tree (composition, stage 1): the mean of the squared logit of a turned row over many
// positions.
TEST(RowDepths, ImportanceIsTheMeanOverPositions) {
  constexpr int kKvHeads = 2, kGroup = 3, kDim = 16, kPositions = 20000;
  for (const bool adjacent : {false, true})
    for (const int frequencies : {8, 6}) {  // all channels turn, or twelve of sixteen
      Rope rope;
      rope.adjacent = adjacent;
      for (int f = 0; f < frequencies; ++f)
        rope.frequencies.push_back(0.3 + 0.37 * static_cast<double>(f));
      const RotationTable turns(rope, kPositions);
      const RankBasisLayer basis = random_rows(5, 2 * kKvHeads * kDim, 3);
      Rng rng(4);
      std::vector<float> q(static_cast<size_t>(kKvHeads * kGroup * kDim));
      for (float& x : q) x = static_cast<float>(rng.gaussian());
      std::vector<float> channels(static_cast<size_t>(kKvHeads * kDim)), got(5);
      row_importance(basis, {q.data(), kKvHeads, kGroup, kDim, frequencies, adjacent}, channels,
                     got);
      for (int j = 0; j < 5; ++j) {
        double want = 0;
        for (int t = 0; t < kPositions; ++t)
          for (int head = 0; head < kKvHeads; ++head) {
            std::vector<float> v(basis.row(j) + head * kDim, basis.row(j) + (head + 1) * kDim);
            turns.turn(t, v.data());
            for (int h = 0; h < kGroup; ++h) {
              double dot = 0;
              for (int c = 0; c < kDim; ++c)
                dot += static_cast<double>(v[static_cast<size_t>(c)]) *
                       static_cast<double>(q[static_cast<size_t>((head * kGroup + h) * kDim + c)]);
              want += dot * dot / kPositions;
            }
          }
        EXPECT_NEAR(static_cast<double>(got[static_cast<size_t>(j)]) / want, 1, 2e-3) << j;
      }
    }
}

// One increment after another to the largest gain per bit.
std::vector<uint8_t> by_heap(const std::vector<float>& weights, const std::vector<uint32_t>& tokens,
                             int most, int64_t budget) {
  struct Next {
    double gain;
    size_t row;
    bool operator<(const Next& o) const { return gain < o.gain || (gain == o.gain && row > o.row); }
  };
  std::vector<uint8_t> depths(weights.size(), 0);
  std::priority_queue<Next> heap;
  const auto push = [&](size_t row) {
    if (depths[row] < most && weights[row] > 0)
      heap.push({static_cast<double>(weights[row]) *
                     static_cast<double>(kernels::kTreeGains[depths[row]]),
                 row});
  };
  for (size_t row = 0; row < weights.size(); ++row) push(row);
  for (; !heap.empty() && tokens[heap.top().row] <= budget;) {
    const size_t row = heap.top().row;
    heap.pop();
    budget -= tokens[row];
    ++depths[row];
    push(row);
  }
  return depths;
}

TEST(RowDepths, IncrementsAreBoughtByGainPerBit) {
  Rng rng(8);
  DepthWorkspace workspace;
  for (int round = 0; round < 300; ++round) {
    const auto rows = static_cast<size_t>(1 + rng.below(120));
    workspace.reserve(static_cast<int64_t>(rows));
    std::vector<float> weights;
    std::vector<uint32_t> tokens;
    uint32_t n = 2000;
    int64_t all = 0;
    const int most = 1 + static_cast<int>(rng.below(8));
    for (size_t j = 0; j < rows; ++j) {
      // Many equal weights, and some of nothing.
      weights.push_back(rng.below(9) == 0 ? 0 : std::exp(static_cast<float>(rng.below(12)) - 6));
      tokens.push_back(n);
      n = std::max(1u, n - static_cast<uint32_t>(rng.below(60)));
      all += int64_t{tokens.back()} * most;
    }
    for (const double share : {0.0, 0.1, 0.37, 0.8, 1.0, 2.0}) {
      const auto budget = static_cast<int64_t>(share * static_cast<double>(all));
      std::vector<uint8_t> depths(rows);
      const int64_t bought = choose_row_depths(weights, tokens, most, budget, depths, workspace);
      EXPECT_EQ(depths, by_heap(weights, tokens, most, budget)) << round;
      int64_t bits = 0;
      for (size_t j = 0; j < rows; ++j) bits += int64_t{depths[j]} * tokens[j];
      EXPECT_EQ(bought, bits);
      EXPECT_LE(bought, budget);
    }
  }
}

TEST(RowDepths, WeightsThatAreNoneReadEverything) {
  const std::vector<float> weights = {1, std::nanf("")};
  const std::vector<uint32_t> tokens = {10, 5};
  std::vector<uint8_t> depths(2);
  DepthWorkspace workspace;
  workspace.reserve(2);
  EXPECT_EQ(choose_row_depths(weights, tokens, 6, 3, depths, workspace), 90);
  EXPECT_EQ(depths, (std::vector<uint8_t>{6, 6}));
}

}  // namespace
}  // namespace kvist
