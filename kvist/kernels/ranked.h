// SPDX-License-Identifier: MIT
// Inner loops of reading VarRate codes (arXiv:2607.15498): keys of 64 tokens from anchors and
// coefficients, their logits, and weighted sums of coefficients.
#pragma once

#include <cstdint>

#include "kvist/core/half.h"

namespace kvist::kernels {

// Coefficients that are read together, a row of floats each token; shorter ones end in zeros.
inline constexpr int kCoefficients = 32;

// n numbers, widened and multiplied by `scale`.
void widen_f16(const f16* in, int64_t n, float scale, float* out) noexcept;
// n numbers times `scale`, to the nearest f16, ties to even.
void narrow_f16(const float* in, int64_t n, float scale, f16* out) noexcept;

// The anchors of some tokens: token t has count[t] of them, index[t * stride] on.
struct AnchorLists {
  const uint16_t* index = nullptr;
  const uint8_t* count = nullptr;
  int stride = 0;
};
// out[t] = the mean of its anchors' rows, 0 of none, summed in their order; rows [.][width], out
// [n][width].
void mean_rows(const float* rows, const AnchorLists& anchors, int n, int width,
               float* out) noexcept;

// rows[t][0, width) += sum over j < depth[t] of x[t][j] * basis[j][0, width), x [n][32]; depth
// falls with t.
struct BasisSlice {
  const float* rows = nullptr;
  int64_t stride = 0;
  int width = 0;
};
void add_basis_rows(const float* x, const uint8_t* depth, int n, const BasisSlice& basis,
                    float* rows, int64_t row_stride) noexcept;

// Turns the heads of row t by the angles of turns[t], [frequencies][2] cosines and sines; back
// where `back`. Bit for bit as RotationTable does. rows [n][row_stride] from the first head on.
struct Turn {
  int n_frequencies = 0;
  bool adjacent = false;
  bool back = false;
};
void turn_rows(float* rows, int64_t row_stride, int n, int heads, int head_dim,
               const float* const* turns, const Turn& how) noexcept;
// The same of one head after the mean of its anchors' rows was added, as mean_rows() has it, or put
// there where `onto` is false; anchors' rows lie anchor_stride apart.
void turn_with_means(const float* anchors, int64_t anchor_stride, const AnchorLists& lists,
                     bool onto, float* rows, int64_t row_stride, int n, int head_dim,
                     const float* const* turns, const Turn& how) noexcept;

// out [head_dim][64]: its first n <= 64 columns from rows [n] of head_dim numbers, row_stride
// apart.
void columns_from_rows(const float* rows, int64_t row_stride, int n, int head_dim,
                       float* out) noexcept;

// s[r][0, 64) = q[r] . key t, for a block of keys [head_dim][64]; q [rows][head_dim].
void score_block(const void* k, Scalar type, int head_dim, const float* q, int rows, float* s,
                 int64_t s_stride) noexcept;

// Turns logits s[r][0, n) of a block, n <= 64, into exp(s - m[r]) with the running maxima brought
// up to date, and adds them to l; the rest of the 64 become 0. factor[r]: by what sums of earlier
// weights shrink. Returns whether any factor is not 1.
bool weigh_block(float* s, int64_t s_stride, int rows, int n, float* m, float* l,
                 float* factor) noexcept;

// Coefficients of the first n_tokens tokens of a block for 32 rows of a basis: x [n_tokens][32],
// or, where they are read as stored, token t's first depth[t] <= 32, one token's after the other's.
// depth falls with t.
struct CoefficientRows {
  int n_tokens = 0;
  const float* x = nullptr;
  const uint8_t* depth = nullptr;
  const f16* stored = nullptr;  // in the place of x
};
// sums[r][0, 32) += sum over t of p[r][t] times the coefficients of token t, stored ones times
// `unit`; p [rows][p_stride].
void add_coefficients(const float* p, int64_t p_stride, int rows, const CoefficientRows& chunk,
                      float unit, float* sums) noexcept;

// weights[a][r] += p[r][t] / count[t] for the anchors a of token t; `weights` has rows of `stride`
// floats, stride a multiple of 16 and at least `rows`; p [rows][p_stride].
void add_shares(const float* p, int64_t p_stride, int rows, const AnchorLists& anchors, int n,
                float* weights, int64_t stride) noexcept;

// x[t][r] *= factor[r], [n][stride]; factor [stride].
void scale_columns(float* x, int64_t n, int64_t stride, const float* factor) noexcept;
// out[t][r] += x[t][r] * factor[r].
void add_scaled_columns(const float* x, int64_t n, int64_t stride, const float* factor,
                        float* out) noexcept;

// o[r] += sum over t of p[r][t] * v[t], v [n][head_dim]; o [rows][head_dim].
void add_value_rows(const void* v, Scalar type, int head_dim, int n, const float* p,
                    int64_t p_stride, int rows, float* o) noexcept;

// x[0, n) = exp(x - top), top at least as large as any; returns their sum.
float exponentials_below(float* x, int n, float top) noexcept;
// out[0, n) += x * factor.
void add_scaled(const float* x, int64_t n, float factor, float* out) noexcept;
void scale(float* x, int64_t n, float factor) noexcept;

}  // namespace kvist::kernels
