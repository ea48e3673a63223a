// SPDX-License-Identifier: MIT
// Sums over bit planes by table: sixteen planes of 64 lanes become four 4-bit indices a lane, one
// permute looks all four up and one dot of bytes adds them. Needs AVX-512 with VBMI and VNNI.
#if defined(KVIST_KERNELS_PLANE_TABLES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVIST_KERNELS_PLANE_TABLES_INL_H_
#undef KVIST_KERNELS_PLANE_TABLES_INL_H_
#else
#define KVIST_KERNELS_PLANE_TABLES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "kvist/kernels/plane_internal.h"

#if HWY_TARGET == HWY_AVX3_DL
HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {

// Entry i of table j of a step is byte (i / 4) * 16 + j * 4 + i % 4, where packing four vectors of
// integers leaves it: bits 0, 1 of the index weigh 1, 2, bits 2, 3 weigh 16, 32, the table 4 j.

// One table's index in 64 lanes, from its four planes.
HWY_INLINE __m512i table_index(const uint64_t* planes, int table) {
  __m512i x = _mm512_set1_epi8(static_cast<char>(4 * table));
  x = _mm512_mask_add_epi8(x, planes[0], x, _mm512_set1_epi8(1));
  x = _mm512_mask_add_epi8(x, planes[1], x, _mm512_set1_epi8(2));
  x = _mm512_mask_add_epi8(x, planes[2], x, _mm512_set1_epi8(16));
  return _mm512_mask_add_epi8(x, planes[3], x, _mm512_set1_epi8(32));
}

// index [4][64]: lane group k of four 16-byte blocks b holds lanes 16 b + 4 k + 0 .. 3, each with
// its four tables side by side. planes: 16 words of 64 lanes.
HWY_INLINE void step_indices(const uint64_t* planes, uint8_t* HWY_RESTRICT index) {
  const __m512i n0 = table_index(planes, 0), n1 = table_index(planes + 4, 1);
  const __m512i n2 = table_index(planes + 8, 2), n3 = table_index(planes + 12, 3);
  const __m512i a = _mm512_unpacklo_epi8(n0, n1), b = _mm512_unpackhi_epi8(n0, n1);
  const __m512i c = _mm512_unpacklo_epi8(n2, n3), d = _mm512_unpackhi_epi8(n2, n3);
  _mm512_store_si512(index, _mm512_unpacklo_epi16(a, c));
  _mm512_store_si512(index + 64, _mm512_unpackhi_epi16(a, c));
  _mm512_store_si512(index + 128, _mm512_unpacklo_epi16(b, d));
  _mm512_store_si512(index + 192, _mm512_unpackhi_epi16(b, d));
}

// sum += the lookups of four tables. As assembly, since gcc 12 copies every sum around the
// intrinsic.
HWY_INLINE void add_bytes(__m512i& sum, __m512i ones, __m512i bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(ones), "v"(bytes));
}

// out[r][0, 64) += unit[r] * sum over the steps of the tables' entries, for kRows rows.
template <int kRows>
HWY_INLINE void add_steps(const uint8_t* HWY_RESTRICT index, int n_steps,
                          const int8_t* HWY_RESTRICT tables, int64_t table_stride,
                          const float* HWY_RESTRICT unit, float* HWY_RESTRICT out, int64_t stride,
                          int lanes) {
  __m512i sum[kRows][4];
  for (int r = 0; r < kRows; ++r)
    for (int k = 0; k < 4; ++k) sum[r][k] = _mm512_setzero_si512();
  const __m512i ones = _mm512_set1_epi8(1);
  for (int s = 0; s < n_steps; ++s, index += 4 * 64) {
    const __m512i x0 = _mm512_load_si512(index), x1 = _mm512_load_si512(index + 64);
    const __m512i x2 = _mm512_load_si512(index + 128), x3 = _mm512_load_si512(index + 192);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512i table =
          _mm512_load_si512(tables + r * table_stride + int64_t{s} * internal::kStepBytes);
      add_bytes(sum[r][0], ones, _mm512_permutexvar_epi8(x0, table));
      add_bytes(sum[r][1], ones, _mm512_permutexvar_epi8(x1, table));
      add_bytes(sum[r][2], ones, _mm512_permutexvar_epi8(x2, table));
      add_bytes(sum[r][3], ones, _mm512_permutexvar_epi8(x3, table));
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const __m512i low01 = _mm512_shuffle_i32x4(sum[r][0], sum[r][1], 0x44);
    const __m512i high01 = _mm512_shuffle_i32x4(sum[r][0], sum[r][1], 0xEE);
    const __m512i low23 = _mm512_shuffle_i32x4(sum[r][2], sum[r][3], 0x44);
    const __m512i high23 = _mm512_shuffle_i32x4(sum[r][2], sum[r][3], 0xEE);
    const __m512i in_order[4] = {
        _mm512_shuffle_i32x4(low01, low23, 0x88), _mm512_shuffle_i32x4(low01, low23, 0xDD),
        _mm512_shuffle_i32x4(high01, high23, 0x88), _mm512_shuffle_i32x4(high01, high23, 0xDD)};
    const __m512 u = _mm512_set1_ps(unit[r]);
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      const int left = lanes - 16 * k;
      const __mmask16 mask = left >= 16 ? 0xFFFF : left <= 0 ? 0 : (1u << left) - 1;
      float* to = out + r * stride + 16 * k;
      const __m512 x = _mm512_cvtepi32_ps(in_order[k]);
      _mm512_mask_storeu_ps(to, mask, _mm512_fmadd_ps(x, u, _mm512_maskz_loadu_ps(mask, to)));
    }
  }
}

// The same for any number of rows and a count of lanes up to 64.
inline void add_tables(const uint8_t* index, int n_steps, const int8_t* tables,
                       int64_t table_stride, const float* unit, int rows, float* out,
                       int64_t stride, int lanes) {
  while (rows > 0) {
    const int n = rows > 6 ? (rows > 8 ? 6 : 4) : rows;
    switch (n) {
      case 1:
        add_steps<1>(index, n_steps, tables, table_stride, unit, out, stride, lanes);
        break;
      case 2:
        add_steps<2>(index, n_steps, tables, table_stride, unit, out, stride, lanes);
        break;
      case 3:
        add_steps<3>(index, n_steps, tables, table_stride, unit, out, stride, lanes);
        break;
      case 4:
        add_steps<4>(index, n_steps, tables, table_stride, unit, out, stride, lanes);
        break;
      case 5:
        add_steps<5>(index, n_steps, tables, table_stride, unit, out, stride, lanes);
        break;
      default:
        add_steps<6>(index, n_steps, tables, table_stride, unit, out, stride, lanes);
    }
    rows -= n;
    tables += n * table_stride;
    unit += n;
    out += n * stride;
  }
}

// centroids of a depth as item m of an index sees them: pattern[depth - 1][m][i].
struct Patterns {
  alignas(64) float at[internal::kTableDepth][4][16];
};
inline const Patterns& patterns() {
  static const Patterns table = [] {
    Patterns p{};
    for (int depth = 1; depth <= internal::kTableDepth; ++depth)
      for (int m = 0; m < internal::per_table(depth); ++m)
        for (int i = 0; i < 16; ++i)
          p.at[depth - 1][m][i] = tree_centroids(depth)[i >> (m * depth) & ((1 << depth) - 1)];
    return p;
  }();
  return table;
}

// The four tables of a step: entries = round(sum over items of scale * weight(item) * centroid).
// The caller's scale keeps them within 127.
template <typename Weight>
HWY_INLINE void step_tables(const internal::Nibble* nibbles, const Patterns& pattern, float scale,
                            const Weight& weight, int8_t* HWY_RESTRICT tables) {
  __m512i entry[4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const internal::Nibble& nibble = nibbles[j];
    __m512 sum = _mm512_setzero_ps();
    for (int m = 0; m < nibble.n; ++m) {
      const __m512 w = _mm512_set1_ps(weight(nibble.items[m]) * scale);
      sum = _mm512_fmadd_ps(w, _mm512_load_ps(pattern.at[nibble.depth - 1][m]), sum);
    }
    entry[j] = _mm512_cvtps_epi32(sum);
  }
  const __m512i packed = _mm512_packs_epi16(_mm512_packs_epi32(entry[0], entry[1]),
                                            _mm512_packs_epi32(entry[2], entry[3]));
  _mm512_store_si512(tables, packed);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();
#endif  // AVX3_DL

#endif  // per-target include guard
