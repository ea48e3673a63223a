// SPDX-License-Identifier: MIT
// A tile of 16 tokens by 16 columns is summed over all chunks in registers. Nothing of the standard
// library is instantiated here: this file's flags must not leak out.
#include "kvist/kernels/amx_tiles-inl.h"
#include "kvist/kernels/attend_internal.h"
#include "kvist/kernels/ranked_tiles.h"

#if defined(__AVX512BF16__) && defined(__linux__)
#include "kvist/kernels/bf16_parts-inl.h"

#pragma GCC target("amx-tile,amx-bf16")

namespace kvist::kernels {
namespace {

constexpr int kTile = 16;                             // tokens of a tile, and its columns
constexpr size_t kTileBytes = 1024, kPartBytes = 64;  // of a tile, of a row of one
constexpr size_t kBlockTiles = 4;                     // of the tokens of a block

// Tiles of rows of coefficients: of chunk k and part, 64 rows of 32 bf16.
std::byte* left_tile(std::byte* scratch, int chunk, int part, size_t row_tile) {
  return scratch + (static_cast<size_t>(2 * chunk + part) * kBlockTiles + row_tile) * kTileBytes;
}

void split_rows(const CoefficientRows& chunk, std::byte* high, std::byte* low) {
  for (int t = 0; t < chunk.n_tokens; ++t) {
    for (int half = 0; half < 2; ++half) {
      __m256i a, b;
      split(_mm512_loadu_ps(chunk.x + t * kCoefficients + half * kTile), &a, &b);
      _mm256_store_si256(reinterpret_cast<__m256i*>(high + kPartBytes * t + 32 * half), a);
      _mm256_store_si256(reinterpret_cast<__m256i*>(low + kPartBytes * t + 32 * half), b);
    }
  }
  for (int t = chunk.n_tokens; t % kTile != 0; ++t) {
    _mm512_store_si512(high + kPartBytes * t, _mm512_setzero_si512());
    _mm512_store_si512(low + kPartBytes * t, _mm512_setzero_si512());
  }
}

// Adds a chunk to two sums: high times high, low times high, high times low, in turn, so that no
// product waits for the one before. Macros, since gcc's intrinsics want the number of a tile as it
// is written.
#define KVIST_MULTIPLY_TWO(sum, other, right, part_bytes)            \
  do {                                                               \
    _tile_loadd(6, (right), kPartBytes);                             \
    _tile_loadd(7, (right) + kTileBytes, kPartBytes);                \
    _tile_dpbf16ps(sum, 4, 6);                                       \
    _tile_dpbf16ps(other, 4, 7);                                     \
    _tile_dpbf16ps(sum, 5, 6);                                       \
    _tile_dpbf16ps(other, 5, 7);                                     \
    _tile_loadd(6, (right) + (part_bytes), kPartBytes);              \
    _tile_loadd(7, (right) + (part_bytes) + kTileBytes, kPartBytes); \
    _tile_dpbf16ps(sum, 4, 6);                                       \
    _tile_dpbf16ps(other, 4, 7);                                     \
  } while (false)
#define KVIST_MULTIPLY_ONE(sum, right, part_bytes)      \
  do {                                                  \
    _tile_loadd(6, (right), kPartBytes);                \
    _tile_loadd(7, (right) + (part_bytes), kPartBytes); \
    _tile_dpbf16ps(sum, 4, 6);                          \
    _tile_dpbf16ps(sum, 5, 6);                          \
    _tile_dpbf16ps(sum, 4, 7);                          \
  } while (false)

// kTiles (1 or 4) tiles of columns from `column` on, of 16 tokens; n_chunks reach into them.
template <int kTiles>
void add_tiles(const std::byte* tiles, int width, int column, std::byte* scratch, size_t row_tile,
               int n_chunks, float* rows, int64_t row_stride) {
  const size_t stride = static_cast<size_t>(row_stride) * sizeof(float);
  const size_t chunk_bytes = static_cast<size_t>(width / kTile) * kTileBytes;  // of a part
  _tile_loadd(0, rows, stride);
  if (kTiles > 1) _tile_loadd(1, rows + kTile, stride);
  if (kTiles > 3) _tile_loadd(2, rows + 2 * kTile, stride);
  if (kTiles > 3) _tile_loadd(3, rows + 3 * kTile, stride);
  const std::byte* right = tiles + static_cast<size_t>(column / kTile) * kTileBytes;
  for (int k = 0; k < n_chunks; ++k, right += 2 * chunk_bytes) {
    _tile_loadd(4, left_tile(scratch, k, 0, row_tile), kPartBytes);
    _tile_loadd(5, left_tile(scratch, k, 1, row_tile), kPartBytes);
    if (kTiles == 1) KVIST_MULTIPLY_ONE(0, right, chunk_bytes);
    if (kTiles > 1) KVIST_MULTIPLY_TWO(0, 1, right, chunk_bytes);
    if (kTiles > 3) KVIST_MULTIPLY_TWO(2, 3, right + 2 * kTileBytes, chunk_bytes);
  }
  _tile_stored(0, rows, stride);
  if (kTiles > 1) _tile_stored(1, rows + kTile, stride);
  if (kTiles > 3) _tile_stored(2, rows + 2 * kTile, stride);
  if (kTiles > 3) _tile_stored(3, rows + 3 * kTile, stride);
}

}  // namespace

size_t basis_tiles_bytes(int n_rows, int width) noexcept {
  const size_t chunks = static_cast<size_t>((n_rows + kCoefficients - 1) / kCoefficients);
  return chunks * 2 * static_cast<size_t>(width / kTile) * kTileBytes;
}

// By chunk, part and tile of columns; a row of a tile is a pair of rows of the basis.
void make_basis_tiles(const BasisSlice& basis, int n_rows, std::byte* out) noexcept {
  const size_t part = static_cast<size_t>(basis.width / kTile) * kTileBytes;
  for (int row = 0; row < n_rows; row += kCoefficients, out += 2 * part) {
    for (int column = 0; column < basis.width; ++column) {
      for (int j = 0; j < kCoefficients; ++j) {
        const float x = row + j < n_rows ? basis.rows[(row + j) * basis.stride + column] : 0.0f;
        const bf16 high = to_bf16(x), low = to_bf16(x - to_float(high));
        const size_t at = static_cast<size_t>(column / kTile) * kTileBytes +
                          static_cast<size_t>(j / 2) * kPartBytes +
                          static_cast<size_t>(column % kTile * 2 + j % 2) * sizeof(bf16);
        __builtin_memcpy(out + at, &high, sizeof high);
        __builtin_memcpy(out + part + at, &low, sizeof low);
      }
    }
  }
}

size_t basis_scratch_bytes(int n_chunks) noexcept {
  return static_cast<size_t>(n_chunks) * 2 * kBlockTiles * kTileBytes;
}

void add_basis_tiles(const std::byte* tiles, int width, int first, int last,
                     const CoefficientRows* chunks, int n_chunks, float* rows, int64_t row_stride,
                     std::byte* scratch) noexcept {
  for (int k = 0; k < n_chunks; ++k)
    split_rows(chunks[k], left_tile(scratch, k, 0, 0), left_tile(scratch, k, 1, 0));
  internal::settle_memory(scratch);
  const internal::TileScope scope;
  int reach = n_chunks;
  for (size_t row_tile = 0; row_tile < kBlockTiles; ++row_tile) {
    while (reach > 0 && chunks[reach - 1].n_tokens <= static_cast<int>(row_tile) * kTile) --reach;
    if (reach == 0) break;
    float* to = rows + static_cast<int64_t>(row_tile) * kTile * row_stride;
    int column = first;
    for (; column + 4 * kTile <= last; column += 4 * kTile)
      add_tiles<4>(tiles, width, column, scratch, row_tile, reach, to + column, row_stride);
    for (; column < last; column += kTile)
      add_tiles<1>(tiles, width, column, scratch, row_tile, reach, to + column, row_stride);
  }
  internal::settle_memory(rows);
}

}  // namespace kvist::kernels

#else  // no AMX in this build

namespace kvist::kernels {
size_t basis_tiles_bytes(int, int) noexcept { return 0; }
void make_basis_tiles(const BasisSlice&, int, std::byte*) noexcept {}
size_t basis_scratch_bytes(int) noexcept { return 0; }
void add_basis_tiles(const std::byte*, int, int, int, const CoefficientRows*, int, float*, int64_t,
                     std::byte*) noexcept {}
}  // namespace kvist::kernels

#endif
