// SPDX-License-Identifier: MIT
// Values as bit planes: packets of a few tokens, and the weighted sum of values when each token is
// read to its own depth (ReadKV, arXiv:2610.11245, its reader's second stage).
//
// A packet is [plane][token][head_dim bits]. Bit n of a run is bit n mod 8, lowest first, of byte
// n / 8, and belongs to channel n; plane s = 1 .. width holds bit 8 - s of the code. Runs are whole
// bytes; bits past head_dim, and of tokens that are not there yet, are 0. With as many tokens as
// fill a line of 64 bytes, reading a token to depth t touches the first t lines of its packet.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvist/kernels/attend.h"

namespace kvist::kernels {

struct ValueLayout {
  int head_dim = 0;
  int width = 0;       // planes kept
  int per_packet = 0;  // tokens

  int run_bytes() const { return (head_dim + 7) / 8; }
  int plane_bytes() const { return per_packet * run_bytes(); }
  int packet_bytes() const { return width * plane_bytes(); }
  size_t bytes(int n_tokens) const {
    return static_cast<size_t>((n_tokens + per_packet - 1) / per_packet) *
           static_cast<size_t>(packet_bytes());
  }
  // Where plane 1 of a token's run lies; the next plane is plane_bytes further.
  int64_t run(int token) const {
    return int64_t{token / per_packet} * packet_bytes() + token % per_packet * run_bytes();
  }
};
// The layout whose planes of a packet come closest to one line of 64 bytes, from below.
ValueLayout value_layout(int head_dim, int width) noexcept;

// Writes the codes of tokens [first, first + n), leaves [n][head_dim].
void store_values(const ValueLayout& layout, uint8_t* packets, int first, int n,
                  const uint8_t* leaves) noexcept;

// rows [n][head_dim] of the first n <= 64 tokens of columns [head_dim][64].
void token_rows(const uint8_t* columns, int head_dim, int n, uint8_t* rows) noexcept;

// Sum over packets of the greatest depth among the tokens [first, first + n): lines of a plane
// that a sum over them touches.
int64_t packet_depths(const ValueLayout& layout, int first, int n, const uint8_t* depths) noexcept;

// Tokens whose bytes are in flight at once. Sums are cut there: a caller that starts every call at
// a multiple gets the same bytes however it splits the calls.
inline constexpr int kValueChunk = 256;
size_t value_scratch_bytes(int head_dim, int rows) noexcept;
// out[r][c] += sum over tokens j in [0, n) of alpha[r][j] Q_{depths[j]}(code of token first + j,
// channel c). Tokens of depth 0 are not touched. alpha >= 0; row r of it starts at alpha + r *
// stride; out [rows][head_dim]. With Precision::fast and has_plane_bytes(), tokens of depth 1 .. 6
// are summed in bytes: alpha in units of 1/127 of the row's largest in the chunk, reconstructions
// in units of 1/127 of the outermost. Deeper ones are rounded to f16 at most. Beside the float sum,
// an error of at most half a unit of each a token. Scratch: value_scratch_bytes, 64-byte aligned.
void add_values(const ValueLayout& layout, const uint8_t* packets, int first, int n,
                const uint8_t* depths, const float* alpha, int64_t stride, int rows,
                Precision precision, float* out, std::byte* scratch) noexcept;

}  // namespace kvist::kernels
