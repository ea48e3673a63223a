// SPDX-License-Identifier: MIT
// The same bits as plain loops, on every target.
#include "kvist/kernels/columns.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kvist/core/rng.h"
#include "kvist/kernels/targets.h"

namespace kvist::kernels {
namespace {

std::vector<float> gaussians(int n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> out(static_cast<size_t>(n));
  for (float& x : out) x = static_cast<float>(rng.gaussian());
  return out;
}

TEST(Columns, ProductsAreSummedInOrder) {
  for_each_target([](const std::string& target) {
    for (const auto& [rows, depth, n] :
         {std::array{1, 1, 1}, {4, 4, 32}, {7, 9, 33}, {64, 64, 64}, {5, 80, 71}}) {
      SCOPED_TRACE(target + " " + std::to_string(n));
      const auto m = gaussians(rows * depth, 1), x = gaussians(depth * n, 2);
      std::vector<float> got(static_cast<size_t>(rows * n), -1), want = got;
      for (int i = 0; i < rows; ++i) {
        for (int t = 0; t < n; ++t) {
          float sum = 0;
          for (int j = 0; j < depth; ++j) {
            const float product =
                x[static_cast<size_t>(j * n + t)] * m[static_cast<size_t>(i * depth + j)];
            sum += product;
          }
          want[static_cast<size_t>(i * n + t)] = sum;
        }
      }
      multiply_columns(m.data(), rows, depth, x.data(), n, got.data());
      EXPECT_EQ(got, want);
    }
  });
}

TEST(Columns, ButterfliesOfNeighboursComeFirst) {
  for_each_target([](const std::string& target) {
    for (const auto& [outer, inner] :
         {std::pair{1, 5}, {2, 16}, {4, 1}, {8, 64}, {16, 7}, {64, 64}, {128, 3}}) {
      SCOPED_TRACE(target + " " + std::to_string(outer));
      std::vector<float> got = gaussians(outer * inner, 3), want = got;
      for (int half = 1; half < outer; half *= 2) {
        for (int row = 0; row < outer; ++row) {
          if ((row & half) != 0) continue;
          for (int i = 0; i < inner; ++i) {
            float& a = want[static_cast<size_t>(row * inner + i)];
            float& b = want[static_cast<size_t>((row + half) * inner + i)];
            const float x = a, y = b;
            a = x + y, b = x - y;
          }
        }
      }
      hadamard_columns(got.data(), outer, inner);
      EXPECT_EQ(got, want);
    }
  });
}

}  // namespace
}  // namespace kvist::kernels
