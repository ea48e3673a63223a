// SPDX-License-Identifier: MIT
// The passes over weights against one item at a time, on every target and at every length.
#include "kvist/kernels/depth_cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "kvist/core/rng.h"
#include "kvist/kernels/targets.h"

namespace kvist::kernels {
namespace {

constexpr int kThresholds = 8;

std::vector<float> weights(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> out(n);
  for (float& x : out) {
    x = static_cast<float>(rng.uniform());
    if (rng.below(7) == 0) x = rng.below(2) == 0 ? 0.0f : -0.0f;
    if (rng.below(11) == 0) x = std::numeric_limits<float>::denorm_min();
  }
  return out;
}

TEST(DepthCut, SplitsAsOneItemAtATimeDoes) {
  int32_t above[kThresholds], below[kThresholds];
  for (int i = 0; i < kThresholds; ++i) {
    above[i] = i < 6 ? std::bit_cast<int32_t>(0.1f + 0.15f * static_cast<float>(i)) : 0x7F800000;
    below[i] = i < 6 ? above[i] - 400000 : 0x7F800000;
  }
  for_each_target([&](const std::string& target) {
    for (size_t n = 0; n < 70; ++n) {
      const auto w = weights(n, n + 1);
      std::vector<uint8_t> depths(n), want(n);
      std::vector<int32_t> items(n + 16), want_items;
      const DepthSplit got = split_depths(w.data(), static_cast<int64_t>(n), above, below, 1,
                                          depths.data(), items.data());
      int64_t levels = 0;
      for (size_t i = 0; i < n; ++i) {
        int sure = 0, reach = 0;
        for (int t = 0; t < kThresholds; ++t) {
          sure += std::bit_cast<int32_t>(w[i]) >= above[t];
          reach += std::bit_cast<int32_t>(w[i]) >= below[t];
        }
        levels += sure;
        want[i] = static_cast<uint8_t>(1 + sure);
        if (reach > sure) want_items.push_back(static_cast<int32_t>(i));
      }
      EXPECT_EQ(depths, want) << target;
      EXPECT_EQ(got.levels, levels) << target;
      items.resize(static_cast<size_t>(got.items));
      EXPECT_EQ(items, want_items) << target;
    }
  });
}

TEST(DepthCut, SeesTheRangeAndWhatIsNoWeight) {
  for_each_target([&](const std::string& target) {
    for (size_t n = 1; n < 70; ++n) {
      auto w = weights(n, n);
      w[n / 2] = 0.75f;
      int64_t positive = 0;
      float least = 0.75f, most = 0.75f;
      for (float x : w) {
        if (!(x > 0)) continue;
        ++positive;
        least = std::min(least, x), most = std::max(most, x);
      }
      const WeightRange got = weight_range(w.data(), static_cast<int64_t>(n));
      EXPECT_TRUE(got.valid) << target;
      std::vector<uint32_t> bins(2 * kWeightBins), want(kWeightBins), sums;
      const WeightRange counted = count_weights(w.data(), static_cast<int64_t>(n), bins.data());
      EXPECT_EQ(counted.least, got.least);
      EXPECT_EQ(counted.most, got.most);
      EXPECT_EQ(counted.positive, got.positive);
      for (float x : w)
        ++want[static_cast<size_t>(std::max(0, std::bit_cast<int32_t>(x)) >> kWeightBinShift)];
      for (size_t i = 0; i < want.size(); ++i) sums.push_back(bins[2 * i] + bins[2 * i + 1]);
      EXPECT_EQ(sums, want) << target;
      EXPECT_EQ(got.positive, positive) << target;
      EXPECT_EQ(got.least, std::bit_cast<int32_t>(least)) << target;
      EXPECT_EQ(got.most, std::bit_cast<int32_t>(most)) << target;
      for (float bad : {-1e-30f, std::numeric_limits<float>::infinity(),
                        std::numeric_limits<float>::quiet_NaN()}) {
        auto x = w;
        x[n - 1] = bad;
        EXPECT_FALSE(weight_range(x.data(), static_cast<int64_t>(n)).valid) << target << " " << bad;
        x = w;
        x[0] = bad;
        EXPECT_FALSE(weight_range(x.data(), static_cast<int64_t>(n)).valid) << target << " " << bad;
      }
    }
  });
}

}  // namespace
}  // namespace kvist::kernels
