// SPDX-License-Identifier: MIT
// Writing value packets, and their weighted sums in bytes or by decoding to float.
#include "kvist/kernels/plane_values.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvist/kernels/plane_values.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kvist/kernels/attend-inl.h"
#include "kvist/kernels/plane_bytes-inl.h"
#include "kvist/kernels/plane_code-inl.h"
#include "kvist/kernels/plane_keys.h"

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

constexpr int kClasses = 7;                            // depths 0 .. 6
constexpr int kMaxSteps = kValueChunk / 4 + kClasses;  // of four tokens of one depth

struct ValueScratch {
  uint8_t* bytes;               // [kMaxSteps][4][64]
  int8_t* weights;              // [rows][kMaxSteps][4]
  int32_t* zero;                // [rows]
  float* unit;                  // [rows]
  float* decoded;               // [kDecoded][head_dim]
  float* alpha;                 // [rows][kDecoded]
  uint32_t* runs;               // [kValueChunk] where a token lies, from the chunk's first
  int32_t* by_depth[kClasses];  // each [kValueChunk + 32]
  int32_t* items;               // [kMaxSteps][4] tokens of the steps, -1 where there is none
  int* steps;                   // [kClasses] steps of a depth
  uint32_t* ahead;              // [8 * kValueChunk + 8]
};

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

// The lines that the chunk after this one will read, asked for a few at a time: hardware does not
// foresee them, and all at once they would wait for each other.
class Ahead {
 public:
  Ahead(const Chunk& chunk, int n_left, uint32_t* lines)
      : base_(chunk.packets + chunk.layout.run(chunk.first)), lines_(lines) {
    const ValueLayout layout = chunk.layout;
    const int per = layout.per_packet, n = std::min(kValueChunk, n_left);
    const auto plane = static_cast<uint32_t>(layout.plane_bytes());
    const uint8_t* depths = chunk.depths + chunk.n;
    const int first = chunk.first + chunk.n;
    const int64_t from = layout.run(first) - layout.run(chunk.first);
    auto at = static_cast<uint32_t>(from - int64_t{first % per} * layout.run_bytes());
    int n_lines = 0;
    for (int j = 0, end = per - first % per; j < n; end += per) {
      int deepest = 0;
      for (; j < std::min(n, end); ++j) deepest = std::max<int>(deepest, depths[j]);
      // Eight are written whatever the depth: a loop of unforeseeable length costs more.
      for (uint32_t s = 0; s < 8; ++s) lines[n_lines + static_cast<int>(s)] = at + s * plane;
      n_lines += deepest;
      at += static_cast<uint32_t>(layout.packet_bytes());
    }
    n_ = each_ = n_lines;
  }
  void spread(int calls) { each_ = calls == 0 ? n_ : (n_ + calls - 1) / calls; }
  HWY_INLINE void some() {
    for (const int end = std::min(n_, at_ + each_); at_ < end; ++at_)
      __builtin_prefetch(base_ + lines_[at_], 0, 3);
  }

 private:
  const uint8_t* base_;
  uint32_t* lines_;
  int n_ = 0, at_ = 0, each_ = 0;
};

#if HWY_TARGET == HWY_AVX3_DL
// runs [n]: where each token lies, from the chunk's first.
void locate(const Chunk& chunk, uint32_t* HWY_RESTRICT runs) {
  const ValueLayout layout = chunk.layout;
  const int per = layout.per_packet;
  const auto run = static_cast<uint32_t>(layout.run_bytes());
  const auto skip = static_cast<uint32_t>(layout.packet_bytes()) - run * static_cast<uint32_t>(per);
  uint32_t at = 0;
  for (int j = 0, left = per - chunk.first % per; j < chunk.n; ++j, at += run) {
    if (left-- == 0) at += skip, left = per - 1;
    runs[j] = at;
  }
}

// items: the tokens of depth 1, in order, filled up to whole steps with -1, then those of depth 2
// and so on; returns the number of steps.
int sort_tokens(const Chunk& chunk, const ValueScratch& scratch) {
  int count[kClasses] = {};
  __m512i token = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (int j = 0; j < chunk.n; j += 16, token = _mm512_add_epi32(token, _mm512_set1_epi32(16))) {
    const int left = chunk.n - j;
    const auto mask = static_cast<__mmask16>(left >= 16 ? 0xFFFF : (1u << left) - 1);
    const __m512i depths = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, chunk.depths + j));
#pragma GCC unroll 8
    for (int depth = 1; depth <= kByteDepth; ++depth) {
      const __mmask16 these = _mm512_cmpeq_epi32_mask(depths, _mm512_set1_epi32(depth));
      _mm512_storeu_si512(scratch.by_depth[depth] + count[depth],
                          _mm512_maskz_compress_epi32(these, token));
      count[depth] += __builtin_popcount(these);
    }
  }
  int n_steps = 0;
  for (int depth = 1; depth <= kByteDepth; ++depth) {
    _mm512_storeu_si512(scratch.by_depth[depth] + count[depth], _mm512_set1_epi32(-1));
    scratch.steps[depth] = (count[depth] + kStepItems - 1) / kStepItems;
    std::copy_n(scratch.by_depth[depth], scratch.steps[depth] * kStepItems,
                scratch.items + n_steps * kStepItems);
    n_steps += scratch.steps[depth];
  }
  _mm512_storeu_si512(scratch.items + n_steps * kStepItems, _mm512_set1_epi32(-1));
  return n_steps;
}

// Weights in units of 1/127 of the largest.
void quantize_weights(const Chunk& chunk, int n_steps, const ValueScratch& scratch) {
  const int n_items = n_steps * kStepItems;
  for (int r = 0; r < chunk.rows; ++r) {
    const float* alpha = chunk.alpha + r * chunk.stride;
    float* HWY_RESTRICT sorted = scratch.decoded;  // [n_items], not in use yet
    __m512 top = _mm512_setzero_ps();
    for (int i = 0; i < n_items; i += 16) {
      const __m512i at = _mm512_loadu_si512(scratch.items + i);
      const __mmask16 there = _mm512_cmpge_epi32_mask(at, _mm512_setzero_si512());
      const __m512 a = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), there, at, alpha, 4);
      top = _mm512_max_ps(top, a);
      _mm512_storeu_ps(sorted + i, a);
    }
    // Weights that are not normal numbers count for nothing.
    const float largest = _mm512_reduce_max_ps(top);
    const float scale = largest < 1e-35f ? 0 : 127 / largest;
    __m512i sum = _mm512_setzero_si512();
    int8_t* to = scratch.weights + int64_t{r} * kMaxSteps * kStepItems;
    for (int i = 0; i < n_items; i += 16) {
      const __m512 w = _mm512_mul_ps(_mm512_loadu_ps(sorted + i), _mm512_set1_ps(scale));
      const __m512i whole = _mm512_cvtps_epi32(w);
      sum = _mm512_add_epi32(sum, whole);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm512_cvtsepi32_epi8(whole));
    }
    scratch.zero[r] = kByteZero * _mm512_reduce_add_epi32(sum);
    scratch.unit[r] = scale == 0 ? 0 : byte_unit() / scale;
  }
}

// The bytes of a depth's steps for channels [64 block, ...), of which `n_bytes` bytes of bits
// exist.
template <int kDepth>
void step_bytes(const Chunk& chunk, const ValueScratch& scratch, int first_step, int block,
                size_t n_bytes, Ahead* prefetch) {
  const uint8_t* base = chunk.packets + chunk.layout.run(chunk.first) + 8 * block;
  const int64_t stride = chunk.layout.plane_bytes();
  const __m512i table = _mm512_load_si512(byte_tables().at[kDepth]);
  const int32_t* item = scratch.items + first_step * kStepItems;
  uint8_t* out = scratch.bytes + int64_t{first_step} * 256;
  const uint32_t spare = scratch.steps[kDepth] == 0 ? 0 : scratch.runs[item[0]];
  for (int s = 0; s < scratch.steps[kDepth]; ++s, item += kStepItems, out += 256) {
    prefetch->some();
    __m512i x[kStepItems];
#pragma GCC unroll 4
    for (int m = 0; m < kStepItems; ++m) {
      const uint8_t* run = base + (item[m] < 0 ? spare : scratch.runs[item[m]]);
      if (n_bytes == 8) {
        x[m] = bytes64<kDepth>([=](int p) HWY_ATTR { return load_plane(run + p * stride); }, table);
      } else {
        const auto part = [=](int p) HWY_ATTR {
          uint64_t plane = 0;
          std::memcpy(&plane, run + p * stride, n_bytes);
          return static_cast<__mmask64>(plane);
        };
        x[m] = bytes64<kDepth>(part, table);
      }
    }
    interleave(x[0], x[1], x[2], x[3], out);
  }
}

void add_in_bytes(const Chunk& chunk, const ValueScratch& scratch, Ahead prefetch) {
  const int n_steps = sort_tokens(chunk, scratch), d = chunk.layout.head_dim;
  if (n_steps == 0) return prefetch.some();
  prefetch.spread(n_steps * ((d + 63) / 64));
  locate(chunk, scratch.runs);
  quantize_weights(chunk, n_steps, scratch);
  for (int block = 0; 64 * block < d; ++block) {
    const int lanes = std::min(64, d - 64 * block);
    const auto n_bytes = static_cast<size_t>((lanes + 7) / 8);
    int first = 0;
    const auto next = [&](int depth) { return std::exchange(first, first + scratch.steps[depth]); };
    step_bytes<1>(chunk, scratch, next(1), block, n_bytes, &prefetch);
    step_bytes<2>(chunk, scratch, next(2), block, n_bytes, &prefetch);
    step_bytes<3>(chunk, scratch, next(3), block, n_bytes, &prefetch);
    step_bytes<4>(chunk, scratch, next(4), block, n_bytes, &prefetch);
    step_bytes<5>(chunk, scratch, next(5), block, n_bytes, &prefetch);
    step_bytes<6>(chunk, scratch, next(6), block, n_bytes, &prefetch);
    add_bytes(scratch.bytes, n_steps, reinterpret_cast<const int32_t*>(scratch.weights), kMaxSteps,
              scratch.zero, scratch.unit, chunk.rows, chunk.out + 64 * block, d, lanes);
  }
}
#endif

}  // namespace

void add_chunk(const Chunk& chunk, int n_left, bool bytes, const ValueScratch& scratch) {
  Ahead prefetch(chunk, n_left, scratch.ahead);
#if HWY_TARGET == HWY_AVX3_DL
  if (bytes) {
    add_in_bytes(chunk, scratch, prefetch);
    return add_decoded(chunk, kByteDepth, scratch);
  }
#endif
  (void)bytes;
  prefetch.some();
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

// Lays the scratch out from `memory` on, or from null to learn its size.
std::byte* carve(std::byte* memory, int head_dim, int rows, ValueScratch* s) {
  const auto take = [&memory](auto** to, size_t n) {
    *to = reinterpret_cast<std::remove_reference_t<decltype(*to)>>(memory);
    memory += lines(n * sizeof(**to));
  };
  const size_t d = static_cast<size_t>(head_dim), r = static_cast<size_t>(rows);
  take(&s->bytes, kMaxSteps * 256);
  take(&s->weights, r * kMaxSteps * 4 + 16);
  take(&s->zero, r);
  take(&s->unit, r);
  take(&s->decoded, std::max<size_t>(kDecoded * d, 4 * kMaxSteps + 16));
  take(&s->alpha, kDecoded * r);
  take(&s->runs, kValueChunk);
  for (auto& items : s->by_depth) take(&items, kValueChunk + 32);
  take(&s->items, 4 * kMaxSteps + 16);
  take(&s->steps, kClasses);
  take(&s->ahead, 8 * kValueChunk + 8);
  return memory;
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
  ValueScratch unused;
  std::byte* const start = nullptr;
  return static_cast<size_t>(carve(start, head_dim, rows, &unused) - start);
}

void add_values(const ValueLayout& layout, const uint8_t* packets, int first, int n,
                const uint8_t* depths, const float* alpha, int64_t stride, int rows,
                Precision precision, float* out, std::byte* memory) noexcept {
  ValueScratch scratch;
  carve(memory, layout.head_dim, rows, &scratch);
  const bool bytes = precision == Precision::fast && has_plane_bytes();
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
    HWY_DYNAMIC_DISPATCH(add_chunk)(chunk, n - at - chunk.n, bytes, scratch);
  }
}

}  // namespace kvist::kernels
#endif  // HWY_ONCE
