// SPDX-License-Identifier: MIT
// The split that buys 16-bit activations from 8-bit products.
#include "kvist/model/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kvist/core/half.h"
#include "kvist/core/rng.h"

namespace kvist {
namespace {

// What ggml makes of a block of 32: 8-bit steps of an fp16 scale.
std::vector<float> rounded(const std::vector<float>& x) {
  std::vector<float> out(x.size());
  for (size_t begin = 0; begin < x.size(); begin += 32) {
    float most = 0;
    for (size_t i = begin; i < begin + 32; ++i) most = std::max(most, std::fabs(x[i]));
    const float d = most / 127.0f, inverse = d != 0 ? 1.0f / d : 0.0f;
    for (size_t i = begin; i < begin + 32; ++i) {
      out[i] = to_float(to_f16(d)) * std::round(x[i] * inverse);
    }
  }
  return out;
}

TEST(SplitActivation, HighIsHeldExactlyAndBothAddUp) {
  Rng rng(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<float> x(96), high(96), low(96);
    for (float& v : x) v = static_cast<float>(rng.gaussian() * std::exp(3 * rng.gaussian()));
    if (round == 0) std::fill(x.begin(), x.begin() + 32, 0.0f);
    split_activation(x.data(), 96, high.data(), low.data());
    EXPECT_EQ(rounded(high), high);
    const std::vector<float> kept = rounded(low);
    for (size_t begin = 0; begin < 96; begin += 32) {
      float most = 0;
      for (size_t i = begin; i < begin + 32; ++i) most = std::max(most, std::fabs(x[i]));
      for (size_t i = begin; i < begin + 32; ++i) {
        EXPECT_EQ(high[i] + low[i], x[i]);
        EXPECT_NEAR(high[i] + kept[i], x[i], most / 127 / 2 / 127);  // half a step of half a step
      }
    }
  }
}

}  // namespace
}  // namespace kvist
