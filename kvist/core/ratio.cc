// SPDX-License-Identifier: MIT
// Parsing and printing of exact fractions.
#include "kvist/core/ratio.h"

#include <numeric>

#include "kvist/core/error.h"

namespace kvist {
namespace {

__extension__ using Wide = __int128;

[[noreturn]] void refuse(std::string_view text) {
  throw Error(
      ErrorKind::invalid_argument,
      str("'", text,
          "' is not a ratio: write a decimal (0.7), a fraction (7/10) or a percentage (70%)"));
}

// Reads digits and at most one point into value * 10^-decimals.
void read_decimal(std::string_view digits, std::string_view whole, int64_t* value, int64_t* scale) {
  bool point = false;
  int count = 0;
  *value = 0;
  *scale = 1;
  for (char c : digits) {
    if (c == '.' && !point) {
      point = true;
    } else if (c >= '0' && c <= '9' && ++count <= 12) {
      *value = *value * 10 + (c - '0');
      if (point) *scale *= 10;
    } else {
      refuse(whole);
    }
  }
  if (count == 0) refuse(whole);
}

}  // namespace

Ratio Ratio::parse(std::string_view text) {
  std::string_view body = text;
  int64_t percent = 1;
  if (!body.empty() && body.back() == '%') {
    body.remove_suffix(1);
    percent = 100;
  }
  int64_t num = 0, num_scale = 1, den = 1, den_scale = 1;
  if (const size_t slash = body.find('/'); slash != std::string_view::npos) {
    read_decimal(body.substr(0, slash), text, &num, &num_scale);
    read_decimal(body.substr(slash + 1), text, &den, &den_scale);
    if (num_scale != 1 || den_scale != 1 || den == 0) refuse(text);
  } else {
    read_decimal(body, text, &num, &num_scale);
  }
  den = den * num_scale * percent;
  const int64_t common = std::gcd(num, den);
  return {num / common, den / common};
}

std::string Ratio::text() const {
  int64_t scale = 1;
  for (int digits = 0; digits <= 6; ++digits, scale *= 10) {
    if (scale % den != 0) continue;
    const int64_t scaled = num * (scale / den);
    if (digits == 0) return str(scaled);
    return fmt::format("{}.{:0{}}", scaled / scale, scaled % scale, digits);
  }
  return str(num, "/", den);
}

int64_t floor_mul(int64_t n, Ratio ratio) {
  return static_cast<int64_t>(static_cast<Wide>(n) * ratio.num / ratio.den);
}

}  // namespace kvist
