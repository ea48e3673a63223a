// SPDX-License-Identifier: MIT
// varrate.md, sections 10, 11, 13 and 18: what a prefix takes, and the paper's own figures.
#include "kvist/methods/rank/footprint.h"

#include <gtest/gtest.h>

namespace kvist {
namespace {

TEST(RankFootprint, SetsAndBudgets) {
  const RankGeometry a = geometry_of(16384, 2048, {1, 5});
  EXPECT_EQ(a.anchors, 1024);
  EXPECT_EQ(a.exact, 1084);
  EXPECT_EQ(a.coded, 15300);
  EXPECT_EQ(a.rank_sum, 4490854);
  const RankGeometry b = geometry_of(2048, 384, {1, 5});
  EXPECT_EQ(b.anchors, 128);
  EXPECT_EQ(b.exact, 188);
  EXPECT_EQ(b.rank_sum, 85094);
  EXPECT_EQ(geometry_of(50, 384, {1, 1}).coded, 0);
}

// 20 + 0.1953 + 0.0228: the one reading of the paper's 20.22 %.
TEST(RankFootprint, ThePapersFigure) {
  const auto cells = rank_paper_cells();
  EXPECT_NEAR(cells[0].ours, 20.218, 5e-4);
  for (const RankPaperCell& cell : cells)
    EXPECT_TRUE(cell.equal) << cell.what << ": " << cell.ours << ", printed " << cell.paper;
}

TEST(RankFootprint, WidthsOfCoefficients) {
  const RankGeometry g = geometry_of(16384, 2048, {1, 5});
  EXPECT_NEAR(footprint(g, 16).scalars, 20, 1e-4);
  EXPECT_NEAR(footprint(g, 16).indices, 20.18, 5e-3);
  EXPECT_NEAR(footprint(g, 8).indices, 13.49, 5e-3);
  EXPECT_NEAR(footprint(g, 4).indices, 10.14, 5e-3);
  EXPECT_NEAR(footprint(g, 3).indices, 9.31, 5e-3);
  EXPECT_NEAR(footprint(g, 8, 32).indices, 14.33, 5e-3);
  EXPECT_NEAR(footprint(g, 4, 32).indices, 10.98, 5e-3);
  EXPECT_NEAR(footprint(g, 3, 32).indices, 10.14, 5e-3);
}

// At small widths metadata matters: packed indices are 0.41 % of a cache of 2,048 tokens.
TEST(RankFootprint, ChargesMetadata) {
  const RankGeometry g = geometry_of(2048, 384, {1, 5});
  const double ranks_and_orders = 100.0 * 3 * 1860 / (2048 * 768);
  const double offsets = 100.0 * 4 * 30 / (2048 * 768);
  EXPECT_NEAR(footprint(g, 16).bytes - footprint(g, 16).scalars, 0.414 + ranks_and_orders + offsets,
              2e-3);
}

}  // namespace
}  // namespace kvist
