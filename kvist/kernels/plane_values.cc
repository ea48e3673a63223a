// SPDX-License-Identifier: MIT
// Writing value packets, and their weighted sums in bytes or by decoding to float.
#include "kvist/kernels/plane_values.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvist/kernels/plane_values.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "kvist/kernels/attend-inl.h"
#include "kvist/kernels/plane_chunk.h"
#include "kvist/kernels/plane_code-inl.h"
#include "kvist/kernels/plane_keys.h"
#include "kvist/kernels/plane_values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {
namespace {
using namespace internal;

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

// The first token from j on that is deeper than `from`, 0 to 7; eight at a time are passed over.
HWY_INLINE int next_deeper(const Chunk& chunk, int j, int from) {
  const uint64_t to_sign = uint64_t{0x0101010101010101} * static_cast<uint64_t>(0x7F - from);
  for (; j + 8 <= chunk.n; j += 8) {
    uint64_t eight;
    std::memcpy(&eight, chunk.depths + j, 8);
    if (((eight + to_sign) & 0x8080808080808080) != 0) break;
  }
  while (j < chunk.n && chunk.depths[j] <= from) ++j;
  return j;
}

HWY_INLINE void ask_for(const Chunk& chunk, int j) {
  if (j >= chunk.n) return;
  const uint8_t* run = chunk.packets + chunk.layout.run(chunk.first + j);
  for (int s = 0; s < chunk.depths[j]; ++s)
    __builtin_prefetch(run + s * chunk.layout.plane_bytes(), 0, 3);
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
  for (int j = next_deeper(chunk, 0, from); j < chunk.n; j = next_deeper(chunk, j + 1, from)) {
    ask_for(chunk, j + kDecoded / 2);
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
// The next chunk's packets are found while this one is read.
void add_all_in_bytes(const Chunk& all, const ValueScratch& scratch) {
  LivePackets *live = scratch.live, *next = scratch.live + 1;
  find_live(all.part(0), live);
  Ahead(all.part(0), *live, 0).some();
  for (int at = 0; at < all.n; at += kValueChunk, std::swap(live, next)) {
    const Chunk chunk = all.part(at), after = all.part(std::min(all.n, at + kValueChunk));
    find_live(after, next);
    add_in_bytes(chunk, *live, Ahead(after, *next, live->n), scratch);
    add_decoded(chunk, kByteDepth, scratch);
  }
}
#endif

}  // namespace

void add_tokens(const internal::Chunk& all, bool bytes, const internal::ValueScratch& scratch) {
#if HWY_TARGET == HWY_AVX3_DL
  if (bytes) return add_all_in_bytes(all, scratch);
#endif
  (void)bytes;
  for (int at = 0; at < all.n; at += kValueChunk) add_decoded(all.part(at), 0, scratch);
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
HWY_EXPORT(add_tokens);

namespace {
using namespace internal;

size_t lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Lays the scratch out from `memory` on, or from null to learn its size.
std::byte* carve(std::byte* memory, int head_dim, int rows, ValueScratch* s) {
  const auto take = [&memory](auto** to, size_t n) {
    *to = reinterpret_cast<std::remove_reference_t<decltype(*to)>>(memory);
    memory += lines(n * sizeof(**to));
  };
  const size_t d = static_cast<size_t>(head_dim), r = static_cast<size_t>(rows);
  take(&s->bytes, kMaxSteps * 512);
  take(&s->weights, r * kMaxSteps * 4 + 64);
  take(&s->zero, r);
  take(&s->unit, r);
  take(&s->decoded, kDecoded * d);
  take(&s->alpha, kDecoded * r);
  take(&s->live, 2);
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
  const Chunk all{.layout = layout,
                  .packets = packets,
                  .first = first,
                  .n = n,
                  .depths = depths,
                  .alpha = alpha,
                  .stride = stride,
                  .rows = rows,
                  .out = out};
  const bool bytes = precision == Precision::fast && has_plane_bytes();
  HWY_DYNAMIC_DISPATCH(add_tokens)(all, bytes, scratch);
}

}  // namespace kvist::kernels
#endif  // HWY_ONCE
