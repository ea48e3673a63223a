// SPDX-License-Identifier: MIT
// Counts similar keys by bf16 products on AMX tiles: 32 x 32 pairs at a time, one pass over all
// coordinates, compared while in cache. Nothing of the standard library is instantiated here: this
// file's flags must not leak out.
#include "kvist/kernels/amx_tiles-inl.h"
#include "kvist/kernels/similar_internal.h"

#if defined(__AVX512BF16__) && defined(__linux__)
#include <immintrin.h>

#pragma GCC target("amx-tile,amx-bf16")
// gcc 12 warns of the deliberately undefined operands inside its own intrinsics.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

namespace kvist::kernels::internal {
namespace {

constexpr int kTile = 16;  // rows of a tile, and its columns of four bytes

// out [32][32] = products of 32 rows with a panel.
inline void multiply(const uint32_t* rows, const uint32_t* panel, int pairs, float* out) {
  const size_t row_bytes = 4 * static_cast<size_t>(pairs), panel_bytes = 4 * kPanel;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int k = 0; k < pairs; k += kTile) {
    _tile_loadd(4, rows + k, row_bytes);
    _tile_loadd(6, panel + k * kPanel, panel_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, panel + k * kPanel + kTile, panel_bytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, rows + kTile * pairs + k, row_bytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, out, panel_bytes);
  _tile_stored(1, out + kTile, panel_bytes);
  _tile_stored(2, out + kTile * kPanel, panel_bytes);
  _tile_stored(3, out + kTile * kPanel + kTile, panel_bytes);
  settle_memory(out);
}

// Whether any of 8 rows of 32 products exceeds `maybe`.
inline bool any_above(const float* x, __m512 maybe) {
  __m512 most[4];
  for (int v = 0; v < 4; ++v) most[v] = _mm512_load_ps(x + v * kTile);
  for (int v = 4; v < 16; ++v)
    most[v % 4] = _mm512_max_ps(most[v % 4], _mm512_load_ps(x + v * kTile));
  const __m512 all =
      _mm512_max_ps(_mm512_max_ps(most[0], most[1]), _mm512_max_ps(most[2], most[3]));
  return _mm512_cmp_ps_mask(all, maybe, _CMP_GT_OQ) != 0;
}

inline uint32_t compare(const float* x, __m512 limit) {
  const uint32_t low = _mm512_cmp_ps_mask(_mm512_load_ps(x), limit, _CMP_GT_OQ);
  const uint32_t high = _mm512_cmp_ps_mask(_mm512_load_ps(x + kTile), limit, _CMP_GT_OQ);
  return low | high << kTile;
}

// The canonical decision, by an fp32 product of the keys where that is clear enough.
inline bool is_similar(const Bf16Keys& p, int i, int j) {
  const double norms = p.norms[i] * p.norms[j];
  if (p.norms[i] > 1e-20 && p.norms[j] > 1e-20 && norms < 1e30) {  // neither underflow nor overflow
    const float* a = p.keys + static_cast<int64_t>(i) * p.head_dim;
    const float* b = p.keys + static_cast<int64_t>(j) * p.head_dim;
    __m512 sum = _mm512_setzero_ps();
    for (int k = 0; k < p.head_dim; k += kTile) {
      const int left = p.head_dim - k;
      const __mmask16 mask = left >= kTile ? 0xFFFF : static_cast<__mmask16>((1u << left) - 1);
      sum = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, a + k), _mm512_maskz_loadu_ps(mask, b + k),
                            sum);
    }
    const double dot = static_cast<double>(_mm512_reduce_add_ps(sum)),
                 length = __builtin_sqrt(norms);
    const double guard = (p.head_dim + 8) * 0x1p-23;
    if (dot > (0.85 + guard) * length) return true;
    if (dot < (0.85 - guard) * length) return false;
  }
  return decide(p.keys, p.norms, p.head_dim, i, j);
}

// Adds the similar pairs of key i and panel keys j0 .. j0 + 31 to counts.
inline void count_row(const Bf16Keys& p, int i, int j0, const float* x, __m512 maybe,
                      int32_t* counts, CountStats* stats) {
  const int first = i + p.ell + 1 - j0;
  if (first >= kPanel) return;
  uint32_t hits = compare(x, maybe);
  if (first > 0) hits &= ~0u << first;
  if (hits == 0) return;
  uint32_t open = hits & ~compare(x, _mm512_set1_ps(p.surely));
  for (; open != 0; open &= open - 1) {
    const int c = __builtin_ctz(open);
    ++stats->borderline;
    if (!is_similar(p, i, j0 + c)) hits &= ~(1u << c);
  }
  counts[i] += __builtin_popcount(hits);
  const __m512i one = _mm512_set1_epi32(1);
  for (int v = 0; v < 2; ++v) {
    int32_t* column = counts + j0 + v * kTile;
    const __m512i old = _mm512_loadu_si512(column);
    const __mmask16 mask = static_cast<__mmask16>(hits >> (v * kTile));
    _mm512_storeu_si512(column, _mm512_mask_add_epi32(old, mask, old, one));
  }
}

// Counts the pairs of 32 keys i0 .. with panel keys j0 .. from their products [32][32].
inline void count_products(const Bf16Keys& p, int i0, int j0, const float* x, int32_t* counts,
                           CountStats* stats) {
  const __m512 maybe = _mm512_set1_ps(p.maybe);
  for (int r = 0; r < kPanel; r += 8, x += 8 * kPanel) {
    ++stats->tiles;
    if (!any_above(x, maybe)) continue;
    for (int q = 0; q < 8; ++q) count_row(p, i0 + r + q, j0, x + q * kPanel, maybe, counts, stats);
  }
}

// Coordinates k .. k + 15 of one unit key, 0 past head_dim.
inline __m512 unit_part(const float* key, double scale, int d, int k) {
  const int left = d - k < 0 ? 0 : d - k < kTile ? d - k : kTile;
  if (scale > 1e-25 && scale < 1e25) {  // a normal float
    const __m512 x = _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << left) - 1), key + k);
    return _mm512_mul_ps(x, _mm512_set1_ps(static_cast<float>(scale)));
  }
  alignas(64) float x[kTile] = {};
  for (int c = 0; c < left; ++c) x[c] = static_cast<float>(static_cast<double>(key[k + c]) * scale);
  return _mm512_load_ps(x);
}

// Writes one unit key as bf16 pairs and returns the square of its rounding error.
inline float pack_row(const float* key, double norm2, int d, int pairs, uint32_t* out) {
  const double scale = norm2 == 0 ? 0 : 1 / __builtin_sqrt(norm2);
  __m512 error2 = _mm512_setzero_ps();
  for (int k = 0; k < 2 * pairs; k += kTile) {
    const __m512 x = unit_part(key, scale, d, k);
    const __m256i half = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
    const __m512 back = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
    const __m512 e = _mm512_sub_ps(x, back);
    error2 = _mm512_fmadd_ps(e, e, error2);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + k / 2), half);
  }
  return _mm512_reduce_add_ps(error2);
}

}  // namespace

float pack_panel_amx(const Bf16Keys& p, int b) noexcept {
  const int begin = b * kPanel;
  uint32_t* rows = p.rows + static_cast<int64_t>(begin) * p.pairs;
  float worst2 = 0;
  for (int t = 0; t < kPanel; ++t) {
    uint32_t* row = rows + t * p.pairs;
    if (begin + t >= p.n) {
      for (int k = 0; k < p.pairs; ++k) row[k] = 0;
      continue;
    }
    const float* key = p.keys + static_cast<int64_t>(begin + t) * p.head_dim;
    const float error2 = pack_row(key, p.norms[begin + t], p.head_dim, p.pairs, row);
    worst2 = error2 > worst2 ? error2 : worst2;
  }
  const __m512i index =
      _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                         _mm512_set1_epi32(p.pairs));
  uint32_t* panel = p.panels + static_cast<int64_t>(begin) * p.pairs;
  for (int k = 0; k < p.pairs; ++k) {
    for (int t = 0; t < kPanel; t += kTile) {
      _mm512_storeu_si512(panel + k * kPanel + t,
                          _mm512_i32gather_epi32(index, rows + t * p.pairs + k, 4));
    }
  }
  return __builtin_sqrtf(worst2);
}

void count_block_amx(const Bf16Keys& p, int row_begin, int row_end, int panel_begin, int panel_end,
                     int32_t* counts, CountStats* stats) noexcept {
  // One block of products is read while the tiles work on the next.
  alignas(64) float products[2][kPanel * kPanel];
  int i_ready = -1, j_ready = 0, turn = 0;
  const TileScope tiles;
  for (int i0 = row_begin; i0 < row_end; i0 += kPanel) {
    const uint32_t* rows = p.rows + static_cast<int64_t>(i0) * p.pairs;
    for (int b = panel_begin; b < panel_end; ++b) {
      const int j0 = b * kPanel;
      if (j0 + kPanel - 1 <= i0 + p.ell) continue;
      multiply(rows, p.panels + static_cast<int64_t>(j0) * p.pairs, p.pairs, products[turn]);
      turn = 1 - turn;
      if (i_ready >= 0) count_products(p, i_ready, j_ready, products[turn], counts, stats);
      i_ready = i0;
      j_ready = j0;
    }
  }
  if (i_ready >= 0) count_products(p, i_ready, j_ready, products[1 - turn], counts, stats);
}

}  // namespace kvist::kernels::internal

#else

namespace kvist::kernels::internal {
float pack_panel_amx(const Bf16Keys&, int) noexcept { return 0; }
void count_block_amx(const Bf16Keys&, int, int, int, int, int32_t*, CountStats*) noexcept {}
}  // namespace kvist::kernels::internal

#endif
