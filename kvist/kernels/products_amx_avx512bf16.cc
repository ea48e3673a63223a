// SPDX-License-Identifier: MIT
// Squares of 32 rows by 32 columns are summed over all coordinates in registers. Nothing of the
// standard library is instantiated here: this file's flags must not leak out.
#include "kvist/kernels/amx_tiles-inl.h"
#include "kvist/kernels/attend_internal.h"
#include "kvist/kernels/products_tiles.h"

#if defined(__AVX512BF16__) && defined(__linux__)
#include "kvist/kernels/attend_pairs-inl.h"

#pragma GCC target("amx-tile,amx-bf16")

namespace kvist::kernels {
namespace {

inline __m512 widened(__m256i bf16s) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16s), 16));
}

// Sixteen floats as the nearest bf16 and the bf16 nearest to what is left.
inline void split(__m512 x, __m256i* high, __m256i* low) {
  *high = (__m256i)_mm512_cvtneps_pbh(x);
  *low = (__m256i)_mm512_cvtneps_pbh(_mm512_sub_ps(x, widened(*high)));
}

constexpr int kTile = 16;    // rows of a tile
constexpr int kSquare = 32;  // rows and columns summed together
constexpr int kDepth = 32;   // coordinates of a tile
constexpr size_t kRowBytes = 64, kTileBytes = 1024;
constexpr size_t kStepBytes = 4 * kTileBytes;  // of 32 rows: two tiles of high parts, two of low

int steps(int width) { return (width + kDepth - 1) / kDepth; }
size_t square_bytes(int width) { return static_cast<size_t>(steps(width)) * kStepBytes; }

// 32 floats, those past n zero, as the nearest bf16 and the bf16 nearest to what is left.
void split(const float* x, int n, __m512i* high, __m512i* low) {
  __m256i h[2], l[2];
  for (int half = 0; half < 2; ++half) {
    const int some = n - half * kTile;
    const __mmask16 mask = some >= kTile ? 0xFFFF : some <= 0 ? 0 : (1 << some) - 1;
    const __m512 v = _mm512_maskz_loadu_ps(mask, x + half * kTile);
    split(v, &h[half], &l[half]);
  }
  *high = _mm512_inserti64x4(_mm512_castsi256_si512(h[0]), h[1], 1);
  *low = _mm512_inserti64x4(_mm512_castsi256_si512(l[0]), l[1], 1);
}

// By 32 rows, step, part and tile.
void make_left_tiles(const float* a, int rows, int64_t stride, int width, std::byte* out) {
  for (int r = 0; r < rows || r % kSquare != 0; ++r) {
    std::byte* row = out + static_cast<size_t>(r / kSquare) * square_bytes(width) +
                     static_cast<size_t>(r / kTile % 2) * kTileBytes +
                     static_cast<size_t>(r % kTile) * kRowBytes;
    for (int c = 0; c < width; c += kDepth, row += kStepBytes) {
      __m512i high = _mm512_setzero_si512(), low = high;
      if (r < rows) split(a + r * stride + c, width - c, &high, &low);
      _mm512_store_si512(row, high);
      _mm512_store_si512(row + 2 * kTileBytes, low);
    }
  }
}

// 32 rows by 32 columns.
void square(const std::byte* left, const std::byte* right, int n_steps, float* out,
            size_t out_bytes) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int k = 0; k < n_steps; ++k, left += kStepBytes, right += kStepBytes) {
    _tile_loadd(4, left, kRowBytes);
    _tile_loadd(5, left + kTileBytes, kRowBytes);
    _tile_loadd(6, right, kRowBytes);
    _tile_loadd(7, right + kTileBytes, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    _tile_loadd(6, right + 2 * kTileBytes, kRowBytes);
    _tile_loadd(7, right + 3 * kTileBytes, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    _tile_loadd(4, left + 2 * kTileBytes, kRowBytes);
    _tile_loadd(5, left + 3 * kTileBytes, kRowBytes);
    _tile_loadd(6, right, kRowBytes);
    _tile_loadd(7, right + kTileBytes, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, out, out_bytes);
  _tile_stored(1, out + kTile, out_bytes);
  _tile_stored(2, reinterpret_cast<std::byte*>(out) + kTile * out_bytes, out_bytes);
  _tile_stored(3, reinterpret_cast<std::byte*>(out + kTile) + kTile * out_bytes, out_bytes);
}

}  // namespace

size_t right_tiles_bytes(int n, int width) noexcept {
  return static_cast<size_t>((n + kSquare - 1) / kSquare) * square_bytes(width);
}

// By 32 rows, step, part and tile; a row of a tile is a pair of coordinates of 16 rows.
void make_right_tiles(const float* rows, int n, int width, int64_t stride,
                      std::byte* out) noexcept {
  for (int i = 0; i < n || i % kSquare != 0; ++i) {
    std::byte* tile = out + static_cast<size_t>(i / kSquare) * square_bytes(width) +
                      static_cast<size_t>(i / kTile % 2) * kTileBytes +
                      static_cast<size_t>(i % kTile) * sizeof(uint32_t);
    for (int c = 0; c < width; c += kDepth, tile += kStepBytes) {
      __m512i high = _mm512_setzero_si512(), low = high;
      if (i < n) split(rows + i * stride + c, width - c, &high, &low);
      const __m512i at =
          _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                             _mm512_set1_epi32(kRowBytes));
      _mm512_i32scatter_epi32(tile, at, high, 1);
      _mm512_i32scatter_epi32(tile + 2 * kTileBytes, at, low, 1);
    }
  }
}

size_t tile_scratch_bytes(int width) noexcept {
  return kTileRowsAtOnce / kSquare * square_bytes(width) + kSquare * kSquare * sizeof(float);
}

void tile_products(const float* a, int rows, int64_t a_stride, int width, const std::byte* right,
                   int columns, float* out, int64_t out_stride, std::byte* scratch) noexcept {
  make_left_tiles(a, rows, a_stride, width, scratch);
  internal::settle_memory(scratch);
  auto* partial = reinterpret_cast<float*>(
      scratch + static_cast<size_t>(kTileRowsAtOnce / kSquare) * square_bytes(width));
  const internal::TileScope scope;
  for (int r = 0; r < rows; r += kSquare) {
    const std::byte* left = scratch + static_cast<size_t>(r / kSquare) * square_bytes(width);
    const int some = rows - r < kSquare ? rows - r : kSquare;
    float* to = out + r * out_stride;
    for (int j = 0; j < columns; j += kSquare) {
      const std::byte* columns_at = right + static_cast<size_t>(j / kSquare) * square_bytes(width);
      if (some == kSquare) {
        square(left, columns_at, steps(width), to + j,
               static_cast<size_t>(out_stride) * sizeof(float));
        continue;
      }
      square(left, columns_at, steps(width), partial, kSquare * sizeof(float));
      internal::settle_memory(partial);
      for (int i = 0; i < some; ++i)
        __builtin_memcpy(to + i * out_stride + j, partial + i * kSquare, kSquare * sizeof(float));
    }
  }
  internal::settle_memory(out);
}

}  // namespace kvist::kernels

#else  // no AMX in this build

namespace kvist::kernels {
size_t right_tiles_bytes(int, int) noexcept { return 0; }
void make_right_tiles(const float*, int, int, int64_t, std::byte*) noexcept {}
size_t tile_scratch_bytes(int) noexcept { return 0; }
void tile_products(const float*, int, int64_t, int, const std::byte*, int, float*, int64_t,
                   std::byte*) noexcept {}
}  // namespace kvist::kernels

#endif
