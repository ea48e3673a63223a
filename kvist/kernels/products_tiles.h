// SPDX-License-Identifier: MIT
// Dot products of rows on AMX tiles, both sides as two bf16 parts: three of the four products.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvist::kernels {

// The right side: n rows, filled with zeros to a multiple of 32 of them and of 32 coordinates.
// Both outputs 64-byte aligned.
size_t right_tiles_bytes(int n, int width) noexcept;
void make_right_tiles(const float* rows, int n, int width, int64_t stride, std::byte* out) noexcept;

inline constexpr int kTileRowsAtOnce = 64;

// out[i * out_stride + j] = a_i . b_j for i < rows <= 64 and j < columns, a multiple of 32. Bound
// of its error: tile_unit(width) |a_i| |b_j|, as long as no number is so small that bf16 loses it.
// scratch: tile_scratch_bytes(width), 64-byte aligned.
size_t tile_scratch_bytes(int width) noexcept;
void tile_products(const float* a, int rows, int64_t a_stride, int width, const std::byte* right,
                   int columns, float* out, int64_t out_stride, std::byte* scratch) noexcept;

// A bf16 is off by at most 2^-8 of a number and two parts by 2^-16, so the products left out are
// below 3 * 2^-16; the sums of 3 width products in fp32 round by 2^-24 each.
constexpr double tile_unit(int width) { return 3 * 0x1p-16 + 3.0 * (width + 32) * 0x1p-24; }

}  // namespace kvist::kernels
