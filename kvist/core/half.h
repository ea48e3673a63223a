// SPDX-License-Identifier: MIT
// The 16-bit floating point formats of stored keys and values, and exact or correctly rounded
// conversion, bit by bit.
#pragma once

#include <bit>
#include <cstdint>

namespace kvist {

struct f16 {  // IEEE binary16
  uint16_t bits = 0;
};
struct bf16 {  // the upper half of a float
  uint16_t bits = 0;
};

// How a cache stores one number.
enum class Scalar : uint8_t { f16, bf16, f32 };
constexpr int size_of(Scalar type) { return type == Scalar::f32 ? 4 : 2; }
constexpr const char* name(Scalar type) {
  return type == Scalar::f16 ? "f16" : type == Scalar::bf16 ? "bf16" : "f32";
}

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
inline float to_float(f16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1Fu;
  const uint32_t fraction = x.bits & 0x3FFu;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000u | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // zero or subnormal: exact
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

// Round to nearest even; overflow becomes infinity, NaN stays NaN.
inline bf16 to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<uint16_t>(u >> 16 | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7FFFu + (u >> 16 & 1u)) >> 16)};
}
inline f16 to_f16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>(u >> 16 & 0x8000u);
  const uint32_t magnitude = u & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return {static_cast<uint16_t>(sign | 0x7E00u)};
  if (magnitude >= 0x477FF000u) return {static_cast<uint16_t>(sign | 0x7C00u)};
  if (magnitude < 0x38800000u) {  // subnormal in f16: the float adder rounds it for us
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u))};
  }
  const uint32_t rounded = magnitude + 0xFFFu + (magnitude >> 13 & 1u);
  return {static_cast<uint16_t>(sign | (rounded - 0x38000000u) >> 13)};
}

// The float that rounds to the same 16-bit number as x does: toward zero, last bit set if inexact.
inline float sticky(double x) {
  const auto nearest = static_cast<float>(x);
  if (static_cast<double>(nearest) == x || (std::bit_cast<uint32_t>(nearest) << 1) >= 0xFF000000u)
    return nearest;
  const auto bits = std::bit_cast<uint32_t>(nearest);
  const double above = static_cast<double>(nearest);
  const bool away = above < 0 ? above < x : above > x;
  return std::bit_cast<float>((away ? bits - 1 : bits) | 1u);
}

}  // namespace kvist
