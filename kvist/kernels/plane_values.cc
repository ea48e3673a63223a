// SPDX-License-Identifier: MIT
// Writing value packets, and their weighted sums by tables or by decoding to float.
#include "kvist/kernels/plane_values.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvist/kernels/plane_values.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kvist/kernels/attend-inl.h"
#include "kvist/kernels/plane_code-inl.h"
#include "kvist/kernels/plane_internal.h"
#include "kvist/kernels/plane_keys.h"
#include "kvist/kernels/plane_tables-inl.h"

#ifndef KVIST_KERNELS_PLANE_VALUES_ONCE
#define KVIST_KERNELS_PLANE_VALUES_ONCE
namespace kvist::kernels {
namespace {

constexpr int kDecoded = 32;  // tokens decoded to float at once

// One call over at most kValueChunk tokens.
struct Chunk {
  ValueLayout layout;
  const uint8_t* packets;
  int first, n;
  const uint8_t* depths;  // [n]
  const float* alpha;     // row r at alpha + r * stride
  int64_t stride;
  int rows;
  float* out;  // [rows][head_dim]
};

struct ValueScratch {
  uint8_t* index;             // [kValueChunk / 4 + 4][4][64]
  int8_t* tables;             // [rows][kValueChunk / 4 + 4][64]
  float* unit;                // [rows]
  float* decoded;             // [kDecoded][head_dim]
  float* alpha;               // [rows][kDecoded]
  internal::Nibble* nibbles;  // [kValueChunk + 16]
};
constexpr int kMaxSteps = kValueChunk / 4 + 4;

}  // namespace
}  // namespace kvist::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {
namespace {

// out[0, n) = the values of channels [c, c + n) of a token, n <= 64: no byte past its run is read.
HWY_INLINE void decode_channels(const uint8_t* run, int64_t plane_bytes, int depth, int c, int n,
                                float* out) {
  if (n == 64) return decode64(run + c / 8, plane_bytes, depth, out);
  uint8_t planes[8][8] = {};
  for (int s = 0; s < depth; ++s)
    std::memcpy(planes[s], run + s * plane_bytes + c / 8, static_cast<size_t>((n + 7) / 8));
  float whole[64];
  decode64(planes[0], 8, depth, whole);
  std::memcpy(out, whole, sizeof(float) * static_cast<size_t>(n));
}

// Tokens deeper than `from`, in order, a few at a time.
void add_decoded(const Chunk& chunk, int from, const ValueScratch& scratch) {
  const int d = chunk.layout.head_dim;
  int held = 0;
  const auto flush = [&]() HWY_ATTR {
    for (int r = 0; r < chunk.rows; r += 8)
      value_rows<false>(static_cast<const float*>(scratch.decoded), d, held,
                        scratch.alpha + r * kDecoded, kDecoded, std::min(8, chunk.rows - r),
                        chunk.out + int64_t{r} * d);
    held = 0;
  };
  for (int j = 0; j < chunk.n; ++j) {
    if (chunk.depths[j] <= from) continue;
    const uint8_t* run = chunk.packets + chunk.layout.run(chunk.first + j);
    for (int c = 0; c < d; c += 64)
      decode_channels(run, chunk.layout.plane_bytes(), chunk.depths[j], c, std::min(64, d - c),
                      scratch.decoded + int64_t{held} * d + c);
    for (int r = 0; r < chunk.rows; ++r)
      scratch.alpha[r * kDecoded + held] = chunk.alpha[r * chunk.stride + j];
    if (++held == kDecoded) flush();
  }
  if (held > 0) flush();
}

#if HWY_TARGET == HWY_AVX3_DL
void make_units(const Chunk& chunk, int n_nibbles, const ValueScratch& scratch) {
  for (int r = 0; r < chunk.rows; ++r) {
    const float* alpha = chunk.alpha + r * chunk.stride;
    float largest = 0;
    for (int i = 0; i < n_nibbles; ++i)
      largest = std::max(largest, internal::largest_entry(scratch.nibbles[i],
                                                          [alpha](int j) { return alpha[j]; }));
    // Weights whose sums are not normal numbers count for nothing.
    scratch.unit[r] = largest < 1e-35f ? 0 : largest / 127;
  }
}

// The sixteen plane words of a step for channels [c, c + n).
HWY_INLINE void load_planes(const Chunk& chunk, const internal::Nibble* nibbles, int c, int n,
                            uint64_t* planes) {
  const size_t bytes = static_cast<size_t>((n + 7) / 8);
  for (int i = 0; i < 16; ++i) {
    const internal::PlaneOf at = internal::plane_of(nibbles[i / 4], i % 4);
    const uint8_t* from = chunk.packets + chunk.layout.run(chunk.first + at.item) +
                          int64_t{at.plane - 1} * chunk.layout.plane_bytes() + c / 8;
    if (bytes == 8) {
      std::memcpy(&planes[i], from, 8);
    } else {
      planes[i] = 0;
      std::memcpy(&planes[i], from, bytes);
    }
  }
}

void add_by_tables(const Chunk& chunk, const ValueScratch& scratch) {
  internal::Nibble* nibbles = scratch.nibbles;
  const int n = internal::make_nibbles(chunk.depths, chunk.n, nibbles);
  if (n == 0) return;
  const int n_steps = (n + 3) / 4, d = chunk.layout.head_dim;
  for (int i = n; i < 4 * n_steps; ++i) {
    nibbles[i] = nibbles[0];
    nibbles[i].n = 0;
  }
  make_units(chunk, n, scratch);
  const int64_t table_stride = int64_t{n_steps} * internal::kStepBytes;
  const Patterns& pattern = patterns();
  for (int r = 0; r < chunk.rows; ++r) {
    const float* alpha = chunk.alpha + r * chunk.stride;
    const float scale = scratch.unit[r] == 0 ? 0 : 1 / scratch.unit[r];
    for (int s = 0; s < n_steps; ++s)
      step_tables(
          nibbles + 4 * s, pattern, scale, [alpha](int j) HWY_ATTR { return alpha[j]; },
          scratch.tables + r * table_stride + int64_t{s} * internal::kStepBytes);
  }
  for (int c = 0; c < d; c += 64) {
    const int lanes = std::min(64, d - c);
    for (int s = 0; s < n_steps; ++s) {
      uint64_t planes[16];
      load_planes(chunk, nibbles + 4 * s, c, lanes, planes);
      step_indices(planes, scratch.index + int64_t{s} * 256);
    }
    add_tables(scratch.index, n_steps, scratch.tables, table_stride, scratch.unit, chunk.rows,
               chunk.out + c, d, lanes);
  }
}
#endif

// Lines of the chunk after this one.
void prefetch_chunk(const Chunk& chunk, int n_left) {
  const int n = std::min(kValueChunk, n_left);
  const uint8_t* depths = chunk.depths + chunk.n;
  for (int j = 0; j < n; ++j) {
    const uint8_t* run = chunk.packets + chunk.layout.run(chunk.first + chunk.n + j);
    for (int s = 0; s < depths[j]; ++s)
      __builtin_prefetch(run + s * chunk.layout.plane_bytes(), 0, 2);
  }
}

}  // namespace

void add_chunk(const Chunk& chunk, int n_left, bool tables, const ValueScratch& scratch) {
  prefetch_chunk(chunk, n_left);
#if HWY_TARGET == HWY_AVX3_DL
  if (tables) {
    add_by_tables(chunk, scratch);
    return add_decoded(chunk, internal::kTableDepth, scratch);
  }
#endif
  (void)tables;
  add_decoded(chunk, 0, scratch);
}

void store_tokens(const ValueLayout& layout, uint8_t* packets, int first, int n,
                  const uint8_t* leaves) {
  for (int t = 0; t < n; ++t, leaves += layout.head_dim) {
    uint8_t* run = packets + layout.run(first + t);
    for (int c = 0; c < layout.head_dim; c += 64, run += 8) {
      const int left = std::min(64, layout.head_dim - c);
      uint8_t codes[64] = {}, planes[kTreeDepth * 8];
      std::memcpy(codes, leaves + c, static_cast<size_t>(left));
      split_planes(codes, layout.width, planes, 8);
      for (int s = 0; s < layout.width; ++s)
        std::memcpy(run + s * layout.plane_bytes(), planes + 8 * s,
                    static_cast<size_t>((left + 7) / 8));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvist::kernels {
HWY_EXPORT(store_tokens);
HWY_EXPORT(add_chunk);

namespace {
size_t lines(size_t bytes) { return (bytes + 63) / 64 * 64; }
size_t table_bytes(int rows) {
  return static_cast<size_t>(rows) * kMaxSteps * internal::kStepBytes;
}
size_t decoded_bytes(int head_dim) { return lines(4 * static_cast<size_t>(kDecoded * head_dim)); }

ValueScratch carve(std::byte* memory, int head_dim, int rows) {
  ValueScratch s;
  s.index = reinterpret_cast<uint8_t*>(memory);
  memory += kMaxSteps * 256;
  s.tables = reinterpret_cast<int8_t*>(memory);
  memory += table_bytes(rows);
  s.unit = reinterpret_cast<float*>(memory);
  memory += lines(4 * static_cast<size_t>(rows));
  s.decoded = reinterpret_cast<float*>(memory);
  memory += decoded_bytes(head_dim);
  s.alpha = reinterpret_cast<float*>(memory);
  memory += lines(4 * static_cast<size_t>(kDecoded * rows));
  s.nibbles = reinterpret_cast<internal::Nibble*>(memory);
  return s;
}
}  // namespace

ValueLayout value_layout(int head_dim, int width) noexcept {
  ValueLayout layout{.head_dim = head_dim, .width = width};
  layout.per_packet = std::max(1, 64 / layout.run_bytes());
  return layout;
}

void store_values(const ValueLayout& layout, uint8_t* packets, int first, int n,
                  const uint8_t* leaves) noexcept {
  HWY_DYNAMIC_DISPATCH(store_tokens)(layout, packets, first, n, leaves);
}

size_t value_scratch_bytes(int head_dim, int rows) noexcept {
  return kMaxSteps * 256 + table_bytes(rows) + lines(4 * static_cast<size_t>(rows)) +
         decoded_bytes(head_dim) + lines(4 * static_cast<size_t>(kDecoded * rows)) +
         sizeof(internal::Nibble) * (kValueChunk + 16);
}

void add_values(const ValueLayout& layout, const uint8_t* packets, int first, int n,
                const uint8_t* depths, const float* alpha, int64_t stride, int rows,
                Precision precision, float* out, std::byte* memory) noexcept {
  const ValueScratch scratch = carve(memory, layout.head_dim, rows);
  const bool tables = precision == Precision::fast && has_plane_tables();
  for (int at = 0; at < n; at += kValueChunk) {
    const Chunk chunk{.layout = layout,
                      .packets = packets,
                      .first = first + at,
                      .n = std::min(kValueChunk, n - at),
                      .depths = depths + at,
                      .alpha = alpha + at,
                      .stride = stride,
                      .rows = rows,
                      .out = out};
    HWY_DYNAMIC_DISPATCH(add_chunk)(chunk, n - at - chunk.n, tables, scratch);
  }
}

}  // namespace kvist::kernels
#endif  // HWY_ONCE
