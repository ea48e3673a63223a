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
  const auto [least, most] = std::minmax_element(x.begin(), x.end());
  const float top = static_cast<float>((1 << bits) - 1);
  const GroupScale scale{to_f16(*least), to_f16((*most - *least) / top)};
  const float lo = to_float(scale.lo), step = to_float(scale.step);
  for (size_t i = 0; i < x.size(); ++i) {
    const float at = step == 0 ? 0.0f : std::nearbyint((x[i] - lo) / step);
    codes[i] = static_cast<uint8_t>(std::clamp(at, 0.0f, top));
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
                     std::span<const float> sigma) {
  check(format);
  uint8_t codes[kRankChunk];
  for (size_t i = 0; i < code.coded.size(); ++i) {
    const auto x = code.coefficients_of(i);
    const auto at = [&] { return str("layer ", layer, ", token ", code.coded[i], ": "); };
    for (size_t j = 0; j < x.size(); ++j)
      if (!std::isfinite(x[j]))
        throw Error(ErrorKind::corrupt, str(at(), "coefficient ", j, " is ", x[j],
                                            "; only finite numbers can be coded"));
    if (format.tree() && !finite(gain_of(x, sigma.data())))
      throw Error(ErrorKind::corrupt, at() + "its gain is larger than f16 can hold");
    for (size_t j = 0; format.groups() && j < x.size(); j += kRankChunk) {
      const auto group = x.subspan(j, std::min<size_t>(kRankChunk, x.size() - j));
      const GroupScale scale = code_group(group, format.bits, codes);
      if (!finite(scale.lo) || !finite(scale.step))
        throw Error(ErrorKind::corrupt, str(at(), "coefficients from ", j,
                                            " on are larger than the f16 scales of a group hold"));
    }
  }
}

}  // namespace kvist
