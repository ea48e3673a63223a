// SPDX-License-Identifier: MIT
// Rows of weights of any type, dequantised, rounded to bf16 where that is wanted.
#pragma once

#include <ggml.h>

#include <cstdint>

namespace kvist {

// Types whose product over many rows is slow in ggml, measured at 512 rows on two cores with
// AVX-512 bf16, AMD | Intel (GFLOP/s): f32 160 | 151, q4_1 81 | 48, q4_0 187 | 81, q8_0 213 | 88;
// against bf16 300-370 | 106, q4_K 380-540, q6_K 320-400. f32 and f16 are left alone all the same:
// rounding them to bf16 loses what the user chose to keep.
bool widening_pays(ggml_type type);

// Rows [first, last) of a matrix with `columns` columns. from: its first row; to: the first row of
// the wide matrix, whose type `wide` is GGML_TYPE_BF16 or GGML_TYPE_F32.
void widen_rows(ggml_type type, const void* from, int64_t columns, int64_t first, int64_t last,
                ggml_type wide, void* to);

// Round to nearest even; NaN stays NaN.
void round_to_bf16(const float* from, uint16_t* to, int64_t n);

// Rows of any type to f32.
void to_f32(ggml_type type, const void* from, int64_t n, float* to);

}  // namespace kvist
