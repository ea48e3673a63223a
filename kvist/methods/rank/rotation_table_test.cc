// SPDX-License-Identifier: MIT
#include "kvist/methods/rank/rotation_table.h"

#include <gtest/gtest.h>

#include <array>

namespace kvist {
namespace {

// varrate.md 18, example 6: theta 10,000, head width 4, position 1.
TEST(RotationTable, TurnsBothPairings) {
  const std::array<float, 4> x = {1, 2, 3, 4};
  Rope rope{.frequencies = {1.0, 0.01}};
  std::array<float, 4> y = x;
  RotationTable(rope, 2).turn(1, y.data());
  const std::array<double, 4> halves = {-1.984111, 1.959901, 2.462378, 4.019800};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(y[i], halves[i], 1e-6) << i;

  rope.adjacent = true;
  const RotationTable table(rope, 2);
  y = x;
  table.turn(1, y.data());
  const std::array<double, 4> neighbours = {-1.142640, 1.922076, 2.959851, 4.029800};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(y[i], neighbours[i], 1e-6) << i;
  table.turn_back(1, y.data());
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(y[i], x[i], 1e-6) << i;
}

TEST(RotationTable, FirstPositionKeepsItsBitsAndSoDoChannelsWithoutPair) {
  const RotationTable table(Rope{.frequencies = {0.5}}, 8);
  const std::array<float, 3> x = {0.1f, -0.2f, 0.3f};
  std::array<float, 3> y = x;
  table.turn(0, y.data());
  EXPECT_EQ(y, x);
  table.turn(7, y.data());
  EXPECT_NE(y[0], x[0]);
  EXPECT_EQ(y[2], x[2]);
}

}  // namespace
}  // namespace kvist
