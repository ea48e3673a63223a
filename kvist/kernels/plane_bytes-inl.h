// SPDX-License-Identifier: MIT
// Sums over bit planes in bytes: prefixes become 8-bit reconstructions once, and are multiplied by
// 8-bit weights of every row, four items a dot. Sums need AVX-512 with VBMI and VNNI;
// plane_nibbles-inl.h has those of AVX2.
#if defined(KVIST_KERNELS_PLANE_BYTES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVIST_KERNELS_PLANE_BYTES_INL_H_
#undef KVIST_KERNELS_PLANE_BYTES_INL_H_
#else
#define KVIST_KERNELS_PLANE_BYTES_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kvist/kernels/tree_code.h"

HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {

constexpr int kByteDepth = 6;   // deepest prefix whose reconstructions are looked up as bytes
constexpr int kStepItems = 4;   // channels of keys or tokens of values that one dot adds
constexpr int kByteZero = 128;  // the byte of 0

// What a step of bytes stands for.
inline float byte_unit() { return tree_centroids(kByteDepth)[(1 << kByteDepth) - 1] / 127; }

}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();

#if HWY_TARGET == HWY_AVX3_DL
HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {

// Keys of depths 1 and 2: distances of their bytes from kByteZero. Odd ones, or one alone, make the
// bytes sums modulo 2 of what each bit contributes. 77 / 23 is the ratio of the code to 0.4 %.
constexpr int kByteOf1 = 37;
constexpr int kByteOf2[2] = {23, 77};
static_assert(((kByteZero - kByteOf2[1]) ^ (kByteZero - kByteOf2[0]) ^ (kByteZero + kByteOf2[0]) ^
               (kByteZero + kByteOf2[1])) == 0);

// table[depth][prefix] = kByteZero + round(centroid / unit[depth]), repeated to fill 64 entries.
struct ByteTables {
  alignas(64) uint8_t at[kByteDepth + 1][64];
  float unit[kByteDepth + 1];
};
inline const ByteTables& byte_tables() {
  static const ByteTables made = [] {
    ByteTables t{};
    for (int depth = 1; depth <= kByteDepth; ++depth) {
      const float* c = tree_centroids(depth);
      t.unit[depth] = depth == 1   ? c[1] / kByteOf1
                      : depth == 2 ? (c[2] + c[3]) / (kByteOf2[0] + kByteOf2[1])
                                   : byte_unit();
      for (int i = 0; i < 64; ++i)
        t.at[depth][i] = static_cast<uint8_t>(
            kByteZero + static_cast<int>(std::lround(c[i % (1 << depth)] / t.unit[depth])));
    }
    return t;
  }();
  return made;
}

// sum += the dots of four bytes. As assembly, since gcc 12 copies every sum around the intrinsic.
HWY_INLINE void add_dots(__m512i& sum, __m512i bytes, __m512i weights) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(weights));
}

// Sums of tokens as StepBytes leaves them: lane 4 l + 2 i + h of sum[k] is token 8 i + 2 k + h of a
// run l of 16, which becomes sum[l].
HWY_INLINE void order_tokens(__m512i* sum) {
  const __m512i a = _mm512_unpacklo_epi64(sum[0], sum[1]);
  const __m512i b = _mm512_unpacklo_epi64(sum[2], sum[3]);
  const __m512i c = _mm512_unpackhi_epi64(sum[0], sum[1]);
  const __m512i d = _mm512_unpackhi_epi64(sum[2], sum[3]);
  const __m512i ab01 = _mm512_shuffle_i32x4(a, b, 0x44), ab23 = _mm512_shuffle_i32x4(a, b, 0xEE);
  const __m512i cd01 = _mm512_shuffle_i32x4(c, d, 0x44), cd23 = _mm512_shuffle_i32x4(c, d, 0xEE);
  sum[0] = _mm512_shuffle_i32x4(ab01, cd01, 0x88), sum[1] = _mm512_shuffle_i32x4(ab01, cd01, 0xDD);
  sum[2] = _mm512_shuffle_i32x4(ab23, cd23, 0x88), sum[3] = _mm512_shuffle_i32x4(ab23, cd23, 0xDD);
}

// Sums of channels as PacketBytes leaves them become those of channels in order.
HWY_INLINE void order_channels(__m512i* sum) {
#pragma GCC unroll 2
  for (int k = 0; k < 4; k += 2) {
    const __m512i even = sum[k], odd = sum[k + 1];
    sum[k] = _mm512_shuffle_i64x2(even, odd, 0x44);
    sum[k + 1] = _mm512_shuffle_i64x2(even, odd, 0xEE);
  }
}

// out[r][lanes] += unit[r] * (sum over steps of the four dots - the part of kByteZero).
//
//   bytes    [n_steps][4][64]
//   weights  row r at weights + r * stride: four signed bytes a step
//   zero     [rows] kByteZero times the sum of a row's weights
//   kTokens  bytes are those of StepBytes, and the four runs lie 128 lanes apart; else they are
//            those of PacketBytes. Lanes from `lanes` on stay as they are
template <int kRows, bool kTokens>
HWY_INLINE void add_steps(const uint8_t* HWY_RESTRICT bytes, int n_steps,
                          const int32_t* HWY_RESTRICT weights, int64_t stride, const int32_t* zero,
                          const float* unit, float* HWY_RESTRICT out, int64_t out_stride,
                          int lanes) {
  __m512i sum[kRows][4];
  for (int r = 0; r < kRows; ++r)
    for (int k = 0; k < 4; ++k) sum[r][k] = _mm512_set1_epi32(-zero[r]);
  for (int s = 0; s < n_steps; ++s, bytes += 256) {
    const __m512i x0 = _mm512_load_si512(bytes), x1 = _mm512_load_si512(bytes + 64);
    const __m512i x2 = _mm512_load_si512(bytes + 128), x3 = _mm512_load_si512(bytes + 192);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512i w = _mm512_set1_epi32(weights[r * stride + s]);
      add_dots(sum[r][0], x0, w);
      add_dots(sum[r][1], x1, w);
      add_dots(sum[r][2], x2, w);
      add_dots(sum[r][3], x3, w);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    kTokens ? order_tokens(sum[r]) : order_channels(sum[r]);
    const __m512 u = _mm512_set1_ps(unit[r]);
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      const int first = (kTokens ? 128 : 16) * k, left = lanes - first;
      const __mmask16 mask = left >= 16 ? 0xFFFF : left <= 0 ? 0 : (1u << left) - 1;
      float* to = out + r * out_stride + first;
      const __m512 x = _mm512_cvtepi32_ps(sum[r][k]);
      _mm512_mask_storeu_ps(to, mask, _mm512_fmadd_ps(x, u, _mm512_maskz_loadu_ps(mask, to)));
    }
  }
}

// The same for any number of rows.
template <bool kTokens>
void add_bytes(const uint8_t* bytes, int n_steps, const int32_t* weights, int64_t stride,
               const int32_t* zero, const float* unit, int rows, float* out, int64_t out_stride,
               int lanes) {
  while (rows > 0) {
    const int n = rows > 6 ? (rows > 8 ? 6 : 4) : rows;
    switch (n) {
      case 1:
        add_steps<1, kTokens>(bytes, n_steps, weights, stride, zero, unit, out, out_stride, lanes);
        break;
      case 2:
        add_steps<2, kTokens>(bytes, n_steps, weights, stride, zero, unit, out, out_stride, lanes);
        break;
      case 3:
        add_steps<3, kTokens>(bytes, n_steps, weights, stride, zero, unit, out, out_stride, lanes);
        break;
      case 4:
        add_steps<4, kTokens>(bytes, n_steps, weights, stride, zero, unit, out, out_stride, lanes);
        break;
      case 5:
        add_steps<5, kTokens>(bytes, n_steps, weights, stride, zero, unit, out, out_stride, lanes);
        break;
      default:
        add_steps<6, kTokens>(bytes, n_steps, weights, stride, zero, unit, out, out_stride, lanes);
    }
    rows -= n, weights += n * stride, zero += n, unit += n, out += n * out_stride;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();
#endif  // AVX3_DL

#endif  // per-target include guard
