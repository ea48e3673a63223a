// SPDX-License-Identifier: MIT
// Sums over bit planes in bytes: prefixes become 8-bit reconstructions once, and are multiplied by
// 8-bit weights of every row, four items a dot. Needs AVX-512 with VBMI and VNNI.
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

#if HWY_TARGET == HWY_AVX3_DL
HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {

constexpr int kByteDepth = 6;   // deepest prefix whose reconstructions fit one register of bytes
constexpr int kStepItems = 4;   // channels of keys or tokens of values that one dot adds
constexpr int kByteZero = 128;  // the byte of 0

// What a step of bytes stands for.
inline float byte_unit() { return tree_centroids(kByteDepth)[(1 << kByteDepth) - 1] / 127; }

// table[depth][prefix] = kByteZero + round(centroid / byte_unit()); the first 2^depth count.
struct ByteTables {
  alignas(64) uint8_t at[kByteDepth + 1][64];
};
inline const ByteTables& byte_tables() {
  static const ByteTables made = [] {
    ByteTables t{};
    for (int depth = 1; depth <= kByteDepth; ++depth)
      for (int i = 0; i < 1 << depth; ++i)
        t.at[depth][i] = static_cast<uint8_t>(
            kByteZero + static_cast<int>(std::lround(tree_centroids(depth)[i] / byte_unit())));
    return t;
  }();
  return made;
}

// 64 lanes of a plane.
HWY_INLINE __mmask64 load_plane(const uint8_t* p) {
  return _load_mask64(reinterpret_cast<__mmask64*>(const_cast<uint8_t*>(p)));
}

// The bytes of 64 codes read to kDepth; plane(s) is the word of their plane s + 1.
template <int kDepth, typename Plane>
HWY_INLINE __m512i bytes64(const Plane& plane, __m512i table) {
  __m512i prefix = _mm512_maskz_mov_epi8(plane(0), _mm512_set1_epi8(1 << (kDepth - 1)));
#pragma GCC unroll 8
  for (int s = 1; s < kDepth; ++s)
    prefix =
        _mm512_mask_add_epi8(prefix, plane(s), prefix, _mm512_set1_epi8(1 << (kDepth - 1 - s)));
  return _mm512_permutexvar_epi8(prefix, table);
}

// Four items' bytes side by side: group k of out [4][64] holds, in its 16-byte blocks b, lanes
// 16 b + 4 k + 0 .. 3.
HWY_INLINE void interleave(__m512i b0, __m512i b1, __m512i b2, __m512i b3,
                           uint8_t* HWY_RESTRICT out) {
  const __m512i a = _mm512_unpacklo_epi8(b0, b1), b = _mm512_unpackhi_epi8(b0, b1);
  const __m512i c = _mm512_unpacklo_epi8(b2, b3), d = _mm512_unpackhi_epi8(b2, b3);
  _mm512_store_si512(out, _mm512_unpacklo_epi16(a, c));
  _mm512_store_si512(out + 64, _mm512_unpackhi_epi16(a, c));
  _mm512_store_si512(out + 128, _mm512_unpacklo_epi16(b, d));
  _mm512_store_si512(out + 192, _mm512_unpackhi_epi16(b, d));
}

// The sums of interleave()'s lanes in order.
HWY_INLINE void undo_interleave(__m512i* sum) {
  const __m512i low01 = _mm512_shuffle_i32x4(sum[0], sum[1], 0x44);
  const __m512i high01 = _mm512_shuffle_i32x4(sum[0], sum[1], 0xEE);
  const __m512i low23 = _mm512_shuffle_i32x4(sum[2], sum[3], 0x44);
  const __m512i high23 = _mm512_shuffle_i32x4(sum[2], sum[3], 0xEE);
  sum[0] = _mm512_shuffle_i32x4(low01, low23, 0x88);
  sum[1] = _mm512_shuffle_i32x4(low01, low23, 0xDD);
  sum[2] = _mm512_shuffle_i32x4(high01, high23, 0x88);
  sum[3] = _mm512_shuffle_i32x4(high01, high23, 0xDD);
}

// sum += the dots of four bytes. As assembly, since gcc 12 copies every sum around the intrinsic.
HWY_INLINE void add_dots(__m512i& sum, __m512i bytes, __m512i weights) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(weights));
}

// out[r][0, lanes) += unit[r] * (sum over steps of the four dots - the part of kByteZero).
//
//   bytes    [n_steps][4][64] of interleave()
//   weights  row r at weights + r * stride: four signed bytes a step
//   zero     [rows] kByteZero times the sum of a row's weights
//   kInOrder lane 4 b + i of group k is 16 k + 4 b + i, not that of interleave()
template <int kRows, bool kInOrder>
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
    if (!kInOrder) undo_interleave(sum[r]);
    const __m512 u = _mm512_set1_ps(unit[r]);
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      const int left = lanes - 16 * k;
      const __mmask16 mask = left >= 16 ? 0xFFFF : left <= 0 ? 0 : (1u << left) - 1;
      float* to = out + r * out_stride + 16 * k;
      const __m512 x = _mm512_cvtepi32_ps(sum[r][k]);
      _mm512_mask_storeu_ps(to, mask, _mm512_fmadd_ps(x, u, _mm512_maskz_loadu_ps(mask, to)));
    }
  }
}

// The same for any number of rows.
template <bool kInOrder>
void add_bytes(const uint8_t* bytes, int n_steps, const int32_t* weights, int64_t stride,
               const int32_t* zero, const float* unit, int rows, float* out, int64_t out_stride,
               int lanes) {
  while (rows > 0) {
    const int n = rows > 6 ? (rows > 8 ? 6 : 4) : rows;
    switch (n) {
      case 1:
        add_steps<1, kInOrder>(bytes, n_steps, weights, stride, zero, unit, out, out_stride, lanes);
        break;
      case 2:
        add_steps<2, kInOrder>(bytes, n_steps, weights, stride, zero, unit, out, out_stride, lanes);
        break;
      case 3:
        add_steps<3, kInOrder>(bytes, n_steps, weights, stride, zero, unit, out, out_stride, lanes);
        break;
      case 4:
        add_steps<4, kInOrder>(bytes, n_steps, weights, stride, zero, unit, out, out_stride, lanes);
        break;
      case 5:
        add_steps<5, kInOrder>(bytes, n_steps, weights, stride, zero, unit, out, out_stride, lanes);
        break;
      default:
        add_steps<6, kInOrder>(bytes, n_steps, weights, stride, zero, unit, out, out_stride, lanes);
    }
    rows -= n, weights += n * stride, zero += n, unit += n, out += n * out_stride;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();
#endif  // AVX3_DL

#endif  // per-target include guard
