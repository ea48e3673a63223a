// SPDX-License-Identifier: MIT
// Exact fractions: "0.7", "7/10" and "70%" are the same ratio, and token counts derived from it
// never pass through a float.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvist {

// num / den in lowest terms, den > 0.
struct Ratio {
  int64_t num = 0;
  int64_t den = 1;

  // Accepts a decimal, a fraction or a percentage of at most 12 significant digits. Throws
  // invalid_argument quoting `text` otherwise.
  static Ratio parse(std::string_view text);

  Ratio complement() const { return {den - num, den}; }  // 1 - this
  double value() const { return static_cast<double>(num) / static_cast<double>(den); }
  std::string text() const;  // "0.7" where it is a short decimal, else "1/3"
  friend bool operator==(const Ratio&, const Ratio&) = default;
};

// floor(n * ratio) in integers; n >= 0.
int64_t floor_mul(int64_t n, Ratio ratio);

}  // namespace kvist
