// SPDX-License-Identifier: MIT
// Codes of coefficients: equal bits on every machine, so everything here is plain scalar code.
#include "kvist/methods/rank/coefficients.h"

#include <algorithm>
#include <cmath>

#include "kvist/core/error.h"
#include "kvist/kernels/tree_code.h"

namespace kvist {
namespace {

bool finite(f16 x) { return (x.bits & 0x7C00u) != 0x7C00u; }

GroupScale scale_of(std::span<const float> x, int bits) {
  float least = x[0], most = x[0];
  for (const float y : x) {
    least = y < least ? y : least;
    most = y > most ? y : most;
  }
  return {to_f16(least), to_f16((most - least) / static_cast<float>((1 << bits) - 1))};
}

// One token.
void require_codable(const RankedCode& code, size_t i, int layer, const CoefficientFormat& format,
                     std::span<const float> sigma) {
  const auto x = code.coefficients_of(i);
  const auto at = [&] { return str("layer ", layer, ", token ", code.coded[i], ": "); };
  for (size_t j = 0; j < x.size(); ++j)
    if (!std::isfinite(x[j]))
      throw Error(ErrorKind::corrupt,
                  str(at(), "coefficient ", j, " is ", x[j], "; only finite numbers can be coded"));
  if (format.tree() && !finite(gain_of(x, sigma.data())))
    throw Error(
        ErrorKind::corrupt,
        at() +
            "its gain is larger than f16 can hold: it lies in directions of which the basis has "
            "seen next to nothing; kvist calibrate --basis on more text learns them");
  for (size_t j = 0; format.groups() && j < x.size(); j += kRankChunk) {
    const GroupScale scale =
        scale_of(x.subspan(j, std::min<size_t>(kRankChunk, x.size() - j)), format.bits);
    if (!finite(scale.lo) || !finite(scale.step))
      throw Error(ErrorKind::corrupt, str(at(), "coefficients from ", j,
                                          " on are larger than the f16 scales of a group hold"));
  }
}

}  // namespace

void check(const CoefficientFormat& format) {
  const int bits = format.bits;
  const bool possible =
      bits == 16 || bits == 32 ||
      (format.tree() ? bits >= 1 && bits <= 8 : bits == 3 || bits == 4 || bits == 8);
  if (!possible)
    throw Error(ErrorKind::invalid_argument,
                str("bits=", bits, ": coefficients have 32 or 16 bits, ",
                    format.tree() ? "or 1 to 8 with code=sigma" : "or 8, 4 or 3 in groups"));
}

int shift_of(std::span<const float> coefficients) {
  float most = 0;
  for (const float x : coefficients) most = std::max(most, std::abs(x));
  int shift = 0;
  while (most > std::ldexp(32768.0f, shift)) ++shift;
  return shift;
}

GroupScale code_group(std::span<const float> x, int bits, uint8_t* codes) {
  const GroupScale scale = scale_of(x, bits);
  const float lo = to_float(scale.lo), step = to_float(scale.step);
  if (step == 0) {
    std::fill_n(codes, x.size(), uint8_t{0});
    return scale;
  }
  // Adding 1.5 * 2^23 to a number below 2^22 rounds it to the nearest integer, ties to even.
  constexpr float kRound = 12582912.0f;
  const float top = static_cast<float>((1 << bits) - 1);
  for (size_t i = 0; i < x.size(); ++i) {
    const float at = std::min(std::max((x[i] - lo) / step, 0.0f), top);
    codes[i] = static_cast<uint8_t>((at + kRound) - kRound);
  }
  return scale;
}

void pack_codes(const uint8_t* codes, int n, int bits, uint8_t* out) noexcept {
  uint32_t pending = 0;
  int filled = 0;
  for (int i = 0; i < n; ++i) {
    pending |= uint32_t{codes[i]} << filled;
    for (filled += bits; filled >= 8; filled -= 8, pending >>= 8)
      *out++ = static_cast<uint8_t>(pending);
  }
  if (filled > 0) *out = static_cast<uint8_t>(pending);
}

void unpack_codes(const uint8_t* in, int n, int bits, uint8_t* codes) noexcept {
  const uint32_t mask = (1u << bits) - 1;
  uint32_t pending = 0;
  int filled = 0;
  for (int i = 0; i < n; ++i) {
    if (filled < bits) pending |= uint32_t{*in++} << filled, filled += 8;
    codes[i] = static_cast<uint8_t>(pending & mask);
    pending >>= bits;
    filled -= bits;
  }
}

std::vector<float> row_sigmas(std::span<const float> eigenvalues) {
  std::vector<float> sigma;
  for (const float value : eigenvalues) sigma.push_back(std::sqrt(std::max(value, 0.0f)));
  for (float& x : sigma) x = std::max(x, sigma.front() * 0x1p-20f);
  return sigma;
}

f16 gain_of(std::span<const float> x, const float* sigma) {
  if (x.empty()) return {};
  double sum = 0;
  for (size_t j = 0; j < x.size(); ++j) {
    const double z = double{x[j]} / double{sigma[j]};
    sum += z * z;
  }
  return to_f16(sticky(std::sqrt(sum / static_cast<double>(x.size()))));
}

void code_leaves(std::span<const float> x, f16 gain, const float* sigma, uint8_t* leaves) noexcept {
  const float g = to_float(gain);
  for (size_t j = 0; j < x.size(); ++j) {
    const float unit = g * sigma[j];
    leaves[j] = kernels::tree_leaf(unit == 0 ? 0.0f : x[j] / unit);
  }
}

void require_codable(const RankedCode& code, int layer, const CoefficientFormat& format,
                     std::span<const float> sigma, ThreadPool& pool) {
  constexpr int64_t kChunk = 256;  // tokens that a thread looks at together
  check(format);
  const auto n = static_cast<int64_t>(code.coded.size());
  pool.parallel_for((n + kChunk - 1) / kChunk, [&](int64_t chunk) {
    for (int64_t i = chunk * kChunk; i < std::min(n, (chunk + 1) * kChunk); ++i)
      require_codable(code, static_cast<size_t>(i), layer, format, sigma);
  });
}

}  // namespace kvist
