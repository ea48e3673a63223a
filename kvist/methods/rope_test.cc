// SPDX-License-Identifier: MIT
#include "kvist/methods/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kvist/core/rng.h"

namespace kvist {
namespace {

TEST(BackRotation, UndoesTheRotationOfEachPosition) {
  constexpr int kRows = 37, kHeads = 3, kHeadDim = 20, kFirst = 1000;
  for (const bool adjacent : {false, true}) {
    const Rope rope{.frequencies = {1, 0.3, 0.01, 1e-4}, .magnitude = 1.3, .adjacent = adjacent};
    Rng rng(7);
    std::vector<float> before(kRows * kHeads * kHeadDim);
    for (float& x : before) x = static_cast<float>(rng.gaussian());
    std::vector<float> after = before, back(before.size());
    for (int t = 0; t < kRows; ++t)
      for (int h = 0; h < kHeads; ++h)
        PairRotation::at(rope, kFirst + t).apply(after.data() + (t * kHeads + h) * kHeadDim);
    ThreadPool pool(2);
    BackRotation(rope, kFirst, kRows)
        .apply({after.data(), {kRows, kHeads, kHeadDim}}, back.data(), pool);
    for (size_t i = 0; i < before.size(); ++i) ASSERT_NEAR(back[i], before[i], 2e-6) << i;
  }
}

TEST(PairRotation, ShiftsFromAnyPositionToALaterOrEarlierOne) {
  for (const bool adjacent : {false, true}) {
    const Rope rope{.frequencies = {1, 0.3, 0.01}, .magnitude = 1.3, .adjacent = adjacent};
    for (const int to : {1234, 3}) {
      std::vector<double> here{1, -2, 3, 0.5, -0.25, 4, 7}, there = here;
      PairRotation::at(rope, 40).apply(here.data());
      PairRotation::shift(rope, to - 40).apply(here.data());
      PairRotation::at(rope, to).apply(there.data());
      for (size_t i = 0; i < here.size(); ++i) EXPECT_NEAR(here[i], there[i], 1e-12) << i;
    }
  }
}

}  // namespace
}  // namespace kvist
