// SPDX-License-Identifier: MIT
// Coefficients times a basis on AMX tiles, both rounded to bf16, as keys and queries are where
// attention runs on tiles.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvist/kernels/ranked.h"

namespace kvist::kernels {

// Whether this CPU has them and they are allowed: asked again for each call, as tests pin targets.
bool has_basis_tiles() noexcept;

// The columns of a basis in tiles; width is a multiple of 16. Rows beyond n_rows are zero.
size_t basis_tiles_bytes(int n_rows, int width) noexcept;
void make_basis_tiles(const BasisSlice& basis, int n_rows, std::byte* out) noexcept;

size_t coefficient_tiles_bytes(int n_chunks) noexcept;
// `unit` is what stored ones are multiplied by.
void make_coefficient_tiles(const CoefficientRows* chunks, int n_chunks, float unit,
                            std::byte* out) noexcept;

// rows[t] = sum over chunks k of x_k[t] times the basis, for the columns [first, last) of `width`,
// multiples of 16, of n_tokens <= 64 tokens; rows [64][row_stride] from column `first` on, those of
// further tokens undefined. After configure_basis_tiles() on this thread; whoever calls that keeps
// what was configured before (KeepAmxState). `tiles` and `left`, of the two calls above, are
// 64-byte aligned.
void configure_basis_tiles() noexcept;
void multiply_basis_tiles(const std::byte* tiles, int width, int first, int last,
                          const CoefficientRows* chunks, int n_chunks, const std::byte* left,
                          int n_tokens, float* rows, int64_t row_stride) noexcept;

}  // namespace kvist::kernels
