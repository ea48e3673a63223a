// SPDX-License-Identifier: MIT
// Tests of the passes over rows and of the moments against double arithmetic written plainly, on
// every SIMD target.
#include "kvist/kernels/rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kvist/core/rng.h"
#include "kvist/kernels/moments.h"
#include "kvist/kernels/targets.h"

namespace kvist::kernels {
namespace {

std::vector<float> gaussians(int n, uint64_t seed, float mean = 0) {
  Rng rng(seed);
  std::vector<float> out;
  for (int i = 0; i < n; ++i) out.push_back(mean + static_cast<float>(rng.gaussian()));
  return out;
}

double at(const std::vector<float>& x, int i) {
  return static_cast<double>(x[static_cast<size_t>(i)]);
}

TEST(Rows, AreDoubleSumsInOrderOnEveryTarget) {
  for (int d : {1, 5, 8, 17, 64}) {
    for (int n : {0, 1, 7, 8, 9, 31, 100}) {
      const std::vector<float> rows = gaussians(n * d, static_cast<uint64_t>(n * 97 + d));
      std::vector<double> vector, weights, norms, dots, sum(static_cast<size_t>(d), 0.0);
      for (int c = 0; c < d; ++c) vector.push_back(std::sin(c + 1.0));
      for (int t = 0; t < n; ++t) weights.push_back(std::cos(t + 1.0));
      for (int t = 0; t < n; ++t) {
        double square = 0, dot = 0;
        for (int c = 0; c < d; ++c) {
          const double x = at(rows, t * d + c);
          const auto column = static_cast<size_t>(c);
          square += x * x;
          dot += x * vector[column];
          sum[column] += weights[static_cast<size_t>(t)] * x;
        }
        norms.push_back(std::sqrt(square));
        dots.push_back(dot);
      }
      for_each_target([&](const std::string& target) {
        std::vector<double> out(static_cast<size_t>(n)), total(static_cast<size_t>(d));
        row_norms(rows.data(), n, d, out.data());
        EXPECT_EQ(out, norms) << target << " n " << n << " d " << d;
        row_dots(rows.data(), n, d, vector.data(), out.data());
        EXPECT_EQ(out, dots) << target << " n " << n << " d " << d;
        weighted_sum(rows.data(), n, d, weights.data(), total.data());
        EXPECT_EQ(total, sum) << target << " n " << n << " d " << d;
      });
    }
  }
}

// A sum of m products, each at most `size`, is off by m eps size at most, in any order.
constexpr double kEps = 0x1p-23;

TEST(Moments, AreSumsOfProductsOfShiftedRows) {
  for (int d : {1, 3, 6, 16, 64, 80}) {
    for (int rows : {0, 1, 63, 256, 257, 600}) {
      const int stride = d + 3;
      const std::vector<float> x = gaussians(rows * stride, static_cast<uint64_t>(rows + d), 5);
      const std::vector<float> shift(static_cast<size_t>(d), 5.0f);
      for_each_target([&](const std::string& target) {
        std::vector<double> first(static_cast<size_t>(d), 1.0), alone(first),
            second(static_cast<size_t>(d * d), 2.0);
        add_moments(x.data(), rows, stride, d, shift.data(), first.data(), second.data());
        add_moments(x.data(), rows, stride, d, shift.data(), alone.data(), nullptr);
        EXPECT_EQ(first, alone);
        for (int i = 0; i < d; ++i) {
          double sum = 1;
          for (int t = 0; t < rows; ++t)
            sum += static_cast<double>(x[static_cast<size_t>(t * stride + i)] - 5.0f);
          ASSERT_NEAR(first[static_cast<size_t>(i)], sum, 1e-9) << target;
          for (int j = 0; j < i; ++j)
            ASSERT_EQ(second[static_cast<size_t>(i * d + j)], 2.0) << target;
          for (int j = i; j < d; ++j) {
            double product = 2, size = 0;
            for (int t = 0; t < rows; ++t) {
              const double p = static_cast<double>(x[static_cast<size_t>(t * stride + i)] - 5.0f) *
                               static_cast<double>(x[static_cast<size_t>(t * stride + j)] - 5.0f);
              product += p;
              size += std::fabs(p);
            }
            ASSERT_NEAR(second[static_cast<size_t>(i * d + j)], product, 256 * kEps * size + 1e-12)
                << target << " d " << d << " rows " << rows;
          }
        }
      });
    }
  }
}

TEST(ExpectedLogits, AreALinearAndAQuadraticForm) {
  for (int d : {1, 3, 6, 16, 64, 80}) {
    for (int n : {0, 1, 63, 64, 65, 130}) {
      const std::vector<float> keys = gaussians(n * d, static_cast<uint64_t>(n * 7 + d));
      const std::vector<float> linear = gaussians(d, 1);
      std::vector<float> quadratic = gaussians(d * d, 2);
      for (int i = 0; i < d; ++i)
        for (int j = 0; j < i; ++j)
          quadratic[static_cast<size_t>(i * d + j)] = quadratic[static_cast<size_t>(j * d + i)];
      const QuadraticForm form(quadratic.data(), d);
      for_each_target([&](const std::string& target) {
        std::vector<double> both(static_cast<size_t>(n)), alone(both);
        expected_logits(keys.data(), n, d, linear.data(), &form, both.data());
        expected_logits(keys.data(), n, d, linear.data(), nullptr, alone.data());
        for (int t = 0; t < n; ++t) {
          double straight = 0, bent = 0, length = 0, size = 0;
          for (int i = 0; i < d; ++i) {
            const double k = at(keys, t * d + i);
            straight += at(linear, i) * k;
            length += std::fabs(at(linear, i) * k);
            for (int j = 0; j < d; ++j) {
              const double p = k * at(quadratic, i * d + j) * at(keys, t * d + j) / 2;
              bent += p;
              size += std::fabs(p);
            }
          }
          ASSERT_NEAR(alone[static_cast<size_t>(t)], straight, 6 * kEps * length + 1e-12) << target;
          ASSERT_NEAR(both[static_cast<size_t>(t)], straight + bent,
                      d * kEps * (size + length) + 1e-12)
              << target << " d " << d << " n " << n;
        }
      });
    }
  }
}

}  // namespace
}  // namespace kvist::kernels
