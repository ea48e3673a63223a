// SPDX-License-Identifier: MIT
// Pairs of bf16 numbers, as bf16 dot products want them, from stored keys, values and queries. For
// files built for AVX512-BF16 only: everything here is local to the file that includes it.
#pragma once

// gcc 12's own intrinsics start from undefined vectors and it warns of them.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include "kvist/kernels/attend_internal.h"

namespace kvist::kernels::internal {
namespace {

constexpr int kPairs = kBlock / 2;
constexpr float kUnseen = -__builtin_inff();

inline int round_up(int n, int unit) { return (n + unit - 1) / unit * unit; }

inline __mmask16 first_lanes(int n) {
  return n >= 16 ? static_cast<__mmask16>(0xFFFF) : static_cast<__mmask16>((1u << n) - 1u);
}

// Sixteen numbers, those beyond the mask zero and not touched.
inline __m512 load16(const float* p, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, p); }
inline __m512 load16(const f16* p, __mmask16 mask) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p));
}
inline __m512 load16(const bf16* p, __mmask16 mask) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

// out[i] = the pair (a[i], b[i]) in bf16, a in the lower half.
inline __m512i pair16(__m512 a, __m512 b) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}

// out[0, padded) = pairs of a[0, n) and b[0, n); b may be null (zeros); padded is n rounded up
// to 16.
template <typename T>
inline void pair_rows(const T* a, const T* b, int n, uint32_t* out) {
  for (int i = 0; i < n; i += 16) {
    const __mmask16 mask = first_lanes(n - i);
    const __m512 x = load16(a + i, mask);
    const __m512 y = b == nullptr ? _mm512_setzero_ps() : load16(b + i, mask);
    _mm512_storeu_si512(out + i, pair16(x, y));
  }
}

// k [head_dim][width] as out [(head_dim + 1) / 2][64] pairs of channels, zero from the width on.
template <typename T>
inline void unpack_keys(const T* k, int width, int head_dim, uint32_t* out) {
  const int padded = round_up(width, 16);
  for (int c = 0; c < head_dim; c += 2, out += kBlock) {
    pair_rows(k + c * width, c + 1 < head_dim ? k + (c + 1) * width : nullptr, width, out);
    for (int i = padded; i < kBlock; i += 16) _mm512_storeu_si512(out + i, _mm512_setzero_si512());
  }
}

// v [n][head_dim] as out [(n + 1) / 2][columns] pairs of tokens; columns is head_dim rounded up
// to 16.
template <typename T>
inline void unpack_values(const T* v, int n, int head_dim, int columns, uint32_t* out) {
  for (int t = 0; t < n; t += 2, out += columns)
    pair_rows(v + t * head_dim, t + 1 < n ? v + (t + 1) * head_dim : nullptr, head_dim, out);
}

// out [rows][stride] pairs of channels, zero beyond head_dim.
inline void pack_queries(const float* q, int rows, int head_dim, int stride, uint32_t* out) {
  for (int r = 0; r < rows; ++r, q += head_dim, out += stride) {
    for (int c = 0; c < stride; c += 8) {
      const int channels = head_dim - 2 * c, left = stride - c;
      const __m512 x = _mm512_maskz_loadu_ps(first_lanes(channels > 0 ? channels : 0), q + 2 * c);
      _mm256_mask_storeu_epi32(out + c, static_cast<__mmask8>(left >= 8 ? 0xFF : (1 << left) - 1),
                               (__m256i)_mm512_cvtneps_pbh(x));
    }
  }
}

// Tokens of [at, at + n) that row r sees.
inline int seen_tokens(const int32_t* visible, int r, int at, int n) {
  if (visible == nullptr) return n;
  const int seen = visible[r] - at;
  return seen < 0 ? 0 : seen < n ? seen : n;
}

}  // namespace
}  // namespace kvist::kernels::internal
