// SPDX-License-Identifier: MIT
// Planes of a row are moved to words of 64 codes, which the progressive code's loops turn into
// numbers.
#include "kvist/kernels/row_planes.h"

#undef HWY_WANT_AVX3_DL  // nothing here gains from it over avx3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvist/kernels/row_planes.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "kvist/kernels/plane_code-inl.h"
#include "kvist/kernels/ranked.h"

HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {

constexpr int kTokens = 64;

// Bits [bit, bit + n), n <= 64.
HWY_INLINE uint64_t word_at(const uint8_t* codes, int64_t bit, int n) {
  const uint8_t* at = codes + bit / 8;
  const int shift = static_cast<int>(bit % 8);
  uint64_t word;
  std::memcpy(&word, at, sizeof word);
  word >>= shift;
  if (shift + n > 64) word |= uint64_t{at[8]} << (64 - shift);
  return n == 64 ? word : word & ((uint64_t{1} << n) - 1);
}

void read_rows(const uint8_t* codes, const PlaneRow* rows, int n_rows, const float* gains,
               const float* sigmas, float* HWY_RESTRICT x) {
  const hn::CappedTag<float, 16> d;
  constexpr int kN = static_cast<int>(hn::MaxLanes(d));
  HWY_ALIGN float numbers[kTokens];
  std::fill_n(x, rows[0].count * kCoefficients, 0.0f);
  for (int j = 0; j < n_rows; ++j) {
    const PlaneRow& row = rows[j];
    if (row.depth == 0) continue;
    uint64_t planes[kTreeDepth];
    for (int s = 0; s < row.depth; ++s)
      planes[s] = word_at(codes, row.bit + int64_t{s} * row.stride, row.count);
    decode64(reinterpret_cast<const uint8_t*>(planes), sizeof(uint64_t), row.depth, numbers);
    const auto sigma = hn::Set(d, sigmas[j]);
    for (int i = 0; i < row.count; i += kN) {
      const auto unit = hn::Mul(hn::LoadU(d, gains + i), sigma);
      hn::StoreU(hn::Mul(hn::LoadU(d, numbers + i), unit), d, numbers + i);
    }
    for (int i = 0; i < row.count; ++i) x[i * kCoefficients + j] = numbers[i];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvist::kernels {
HWY_EXPORT(read_rows);

void write_row_planes(const uint8_t* leaves, int row_stride, const PlaneRow* rows, int n_rows,
                      uint8_t* codes) noexcept {
  for (int j = 0; j < n_rows; ++j)
    for (int s = 0; s < rows[j].depth; ++s) {
      int64_t bit = rows[j].bit + int64_t{s} * rows[j].stride;
      for (int i = 0; i < rows[j].count; ++i, ++bit)
        codes[bit / 8] |= static_cast<uint8_t>(
            (leaves[i * row_stride + j] >> (kTreeDepth - 1 - s) & 1) << bit % 8);
    }
}

void read_row_planes(const uint8_t* codes, const PlaneRow* rows, int n_rows, const float* gains,
                     const float* sigmas, float* x) noexcept {
  HWY_DYNAMIC_DISPATCH(read_rows)(codes, rows, n_rows, gains, sigmas, x);
}

}  // namespace kvist::kernels
#endif  // HWY_ONCE
