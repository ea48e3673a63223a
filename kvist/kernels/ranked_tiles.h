// SPDX-License-Identifier: MIT
// Coefficients times a basis on AMX tiles, both as two bf16 parts: three of the four products, so
// that an error is about 2^-16 of a product, less than that of f16 coefficients.
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

// Coefficients of the first n_tokens tokens of a block, rows 32 k on of the basis; [n_tokens][32].
struct CoefficientRows {
  const float* x = nullptr;
  int n_tokens = 0;
};
// rows[t] += sum over chunks k of x_k[t] times the basis, for the columns [first, last) of `width`,
// both multiples of 16; rows [64][row_stride] from column 0 on. `tiles` are 64-byte aligned, as is
// scratch, basis_scratch_bytes(n_chunks).
size_t basis_scratch_bytes(int n_chunks) noexcept;
void add_basis_tiles(const std::byte* tiles, int width, int first, int last,
                     const CoefficientRows* chunks, int n_chunks, float* rows, int64_t row_stride,
                     std::byte* scratch) noexcept;

}  // namespace kvist::kernels
