// SPDX-License-Identifier: MIT
#include "kvist/kernels/products.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kvist/core/rng.h"
#include "kvist/kernels/targets.h"

namespace kvist::kernels {
namespace {

TEST(Products, AreThoseOfDoubleUpToRounding) {
  for_each_target([](const std::string& target) {
    for (const auto& [rows, n, width] :
         {std::array{1, 1, 1}, {5, 33, 7}, {13, 64, 65}, {29, 95, 130}, {131, 40, 64}}) {
      SCOPED_TRACE(target + " " + std::to_string(n));
      Rng rng(static_cast<uint64_t>(n));
      const int a_stride = width + 3;
      std::vector<float> a(static_cast<size_t>(rows * a_stride)), b(static_cast<size_t>(n * width));
      for (auto* x : {&a, &b})
        for (float& v : *x) v = static_cast<float>(rng.gaussian());
      for (const auto kind : {PackedRows::Products::fp32, PackedRows::Products::fast}) {
        const PackedRows packed(b.data(), n, width, width, kind);
        const int padded = packed.padded();
        std::vector<float> out(static_cast<size_t>(rows * padded), -1);
        DotProducts products(packed);
        products(a.data(), rows, a_stride, n, out.data(), padded);
        for (int i = 0; i < rows; ++i) {
          for (int j = 0; j < padded; ++j) {
            double sum = 0, size = 0;
            for (int c = 0; j < n && c < width; ++c) {
              const double p = static_cast<double>(a[static_cast<size_t>(i * a_stride + c)]) *
                               static_cast<double>(b[static_cast<size_t>(j * width + c)]);
              sum += p;
              size += std::abs(p);
            }
            EXPECT_NEAR(out[static_cast<size_t>(i * padded + j)], sum, packed.unit() * size);
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace kvist::kernels
