// SPDX-License-Identifier: MIT
// Widths of coefficients: the worked example, round trips, and what is refused.
#include "kvist/methods/rank/coefficients.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "kvist/core/error.h"
#include "kvist/core/rng.h"
#include "kvist/kernels/tree_code.h"

namespace kvist {
namespace {

// varrate.md 10: eight coefficients at 3 bits.
TEST(Coefficients, WorkedExampleOfAGroup) {
  const std::array<float, 8> x = {.5f, -1.25f, 2, 0, .75f, -.5f, 1, -1};
  std::array<uint8_t, 8> codes;
  const GroupScale scale = code_group(x, 3, codes.data());
  EXPECT_EQ(to_float(scale.lo), -1.25f);
  EXPECT_EQ(to_float(scale.step), 0.46435546875f);
  EXPECT_EQ(codes, (std::array<uint8_t, 8>{4, 0, 7, 3, 4, 2, 5, 1}));
}

TEST(Coefficients, EqualNumbersHaveNoStep) {
  const std::array<float, 3> x = {3, 3, 3};
  std::array<uint8_t, 3> codes;
  const GroupScale scale = code_group(x, 8, codes.data());
  EXPECT_EQ(to_float(scale.step), 0);
  EXPECT_EQ(to_float(scale.lo), 3);
  EXPECT_EQ(codes, (std::array<uint8_t, 3>{}));
}

TEST(Coefficients, PacksEveryLengthAndWidth) {
  Rng rng(3);
  for (int bits = 1; bits <= 8; ++bits) {
    for (int n = 0; n <= kRankChunk; ++n) {
      uint8_t codes[kRankChunk] = {}, back[kRankChunk] = {}, packed[kRankChunk + 1] = {};
      for (int i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(rng.below(uint64_t{1} << bits));
      const int bytes = (n * bits + 7) / 8;
      packed[bytes] = 0xA5;
      pack_codes(codes, n, bits, packed);
      EXPECT_EQ(packed[bytes], 0xA5);
      unpack_codes(packed, n, bits, back);
      for (int i = 0; i < n; ++i) {
        ASSERT_EQ(back[i], codes[i]) << bits << " bits, " << n << " codes";
        for (int b = 0; b < bits; ++b)
          ASSERT_EQ(packed[(i * bits + b) / 8] >> (i * bits + b) % 8 & 1, codes[i] >> b & 1);
      }
    }
  }
}

TEST(Coefficients, ShiftIsTheSmallestThatFits) {
  for (const auto& [x, want] : {std::pair{0.0f, 0},
                                {32768.0f, 0},
                                {-32769.0f, 1},
                                {65536.0f, 1},
                                {1e30f, 85},
                                {std::numeric_limits<float>::max(), 113}}) {
    const std::array<float, 2> both = {1, x};
    EXPECT_EQ(shift_of(both), want) << x;
  }
}

TEST(Coefficients, GroupErrorIsHalfAStep) {
  Rng rng(5);
  for (const int bits : {3, 4, 8}) {
    std::array<float, kRankChunk> x;
    for (float& y : x) y = static_cast<float>(rng.gaussian());
    std::array<uint8_t, kRankChunk> codes;
    const GroupScale scale = code_group(x, bits, codes.data());
    const float lo = to_float(scale.lo), step = to_float(scale.step);
    // Rounding of lo and of the step moves both ends of the range.
    const float most = step / 2 + std::abs(lo) * 0x1p-11f + 255 * step * 0x1p-11f;
    for (size_t i = 0; i < x.size(); ++i)
      EXPECT_NEAR(lo + step * static_cast<float>(codes[i]), x[i], most) << bits;
  }
}

TEST(Coefficients, TreeCodesKeepTheDistortionOfNormalNumbers) {
  constexpr int kRows = 384, kTokens = 200;
  std::vector<float> eigenvalues;
  for (int j = 0; j < kRows; ++j) eigenvalues.push_back(std::exp(-0.02f * static_cast<float>(j)));
  eigenvalues.back() = 0;  // its floor is 2^-20 of the first
  const std::vector<float> sigma = row_sigmas(eigenvalues);
  EXPECT_EQ(sigma.back(), sigma.front() * 0x1p-20f);
  Rng rng(8);
  double error = 0, energy = 0;
  for (int t = 0; t < kTokens; ++t) {
    std::vector<float> x;
    for (int j = 0; j < kRows - 1; ++j)
      x.push_back(3 * sigma[static_cast<size_t>(j)] * static_cast<float>(rng.gaussian()));
    const f16 gain = gain_of(x, sigma.data());
    EXPECT_NEAR(to_float(gain), 3, 0.5);
    std::vector<uint8_t> leaves(x.size());
    code_leaves(x, gain, sigma.data(), leaves.data());
    for (size_t j = 0; j < x.size(); ++j) {
      const double unit = double{to_float(gain)} * double{sigma[j]};
      const double z = double{x[j]} / unit;
      const double off = z - double{kernels::tree_value(leaves[j], 4)};
      error += off * off, energy += z * z;
    }
  }
  EXPECT_NEAR(error / energy / kernels::tree_distortion(4), 1, 0.05);
  EXPECT_EQ(gain_of({}, sigma.data()).bits, 0);
}

RankedCode one_token(float coefficient) {
  RankedCode code;
  code.n_tokens = 65;
  code.coded = {0};
  code.rank = {2};
  code.coefficients = {1, coefficient};
  code.offset = {0, 2};
  return code;
}

TEST(Coefficients, RefusesWhatCannotBeCoded) {
  const std::vector<float> sigma = {1, 1e-3f};
  ThreadPool pool(2);
  const auto refused = [&](float x, const CoefficientFormat& format) -> std::string {
    try {
      require_codable(one_token(x), 7, format, sigma, pool);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::corrupt);
      return e.what();
    }
    return "";
  };
  const CoefficientFormat f16_, group{4}, tree{8, RankPlan::Code::sigma};
  EXPECT_EQ(refused(1e30f, f16_), "");  // its shift takes care
  for (const CoefficientFormat& format : {f16_, group, tree}) {
    const std::string why = refused(std::numeric_limits<float>::infinity(), format);
    EXPECT_NE(why.find("layer 7, token 0: coefficient 1 is inf"), std::string::npos) << why;
  }
  EXPECT_NE(refused(-1e6f, group).find("layer 7, token 0"), std::string::npos);
  EXPECT_NE(refused(1e6f, tree).find("gain"), std::string::npos);
  EXPECT_EQ(refused(1e3f, group), "");
  EXPECT_THROW(check(CoefficientFormat{5}), Error);
  EXPECT_THROW(check(CoefficientFormat{9, RankPlan::Code::sigma}), Error);
  EXPECT_NO_THROW(check(CoefficientFormat{5, RankPlan::Code::sigma}));
}

}  // namespace
}  // namespace kvist
