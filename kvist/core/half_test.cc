// SPDX-License-Identifier: MIT
// Tests of 16-bit formats: every code, and every rounding boundary between neighbours.
#include "kvist/core/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace kvist {
namespace {

// The value of an f16 code from the definition of the format, in double.
double f16_value(uint16_t bits) {
  const int exponent = bits >> 10 & 0x1F, fraction = bits & 0x3FF;
  const double sign = bits >> 15 ? -1.0 : 1.0;
  if (exponent == 0x1F) return fraction ? std::nan("") : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

TEST(F16, EveryCodeWidensExactlyAndComesBack) {
  for (uint32_t code = 0; code <= 0xFFFF; ++code) {
    const f16 x{static_cast<uint16_t>(code)};
    const double want = f16_value(x.bits), got = static_cast<double>(to_float(x));
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << code;
      EXPECT_TRUE(std::isnan(to_float(to_f16(to_float(x))))) << code;
      continue;
    }
    ASSERT_EQ(got, want) << code;
    ASSERT_EQ(std::signbit(got), std::signbit(want)) << code;
    ASSERT_EQ(to_f16(to_float(x)).bits, x.bits) << code;
  }
}

TEST(F16, RoundsToNearestEvenBetweenAllNeighbours) {
  for (uint16_t code = 0; code < 0x7C00; ++code) {
    const double low = f16_value(code);
    const double high = code == 0x7BFF ? 65536.0 : f16_value(static_cast<uint16_t>(code + 1));
    const float middle = static_cast<float>((low + high) / 2);  // exact: one bit more than f16
    const uint16_t even = static_cast<uint16_t>(code & 1 ? code + 1 : code);
    ASSERT_EQ(to_f16(middle).bits, even) << code;
    ASSERT_EQ(to_f16(std::nextafter(middle, 0.0f)).bits, code) << code;
    ASSERT_EQ(to_f16(std::nextafter(middle, HUGE_VALF)).bits, code + 1) << code;
    ASSERT_EQ(to_f16(-middle).bits, even | 0x8000) << code;
  }
}

TEST(F16, OverflowBecomesInfinity) {
  EXPECT_EQ(to_f16(65519.99f).bits, 0x7BFF);
  EXPECT_EQ(to_f16(65520.0f).bits, 0x7C00);
  EXPECT_EQ(to_f16(-1e30f).bits, 0xFC00);
  EXPECT_EQ(to_f16(HUGE_VALF).bits, 0x7C00);
  EXPECT_EQ(to_f16(-1e-30f).bits, 0x8000);
}

TEST(Bf16, EveryCodeWidensExactlyAndComesBack) {
  for (uint32_t code = 0; code <= 0xFFFF; ++code) {
    const bf16 x{static_cast<uint16_t>(code)};
    const float value = to_float(x);
    ASSERT_EQ(std::bit_cast<uint32_t>(value), code << 16);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(to_float(to_bf16(value)))) << code;
    } else {
      ASSERT_EQ(to_bf16(value).bits, code);
    }
  }
}

TEST(Bf16, RoundsToNearestEvenAndKeepsNan) {
  for (uint32_t code = 0; code < 0x7F80; ++code) {
    const uint32_t middle = code << 16 | 0x8000;
    const uint32_t even = code + (code & 1);
    ASSERT_EQ(to_bf16(std::bit_cast<float>(middle)).bits, even);
    ASSERT_EQ(to_bf16(std::bit_cast<float>(middle - 1)).bits, code);
    ASSERT_EQ(to_bf16(std::bit_cast<float>(middle + 1)).bits, code + 1);
  }
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7F80);
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::bit_cast<float>(0x7F800001u)))));
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::bit_cast<float>(0xFFFFFFFFu)))));
}

TEST(Scalar, HasASizeAndAName) {
  EXPECT_EQ(size_of(Scalar::f16), 2);
  EXPECT_EQ(size_of(Scalar::bf16), 2);
  EXPECT_EQ(size_of(Scalar::f32), 4);
  EXPECT_STREQ(name(Scalar::bf16), "bf16");
}

}  // namespace
}  // namespace kvist
