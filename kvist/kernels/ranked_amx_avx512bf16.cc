// SPDX-License-Identifier: MIT
// Two tiles of 16 tokens by two of 16 columns are summed over all chunks in registers. Nothing of
// the standard library is instantiated here: this file's flags must not leak out.
#include "kvist/kernels/amx_tiles-inl.h"
#include "kvist/kernels/attend_internal.h"
#include "kvist/kernels/ranked_tiles.h"

#if defined(__AVX512BF16__) && defined(__linux__)
#include <immintrin.h>

#pragma GCC target("amx-tile,amx-bf16")

namespace kvist::kernels {
namespace {

constexpr int kTile = 16;                            // tokens of a tile, and its columns
constexpr size_t kTileBytes = 1024, kRowBytes = 64;  // of a tile, of a row of one
constexpr int kBlockTiles = kBlock / kTile;          // of the tokens of a block

// Of chunk k: 64 rows of 32 bf16.
std::byte* left_tile(std::byte* left, int chunk, int row_tile) {
  return left + static_cast<size_t>(chunk * kBlockTiles + row_tile) * kTileBytes;
}

// Where the products of a pair of row tiles lie, and how many chunks reach into each of them.
struct Rows {
  const std::byte* left;
  int reach[2];
  float* out;
  size_t stride;  // bytes
};

// Macros, since gcc's intrinsics want the number of a tile as it is written.
#define KVIST_RIGHT(k)                                                                      \
  do {                                                                                      \
    _tile_loadd(6, right + static_cast<size_t>(k) * chunk_bytes, kRowBytes);                \
    if (kTwo)                                                                               \
      _tile_loadd(7, right + static_cast<size_t>(k) * chunk_bytes + kTileBytes, kRowBytes); \
  } while (false)

// One or two tiles of columns from `right` on.
template <bool kTwo>
void multiply(const Rows& rows, const std::byte* right, size_t chunk_bytes) {
  constexpr size_t kChunk = static_cast<size_t>(kBlockTiles) * kTileBytes;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const std::byte* left = rows.left;
  int k = 0;
  for (; k < rows.reach[1]; ++k, left += kChunk) {
    KVIST_RIGHT(k);
    _tile_loadd(4, left, kRowBytes);
    _tile_loadd(5, left + kTileBytes, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(2, 5, 6);
    if (kTwo) _tile_dpbf16ps(1, 4, 7);
    if (kTwo) _tile_dpbf16ps(3, 5, 7);
  }
  for (; k < rows.reach[0]; ++k, left += kChunk) {
    KVIST_RIGHT(k);
    _tile_loadd(4, left, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    if (kTwo) _tile_dpbf16ps(1, 4, 7);
  }
  float* below = rows.out + static_cast<size_t>(kTile) * rows.stride / sizeof(float);
  _tile_stored(0, rows.out, rows.stride);
  _tile_stored(2, below, rows.stride);
  if (kTwo) _tile_stored(1, rows.out + kTile, rows.stride);
  if (kTwo) _tile_stored(3, below + kTile, rows.stride);
}
#undef KVIST_RIGHT

// The lower 16 of `lanes` of x, times `by`; the others are zero and not read.
__m512 widened(const f16* x, uint32_t lanes, __m512 by) {
  const __m256i half = _mm256_maskz_loadu_epi16(static_cast<__mmask16>(lanes), x);
  return _mm512_mul_ps(_mm512_maskz_cvtph_ps(0xFFFF, half), by);
}

}  // namespace

size_t basis_tiles_bytes(int n_rows, int width) noexcept {
  const size_t chunks = static_cast<size_t>((n_rows + kCoefficients - 1) / kCoefficients);
  return chunks * static_cast<size_t>(width / kTile) * kTileBytes;
}

// By chunk and tile of columns; a row of a tile is a pair of rows of the basis.
void make_basis_tiles(const BasisSlice& basis, int n_rows, std::byte* out) noexcept {
  const size_t chunk = static_cast<size_t>(basis.width / kTile) * kTileBytes;
  for (int row = 0; row < n_rows; row += kCoefficients, out += chunk) {
    for (int column = 0; column < basis.width; ++column) {
      for (int j = 0; j < kCoefficients; ++j) {
        const bf16 x =
            to_bf16(row + j < n_rows ? basis.rows[(row + j) * basis.stride + column] : 0.0f);
        const size_t at = static_cast<size_t>(column / kTile) * kTileBytes +
                          static_cast<size_t>(j / 2) * kRowBytes +
                          static_cast<size_t>(column % kTile * 2 + j % 2) * sizeof(bf16);
        __builtin_memcpy(out + at, &x, sizeof x);
      }
    }
  }
}

size_t coefficient_tiles_bytes(int n_chunks) noexcept {
  return static_cast<size_t>(n_chunks * kBlockTiles) * kTileBytes;
}

void make_coefficient_tiles(const CoefficientRows* chunks, int n_chunks, float unit,
                            std::byte* out) noexcept {
  const __m512 by = _mm512_set1_ps(unit);
  for (int k = 0; k < n_chunks; ++k) {
    std::byte* to = left_tile(out, k, 0);
    const f16* stored = chunks[k].stored;
    int t = 0;
    for (; t < chunks[k].n_tokens; ++t, to += kRowBytes) {
      __m512 low, high;
      if (stored != nullptr) {
        const auto lanes = static_cast<uint32_t>((uint64_t{1} << chunks[k].depth[t]) - 1);
        low = widened(stored, lanes, by), high = widened(stored + kTile, lanes >> kTile, by);
        stored += chunks[k].depth[t];
      } else {
        const float* x = chunks[k].x + t * kCoefficients;
        low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + kTile);
      }
      const __m512bh row = _mm512_cvtne2ps_pbh(high, low);
      __builtin_memcpy(to, &row, kRowBytes);
    }
    for (; t % (2 * kTile) != 0; ++t, to += kRowBytes) __builtin_memset(to, 0, kRowBytes);
  }
}

void configure_basis_tiles() noexcept { internal::configure_tiles(); }

void multiply_basis_tiles(const std::byte* tiles, int width, int first, int last,
                          const CoefficientRows* chunks, int n_chunks, const std::byte* left,
                          int n_tokens, float* rows, int64_t row_stride) noexcept {
  internal::settle_memory(left);
  const size_t chunk_bytes = static_cast<size_t>(width / kTile) * kTileBytes;
  int reach = n_chunks;
  const auto reached = [&](int row_tile) {
    while (reach > 0 && chunks[reach - 1].n_tokens <= row_tile * kTile) --reach;
    return reach;
  };
  for (int row_tile = 0; row_tile * kTile < n_tokens; row_tile += 2) {
    const int upper = reached(row_tile), lower = reached(row_tile + 1);
    const Rows of{left + static_cast<size_t>(row_tile) * kTileBytes,
                  {upper, lower},
                  rows + static_cast<int64_t>(row_tile) * kTile * row_stride,
                  static_cast<size_t>(row_stride) * sizeof(float)};
    for (int column = first; column < last; column += 2 * kTile) {
      Rows at = of;
      at.out += column - first;
      const std::byte* right = tiles + static_cast<size_t>(column / kTile) * kTileBytes;
      column + 2 * kTile <= last ? multiply<true>(at, right, chunk_bytes)
                                 : multiply<false>(at, right, chunk_bytes);
    }
  }
  internal::settle_memory(rows);
}

}  // namespace kvist::kernels

#else  // no AMX in this build

namespace kvist::kernels {
size_t basis_tiles_bytes(int, int) noexcept { return 0; }
void make_basis_tiles(const BasisSlice&, int, std::byte*) noexcept {}
size_t coefficient_tiles_bytes(int) noexcept { return 0; }
void make_coefficient_tiles(const CoefficientRows*, int, float, std::byte*) noexcept {}
void configure_basis_tiles() noexcept {}
void multiply_basis_tiles(const std::byte*, int, int, int, const CoefficientRows*, int,
                          const std::byte*, int, float*, int64_t) noexcept {}
}  // namespace kvist::kernels

#endif
