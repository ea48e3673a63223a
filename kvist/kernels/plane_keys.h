// SPDX-License-Identifier: MIT
// Keys as bit planes: encoding, pages of 512 tokens, and the logits of a group's query heads when
// each channel is read to its own depth (ReadKV, arXiv:2610.11245, its reader's first stage).
//
// A page of one head is [channel][plane][64 bytes]. Bit n of a line is bit n mod 8, lowest first,
// of byte n / 8, and belongs to token n of the page; plane s = 1 .. width holds bit 8 - s of the
// 8-bit code, most significant first. Reading channel c to depth t touches its first t lines.
//
// The newest tokens, not yet a page, lie as bytes [block of 64 tokens][channel][64], one code each:
// like a dense block, so that appending writes one column and sealing needs no byte transposition.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvist/kernels/attend.h"

namespace kvist::kernels {

inline constexpr int kPageTokens = 512;
inline constexpr int kPlaneBytes = kPageTokens / 8;  // one plane of one channel of a page

// leaf[i] = tree_leaf((x[i] - mu[i]) / sigma[i]) in float32, one subtraction and one division: the
// same codes on every target. False where a quotient is not finite.
bool encode_leaves(const float* x, const float* mu, const float* sigma, int n,
                   uint8_t* leaf) noexcept;

// The same for a block of 64 tokens, x and leaf [head_dim][64], mu and sigma [head_dim].
bool encode_columns(const float* x, const float* mu, const float* sigma, int head_dim,
                    uint8_t* leaf) noexcept;

constexpr size_t key_page_bytes(int head_dim, int width) {
  return static_cast<size_t>(head_dim) * static_cast<size_t>(width) * kPlaneBytes;
}
// Planes [1, depths[c]] (all `width` of them where depths is null) of the open tokens [0, n) into a
// page. Bits of tokens from n up to the next multiple of 64 are whatever `open` has; the rest of
// the page stays.
void seal_keys(const uint8_t* open, int n_tokens, int head_dim, int width, const uint8_t* depths,
               uint8_t* page) noexcept;

// What one schedule and the query heads of a group need, built once and used on every page. Where
// the CPU has the instructions, channels of depth 1 .. 6 are summed in bytes, four a step, all of a
// step of one depth: weights in units of 1/127 of a row's largest (1/63 without VNNI),
// reconstructions in units of 1/127 of the outermost. Others are decoded to float. With
// Precision::exact all are.
struct KeyReader {
  int head_dim = 0;
  int width = 0;
  int rows = 0;                          // query heads
  int steps[7] = {0, 0, 0, 0, 0, 0, 0};  // of each depth
  int n_steps = 0;
  int n_decoded = 0;                // channels that are decoded to float
  const uint8_t* depths = nullptr;  // [head_dim]
  int32_t* items = nullptr;         // [n_steps][4] channels
  float* relative = nullptr;        // [n_steps][4] a depth's unit over the common one; 0 fills up
  int8_t* bytes = nullptr;          // [rows][row_bytes()] weights
  int32_t* zero = nullptr;          // [rows] what the byte of 0 adds
  float* unit = nullptr;            // [rows] what a 1 of the sums stands for
  float* error = nullptr;           // [rows]
  int32_t* channels = nullptr;      // [n_decoded]
  float* weights = nullptr;         // [rows][n_decoded]
  const float* base = nullptr;      // [rows] what the means contribute

  // Room for a row's weights: whole steps, the last of each depth filled up.
  int row_bytes() const { return head_dim / 4 * 4 + 4 * 7; }
};

size_t key_reader_bytes(int head_dim, int rows) noexcept;
// weight [rows][head_dim] = q' sigma scale, base [rows] = q' . mu scale; depths, base and memory
// (key_reader_bytes, 64-byte aligned) outlive the reader.
KeyReader make_key_reader(const uint8_t* depths, const float* weight, const float* base, int rows,
                          int head_dim, int width, Precision precision, std::byte* memory) noexcept;
// Bound of |logit - exact logit| that bytes add to row r: half a unit of weight and of
// reconstruction a channel. The code itself errs by sigma |q'| sqrt(D(t)); a test compares both.
float key_bytes_error(const KeyReader& reader, int r) noexcept;

size_t key_scratch_bytes(int head_dim) noexcept;
// out[r][0, 64 n_blocks) = base[r] + sum over c of weight[r][c] Q_t[c](token) for the first blocks
// of a page; row r starts at out + r * stride. `next`: the page that will be read next, or null.
// Scratch: key_scratch_bytes, 64-byte aligned.
void key_logits(const KeyReader& reader, const uint8_t* page, int n_blocks, const uint8_t* next,
                float* out, int64_t stride, std::byte* scratch) noexcept;

// Whether sums in bytes exist here: on AVX2, and faster on AVX-512 with VBMI, VNNI and GFNI.
bool has_plane_bytes() noexcept;

}  // namespace kvist::kernels
