// SPDX-License-Identifier: MIT
// Tests of views: indexing by shape and strides, slices, and conversion to const.
#include "kvist/core/tensor.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace kvist {
namespace {

TEST(TensorView, IndexesInCOrder) {
  std::vector<int> data(24);
  std::iota(data.begin(), data.end(), 0);
  const TensorView<int, 3> view(data.data(), {2, 3, 4});
  EXPECT_EQ(view.size(), 24);
  EXPECT_EQ(view.stride(0), 12);
  EXPECT_EQ(view.stride(2), 1);
  EXPECT_EQ(view(0, 0, 0), 0);
  EXPECT_EQ(view(1, 2, 3), 23);
  EXPECT_EQ(view[1](2, 3), 23);
  EXPECT_EQ(view[1][2](0), 20);
  view(1, 0, 0) = -1;
  EXPECT_EQ(data[12], -1);
}

TEST(TensorView, FollowsStrides) {
  std::vector<int> data(24);
  std::iota(data.begin(), data.end(), 0);
  const TensorView<int, 2> transposed(data.data(), {4, 6}, {1, 4});
  EXPECT_EQ(transposed(3, 5), 23);
  EXPECT_EQ(transposed(1, 2), 9);
  EXPECT_EQ(transposed[2](1), 6);
}

TEST(TensorView, BecomesConstAndMayBeEmpty) {
  std::vector<float> data(6, 2.0f);
  const TensorView<float, 2> view(data.data(), {2, 3});
  const TensorView<const float, 2> fixed = view;
  EXPECT_EQ(fixed.data(), data.data());
  EXPECT_EQ(fixed.dim(1), 3);
  EXPECT_FALSE(fixed.empty());
  EXPECT_TRUE((TensorView<float, 2>(data.data(), {0, 3})).empty());
  EXPECT_TRUE((TensorView<float, 3>().empty()));
}

}  // namespace
}  // namespace kvist
