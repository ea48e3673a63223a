// SPDX-License-Identifier: MIT
// What a sum over packets of values works on: a chunk of tokens, the packets of it that are read,
// and the memory it takes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kvist/kernels/plane_values.h"

namespace kvist::kernels::internal {

inline constexpr int kDecoded = 32;  // tokens decoded to float at once

// Tokens of one call, in the end at most kValueChunk of them.
struct Chunk {
  ValueLayout layout;
  const uint8_t* packets;
  int first, n;
  const uint8_t* depths;  // [n]
  const float* alpha;     // row r at alpha + r * stride
  int64_t stride;
  int rows;
  float* out;  // [rows][head_dim]

  Chunk part(int begin) const {
    Chunk c = *this;
    c.first += begin, c.depths += begin, c.alpha += begin;
    c.n = std::min(kValueChunk, n - begin);
    return c;
  }
};

// Slots are a chunk's tokens and those before and after that share their packets.
inline constexpr int kSlots = kValueChunk + 64;
inline constexpr int kMaxSteps = kSlots / 4;  // of four tokens

// Which packets of a chunk are read in bytes.
struct LivePackets {
  // In the order of steps. Where not read in bytes the depth is 0.
  alignas(64) uint8_t depths[kSlots];
  alignas(64) uint8_t keep[kSlots];  // IndexTable's of each depth
  alignas(64) uint8_t mark[kSlots];
  uint64_t read[kSlots / 64];      // bit i of word g: slot 64 g + i is read in bytes
  uint64_t kept[kSlots / 64];      // bit i: packet i of the 64 slots is live
  int32_t packet[kMaxSteps + 16];  // the live ones, from the chunk's first
  int32_t deepest[kMaxSteps + 16];
  int16_t beyond[kValueChunk];  // tokens of the chunk too deep for bytes
  int n_beyond;
  int lead;  // slots before the chunk's first token
  int n, n_deep;
};

struct ValueScratch {
  uint8_t* bytes;     // [2][kMaxSteps][4][64]
  int8_t* weights;    // [rows][kMaxSteps][4], or [rows][at most kMaxSteps / 2][32]
  int32_t* zero;      // [rows]
  float* unit;        // [rows]
  float* decoded;     // [kDecoded][head_dim]
  float* alpha;       // [rows][kDecoded]
  LivePackets* live;  // [2] of this chunk and of the next
};

}  // namespace kvist::kernels::internal
