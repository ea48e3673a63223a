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
#include "kvist/kernels/constant-inl.h"
#include "kvist/kernels/plane_chunk.h"
#include "kvist/kernels/plane_code-inl.h"
#include "kvist/kernels/plane_keys.h"
#include "kvist/kernels/plane_sorted-inl.h"
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

HWY_INLINE void ask_for(const Chunk& chunk, int j) {
  const uint8_t* run = chunk.packets + chunk.layout.run(chunk.first + j);
  for (int s = 0; s < chunk.depths[j]; ++s)
    __builtin_prefetch(run + s * chunk.layout.plane_bytes(), 0, 3);
}

// Tokens `token` [n] of the chunk, a few at a time; decode(run, depth, c, n, out) as
// decode_channels().
constexpr int kAskAhead = 8;
template <typename Decode>
HWY_INLINE void add_decoded(const Chunk& chunk, const int16_t* token, int n, const Decode& decode,
                            const ValueScratch& scratch) {
  const int d = chunk.layout.head_dim;
  for (int at = 0; at < n; at += kDecoded) {
    const int held = std::min(kDecoded, n - at);
    for (int i = 0; i < held; ++i) {
      if (at + i + kAskAhead < n) ask_for(chunk, token[at + i + kAskAhead]);
      const int j = token[at + i];
      const uint8_t* run = chunk.packets + chunk.layout.run(chunk.first + j);
      for (int c = 0; c < d; c += 64)
        decode(run, chunk.depths[j], c, std::min(64, d - c), scratch.decoded + int64_t{i} * d + c);
      for (int r = 0; r < chunk.rows; ++r)
        scratch.alpha[r * kDecoded + i] = chunk.alpha[r * chunk.stride + j];
    }
    for (int r = 0; r < chunk.rows; r += 8)
      value_rows<false>(static_cast<const float*>(scratch.decoded), d, held,
                        scratch.alpha + r * kDecoded, kDecoded, std::min(8, chunk.rows - r),
                        chunk.out + int64_t{r} * d);
  }
}

// The same with decode_channels() itself.
void add_decoded(const Chunk& chunk, const int16_t* token, int n, const ValueScratch& scratch) {
  const int64_t plane_bytes = chunk.layout.plane_bytes();
  add_decoded(
      chunk, token, n,
      [=](const uint8_t* run, int depth, int c, int some, float* out)
          HWY_ATTR { decode_channels(run, plane_bytes, depth, c, some, out); },
      scratch);
}

void add_all_decoded(const Chunk& chunk, const ValueScratch& scratch) {
  int16_t token[kValueChunk];
  int n = 0;
  for (int j = 0; j < chunk.n; ++j) {
    token[n] = static_cast<int16_t>(j);
    n += chunk.depths[j] > 0;
  }
  for (int i = 0; i < std::min(n, kAskAhead); ++i) ask_for(chunk, token[i]);
  add_decoded(chunk, token, n, scratch);
}

#if HWY_TARGET == HWY_AVX3_DL
// Channels [c, c + 64) of the tokens too deep for bytes, whose sums stay in registers.
template <int kRows>
void add_deep(const Chunk& chunk, const LivePackets& live, const DeepValues& deep, int c) {
  __m512 sum[kRows][4];
  for (int r = 0; r < kRows; ++r)
    for (int k = 0; k < 4; ++k) sum[r][k] = _mm512_setzero_ps();
  for (int i = 0; i < live.n_beyond; ++i) {
    if (c == 0 && i + kAskAhead < live.n_beyond) ask_for(chunk, live.beyond[i + kAskAhead]);
    const int j = live.beyond[i];
    __m512 x[4];
    deep.read(chunk.packets + chunk.layout.run(chunk.first + j) + c / 8, chunk.depths[j], x);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512 w = _mm512_set1_ps(chunk.alpha[r * chunk.stride + j]);
      for (int k = 0; k < 4; ++k) sum[r][k] = _mm512_fmadd_ps(w, x[k], sum[r][k]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float* out = chunk.out + int64_t{r} * chunk.layout.head_dim + c;
    for (int k = 0; k < 4; ++k)
      _mm512_storeu_ps(out + 16 * k, _mm512_add_ps(sum[r][k], _mm512_loadu_ps(out + 16 * k)));
  }
}

// Tokens too deep for bytes: beside these f16 is enough.
void add_beyond(const Chunk& chunk, const LivePackets& live, const ValueScratch& scratch) {
  if (live.n_beyond == 0) return;
  const int64_t plane_bytes = chunk.layout.plane_bytes();
  const DeepValues deep(plane_bytes);
  constexpr int kMostRows = 5;  // whose sums stay in registers
  if (chunk.layout.head_dim % 64 == 0 && chunk.rows <= kMostRows)
    return with_constant<kMostRows>(chunk.rows, [&](auto rows) HWY_ATTR {
      for (int c = 0; c < chunk.layout.head_dim; c += 64) add_deep<rows>(chunk, live, deep, c);
    });
  add_decoded(
      chunk, live.beyond, live.n_beyond,
      [&](const uint8_t* run, int depth, int c, int some, float* out) HWY_ATTR {
        if (some == 64) return deep.decode64(run + c / 8, depth, out);
        decode_channels(run, plane_bytes, depth, c, some, out);
      },
      scratch);
}

// The next chunk's packets are found while this one is read.
void add_all_in_bytes(const Chunk& all, const ValueScratch& scratch) {
  LivePackets *live = scratch.live, *next = scratch.live + 1;
  Ahead ahead;
  find_live(all.part(0), live);
  for (int at = 0; at < all.n; at += kValueChunk, std::swap(live, next)) {
    const Chunk chunk = all.part(at), after = all.part(std::min(all.n, at + kValueChunk));
    find_live(after, next);
    for (int i = 0; i < std::min(live->n_beyond, kAskAhead); ++i) ask_for(chunk, live->beyond[i]);
    ahead.enter(chunk, *live, after, *next);
    add_in_bytes(chunk, *live, &ahead, scratch);
    add_beyond(chunk, *live, scratch);
  }
}
#elif HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
void add_all_in_bytes(const Chunk& all, const ValueScratch& scratch) {
  for (int at = 0; at < all.n; at += kValueChunk) {
    const Chunk chunk = all.part(at);
    SortedTokens sorted;
    sort_by_depth(chunk, &sorted);
    add_sorted(chunk, sorted, scratch);
    add_decoded(chunk, sorted.beyond, sorted.n_beyond, scratch);
  }
}
#endif

}  // namespace

void add_tokens(const internal::Chunk& all, bool bytes, const internal::ValueScratch& scratch) {
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  if (bytes) return add_all_in_bytes(all, scratch);
#endif
  (void)bytes;
  for (int at = 0; at < all.n; at += kValueChunk) add_all_decoded(all.part(at), scratch);
}

void transpose_bytes(const uint8_t* HWY_RESTRICT columns, int d, int n,
                     uint8_t* HWY_RESTRICT rows) {
  int c = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<uint8_t, 16> d8;
  for (; c + 16 <= d; c += 16) {
    for (int t = 0; t < n; t += 16) {
      hn::Vec<decltype(d8)> v[16], w[16];
      for (int i = 0; i < 16; ++i) v[i] = hn::LoadU(d8, columns + (c + i) * kBlock + t);
      for (int round = 0; round < 4; ++round) {
        for (int i = 0; i < 8; ++i) {
          w[2 * i] = hn::InterleaveLower(d8, v[i], v[i + 8]);
          w[2 * i + 1] = hn::InterleaveUpper(d8, v[i], v[i + 8]);
        }
        std::copy_n(w, 16, v);
      }
      for (int i = 0; i < std::min(16, n - t); ++i) hn::StoreU(v[i], d8, rows + (t + i) * d + c);
    }
  }
#endif
  for (; c < d; ++c)
    for (int t = 0; t < n; ++t) rows[t * d + c] = columns[c * kBlock + t];
}

// The largest of each `packet` depths, summed.
int64_t sum_of_largest(const uint8_t* depths, int n, int packet) {
  int64_t sum = 0;
  int at = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<uint8_t> d;
  const hn::Repartition<uint64_t, decltype(d)> d64;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const uint64_t first_of_each = packet == 8 ? 0xFF : 0x000000FF000000FF;
  if (packet == 8 || packet == 4) {
    for (; at + lanes <= n; at += lanes) {
      auto x = hn::LoadU(d, depths + at);
      const auto fold = [&](auto shifted) HWY_ATTR { x = hn::Max(x, hn::BitCast(d, shifted)); };
      fold(hn::ShiftRight<8>(hn::BitCast(d64, x)));
      fold(hn::ShiftRight<16>(hn::BitCast(d64, x)));
      if (packet == 8) fold(hn::ShiftRight<32>(hn::BitCast(d64, x)));
      const auto kept = hn::And(hn::BitCast(d64, x), hn::Set(d64, first_of_each));
      sum +=
          static_cast<int64_t>(hn::GetLane(hn::SumOfLanes(d64, hn::SumsOf8(hn::BitCast(d, kept)))));
    }
  }
#endif
  for (; at < n; at += packet)
    sum += *std::max_element(depths + at, depths + std::min(n, at + packet));
  return sum;
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
HWY_EXPORT(sum_of_largest);
HWY_EXPORT(transpose_bytes);

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
  take(&s->weights, r * kMaxSteps * 16 + 64);
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

void token_rows(const uint8_t* columns, int head_dim, int n, uint8_t* rows) noexcept {
  HWY_DYNAMIC_DISPATCH(transpose_bytes)(columns, head_dim, n, rows);
}

int64_t packet_depths(const ValueLayout& layout, int first, int n, const uint8_t* depths) noexcept {
  const int begun = first % layout.per_packet;  // tokens of the first packet that lie before
  const int lead = begun == 0 ? 0 : std::min(n, layout.per_packet - begun);
  const int64_t in_lead = lead == 0 ? 0 : *std::max_element(depths, depths + lead);
  return in_lead + HWY_DYNAMIC_DISPATCH(sum_of_largest)(depths + lead, n - lead, layout.per_packet);
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
