// SPDX-License-Identifier: MIT
#include "kvist/model/bf16_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "kvist/core/half.h"
#include "kvist/core/rng.h"

namespace kvist {
namespace {

std::vector<uint16_t> random_bf16(int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<uint16_t> out(static_cast<size_t>(n));
  for (uint16_t& x : out) x = to_bf16(static_cast<float>(rng.gaussian())).bits;
  return out;
}

// columns, rows, n
using Shape = std::tuple<int, int, int>;
class Bf16ProductShapes : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    if (!bf16_product_available()) GTEST_SKIP() << "no oneDNN, or no AMX on this CPU";
    std::tie(columns_, rows_, n_) = GetParam();
    x_ = random_bf16(int64_t{n_} * columns_, 1);
    w_ = random_bf16(int64_t{rows_} * columns_, 2);
  }
  std::vector<float> run(int n_workers, const PackedBf16* packed) {
    Bf16Product product(columns_, rows_, n_, n_workers, packed);
    std::vector<float> y(static_cast<size_t>(n_) * static_cast<size_t>(rows_), NAN);
    for (int i = 0; i < n_workers; ++i) {
      EXPECT_TRUE(product.run(i, x_.data(), packed != nullptr ? nullptr : w_.data(), y.data()));
    }
    return y;
  }
  int columns_ = 0, rows_ = 0, n_ = 0;
  std::vector<uint16_t> x_, w_;
};

// Products of two bf16 numbers are exact in f32; each of the sums rounds at most once a term.
TEST_P(Bf16ProductShapes, IsTheSumOfProducts) {
  const PackedBf16 packed = pack_bf16(w_.data(), columns_, rows_);
  for (const PackedBf16* form : {static_cast<const PackedBf16*>(nullptr), &packed}) {
    const std::vector<float> y = run(2, form);
    for (int i = 0; i < n_; ++i) {
      for (int r = 0; r < rows_; ++r) {
        double sum = 0, size = 0;
        for (int c = 0; c < columns_; ++c) {
          const double term = double{to_float(bf16{x_[static_cast<size_t>(i * columns_ + c)]})} *
                              double{to_float(bf16{w_[static_cast<size_t>(r * columns_ + c)]})};
          sum += term;
          size += std::abs(term);
        }
        ASSERT_NEAR(double{y[static_cast<size_t>(i * rows_ + r)]}, sum,
                    columns_ * 0x1p-24 * size + 1e-30)
            << "row " << i << ", output " << r << (form != nullptr ? ", packed" : ", plain");
      }
    }
  }
}

TEST_P(Bf16ProductShapes, DoesNotDependOnTheNumberOfWorkers) {
  const PackedBf16 packed = pack_bf16(w_.data(), columns_, rows_);
  const std::vector<float> plain = run(1, nullptr), tiled = run(1, &packed);
  for (const int n_workers : {2, 3, 5, 40}) {
    EXPECT_EQ(run(n_workers, nullptr), plain) << n_workers;
    EXPECT_EQ(run(n_workers, &packed), tiled) << n_workers;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Bf16ProductShapes,
                         ::testing::Values(Shape{32, 64, 2}, Shape{64, 64, 1}, Shape{80, 100, 3},
                                           Shape{576, 960, 8}, Shape{576, 130, 33},
                                           Shape{37, 129, 191}, Shape{64, 192, 192},
                                           Shape{160, 33, 257}, Shape{1536, 576, 17}));

}  // namespace
}  // namespace kvist
