// SPDX-License-Identifier: MIT
// Tree codes of up to 64 tokens by rows of a basis (VarRate, arXiv:2607.15498, with the progressive
// code of arXiv:2610.11245): every row in bit planes, read as deep as the row deserves.
#pragma once

#include <cstdint>

namespace kvist::kernels {

// Where some tokens' codes of one row lie: their most significant bits are bits [bit, bit + count)
// of the codes, lowest bit of a byte first, each next plane `stride` bits further.
struct PlaneRow {
  int64_t bit = 0;
  int stride = 0;
  uint8_t count = 0;  // tokens, at most 64; the first ones of the block
  uint8_t depth = 0;  // planes read, or written
};

// Into bits that were 0. leaves [tokens][row_stride]: whole codes of 8 bits, row j that of rows[j].
void write_row_planes(const uint8_t* leaves, int row_stride, const PlaneRow* rows, int n_rows,
                      uint8_t* codes) noexcept;

// x[i][j] = Q_depth(code) * (gains[i] * sigmas[j]) for the tokens of row j, 0 for the others and at
// depth 0; x [rows[0].count][32], counts fall, n_rows <= 32, gains [64]. Loads up to 8 bytes behind
// the last bit asked for and uses none of them.
void read_row_planes(const uint8_t* codes, const PlaneRow* rows, int n_rows, const float* gains,
                     const float* sigmas, float* x) noexcept;

}  // namespace kvist::kernels
