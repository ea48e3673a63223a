// SPDX-License-Identifier: MIT
// The weighted sum of a chunk of values in bytes: which packets are read, their weights in 8 bits,
// and the sums of four tokens a dot.
#if defined(KVIST_KERNELS_PLANE_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVIST_KERNELS_PLANE_VALUES_INL_H_
#undef KVIST_KERNELS_PLANE_VALUES_INL_H_
#else
#define KVIST_KERNELS_PLANE_VALUES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kvist/kernels/plane_chunk.h"
#include "kvist/kernels/plane_packets-inl.h"

#if HWY_TARGET == HWY_AVX3_DL
HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {
namespace {
using namespace internal;

// Where lines of 64 bytes hold 16 bytes of four tokens, or 8 bytes of eight, they are read as they
// lie: their lower half is 64 channels of every token, or every second token. Other head sizes are
// copied into the first form, four tokens and 128 channels at a time.
enum class Form { four, eight, copied };
Form form_of(const ValueLayout& layout) {
  if (layout.run_bytes() == 16) return Form::four;
  return layout.run_bytes() == 8 ? Form::eight : Form::copied;
}

void find_live(const Chunk& chunk, LivePackets* live) {
  const bool eight = form_of(chunk.layout) == Form::eight;
  live->lead = form_of(chunk.layout) == Form::copied ? 0 : chunk.first % chunk.layout.per_packet;
  const int slots = (live->lead + chunk.n + 63) / 64;
  std::memset(live->depths, 0, static_cast<size_t>(64 * slots));
  std::memcpy(live->depths + live->lead, chunk.depths, static_cast<size_t>(chunk.n));
  const __m512i evens_odds = _mm512_set4_epi32(0x0F0D0B09, 0x0E0C0A08, 0x07050301, 0x06040200);
  const auto in_lanes = [](const uint8_t* table) HWY_ATTR {
    return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(table)));
  };
  const __m512i keep = in_lanes(index_table().keep), mark = in_lanes(index_table().mark);
  live->n = live->n_deep = live->n_beyond = 0;
  __m512i packet = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (int g = 0; g < kSlots / 64; ++g) {
    live->read[g] = live->kept[g] = 0;
    if (g >= slots) continue;
    const __m512i all = _mm512_load_si512(live->depths + 64 * g);
    const __mmask64 beyond = _mm512_cmpgt_epu8_mask(all, _mm512_set1_epi8(kByteDepth));
    const __mmask64 read = _mm512_test_epi8_mask(all, all) & ~beyond;
    for (uint64_t left = beyond; left != 0; left &= left - 1)
      live->beyond[live->n_beyond++] =
          static_cast<int16_t>(64 * g + __builtin_ctzll(left) - live->lead);
    __m512i depths = _mm512_maskz_mov_epi8(read, all);
    if (eight) depths = _mm512_shuffle_epi8(depths, evens_odds);
    _mm512_store_si512(live->depths + 64 * g, depths);
    _mm512_store_si512(live->keep + 64 * g, _mm512_shuffle_epi8(keep, depths));
    _mm512_store_si512(live->mark + 64 * g, _mm512_shuffle_epi8(mark, depths));
    __m512i top = _mm512_max_epu8(depths, _mm512_srli_epi64(depths, 8));
    top = _mm512_max_epu8(top, _mm512_srli_epi64(top, 16));
    if (eight)
      top = _mm512_zextsi256_si512(
          _mm512_cvtepi64_epi32(_mm512_max_epu8(top, _mm512_srli_epi64(top, 32))));
    top = _mm512_and_si512(top, _mm512_set1_epi32(0xFF));
    const __mmask16 kept = _mm512_test_epi32_mask(top, top);
    _mm512_storeu_si512(live->packet + live->n, _mm512_maskz_compress_epi32(kept, packet));
    _mm512_storeu_si512(live->deepest + live->n, _mm512_maskz_compress_epi32(kept, top));
    packet = _mm512_add_epi32(packet, _mm512_set1_epi32(eight ? 8 : 16));
    live->read[g] = read;
    live->kept[g] = kept;
    live->n += __builtin_popcount(kept);
    live->n_deep += __builtin_popcount(_mm512_cmpgt_epi32_mask(top, _mm512_set1_epi32(4)));
  }
}

// The largest weight of a row among the tokens read in bytes.
HWY_INLINE float largest_weight(const float* alpha, const LivePackets& live) {
  __m512 top = _mm512_setzero_ps();
  for (int g = 0; g < kSlots / 64; ++g)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const auto read = static_cast<__mmask16>(live.read[g] >> (16 * i));
      top = _mm512_max_ps(top, _mm512_maskz_loadu_ps(read, alpha + 64 * g + 16 * i));
    }
  return _mm512_reduce_max_ps(top);
}

// Where the bytes of 64 slots lie after packing four vectors: each 16 bytes have four slots of
// each.
__m512i packed_order(bool eight) {
  static const auto made = [] {
    std::array<uint8_t, 128> from{};
    for (int i = 0; i < 128; ++i) {
      const int slot = i < 64 ? i : i % 64 / 8 * 8 + i % 4 * 2 + i / 4 % 2;
      from[static_cast<size_t>(i)] =
          static_cast<uint8_t>(slot % 16 / 4 * 16 + slot / 16 * 4 + slot % 4);
    }
    return from;
  }();
  return _mm512_loadu_si512(made.data() + (eight ? 64 : 0));
}

// Weights in units of 1/127 of the largest, those of live packets one after the other.
void quantize_weights(const Chunk& chunk, const LivePackets& live, const ValueScratch& scratch) {
  const bool eight = form_of(chunk.layout) == Form::eight;
  const __m512i order = packed_order(eight);
  for (int r = 0; r < chunk.rows; ++r) {
    const float* alpha = chunk.alpha + r * chunk.stride - live.lead;
    // Weights that are not normal numbers count for nothing.
    const float largest = largest_weight(alpha, live);
    const float scale = largest < 1e-35f ? 0 : 127 / largest;
    __m512i sum = _mm512_setzero_si512();
    int8_t* to = scratch.weights + int64_t{r} * kMaxSteps * kStepItems;
    for (int g = 0; g < kSlots / 64; ++g) {
      if (live.read[g] == 0) continue;
      __m512i whole[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const auto read = static_cast<__mmask16>(live.read[g] >> (16 * i));
        const __m512 a = _mm512_maskz_loadu_ps(read, alpha + 64 * g + 16 * i);
        whole[i] = _mm512_cvtps_epi32(_mm512_mul_ps(a, _mm512_set1_ps(scale)));
      }
      const __m512i packed = _mm512_packs_epi16(_mm512_packs_epi32(whole[0], whole[1]),
                                                _mm512_packs_epi32(whole[2], whole[3]));
      const __m512i bytes = _mm512_permutexvar_epi8(order, packed);
      add_dots(sum, _mm512_set1_epi8(1), bytes);
      const auto kept = live.kept[g];
      _mm512_storeu_si512(to,
                          eight ? _mm512_maskz_compress_epi64(static_cast<__mmask8>(kept), bytes)
                                : _mm512_maskz_compress_epi32(static_cast<__mmask16>(kept), bytes));
      to += __builtin_popcountll(kept) * (eight ? 8 : 4);
    }
    scratch.zero[r] = kByteZero * _mm512_reduce_add_epi32(sum);
    scratch.unit[r] = scale == 0 ? 0 : byte_unit() / scale;
  }
}

// Asks for the lines of packets some way ahead of the one being read: hardware does not foresee
// them, and all at once they would wait for each other. Copied packets are asked for by nobody.
class Ahead {
 public:
  // `after` follows `chunk`, which follows the last chunk that this was called with.
  void enter(const Chunk& chunk, const LivePackets& live, const Chunk& after,
             const LivePackets& next) {
    asked_ = std::max(0, asked_ - parts_[0].n);
    parts_[0] = {chunk, live}, parts_[1] = {after, next};
  }
  HWY_INLINE void at(int packet) {
    for (const int end = std::min(parts_[0].n + parts_[1].n, packet + kPackets); asked_ < end;
         ++asked_)
      asked_ < parts_[0].n ? parts_[0].ask(asked_) : parts_[1].ask(asked_ - parts_[0].n);
  }

 private:
  static constexpr int kPackets = 16;
  struct Part {
    Part() = default;
    Part(const Chunk& chunk, const LivePackets& live_packets)
        : live(&live_packets),
          packets(chunk.packets + chunk.layout.run(chunk.first - live_packets.lead)),
          packet_bytes(chunk.layout.packet_bytes()),
          n(form_of(chunk.layout) == Form::copied ? 0 : live_packets.n) {}
    HWY_INLINE void ask(int i) const {
      const uint8_t* lines = packets + live->packet[i] * packet_bytes;
      const int64_t last = 64 * (live->deepest[i] - 1);
#pragma GCC unroll 4
      for (int64_t s = 0; s < 256; s += 64) __builtin_prefetch(lines + std::min(s, last), 0, 2);
      for (int64_t s = 256; s <= last; s += 64) __builtin_prefetch(lines + s, 0, 2);
    }
    const LivePackets* live = nullptr;
    const uint8_t* packets = nullptr;
    int64_t packet_bytes = 0;
    int n = 0;
  };
  Part parts_[2];
  int asked_ = 0;  // of the packets of both parts
};

// Four tokens' bytes [16 part, 16 part + n_bytes) of each plane they are read to, as lines.
void copy_lines(const Chunk& chunk, const uint8_t* depths, int slot, int part, uint8_t* lines) {
  const int64_t plane = chunk.layout.plane_bytes();
  const auto n = static_cast<size_t>(std::min(16, chunk.layout.run_bytes() - 16 * part));
  for (int m = 0; m < 4; ++m) {
    const uint8_t* run = chunk.packets + chunk.layout.run(chunk.first + slot + m) + 16 * part;
    for (int s = 0; s < depths[m]; ++s) std::memcpy(lines + 64 * s + 16 * m, run + s * plane, n);
  }
}

// bytes [half][live][256], or [live][half][256] where halves are tokens; channels [128 part, ...).
void read_packets(const Chunk& chunk, const LivePackets& live, int part, Ahead* ahead,
                  uint8_t* bytes) {
  const PacketBytes reader;
  const Form form = form_of(chunk.layout);
  const int per_packet = form == Form::eight ? 8 : 4;
  const int64_t step = 64 * per_packet;
  const int64_t upper = form == Form::eight ? 256 : 256 * int64_t{live.n};
  const uint8_t* packets = chunk.packets + chunk.layout.run(chunk.first - live.lead);
  const int64_t packet_bytes = chunk.layout.packet_bytes();
  const bool mostly_deep = 8 * live.n_deep > live.n;
  alignas(64) uint8_t copy[64 * kByteDepth] = {};
  for (int i = 0; i < live.n; ++i, bytes += step) {
    ahead->at(i);
    const int packet = live.packet[i], deepest = live.deepest[i];
    const uint8_t* lines = packets + packet * packet_bytes;
    const int first = per_packet * packet;
    if (form == Form::copied) {
      copy_lines(chunk, live.depths + first, first, part, copy);
      lines = copy;
    }
    const auto read = [&](auto most) HWY_ATTR {
      reader.read<most>(lines, deepest, live.keep + first, live.mark + first, per_packet - 4, bytes,
                        bytes + upper);
    };
    if (deepest > 5) {
      read(std::integral_constant<int, 6>());
    } else if (mostly_deep || deepest > 4) {
      read(std::integral_constant<int, 5>());
    } else {
      read(std::integral_constant<int, 4>());
    }
  }
}

void add_in_bytes(const Chunk& chunk, const LivePackets& live, Ahead* ahead,
                  const ValueScratch& scratch) {
  ahead->at(0);
  if (live.n == 0) return;
  quantize_weights(chunk, live, scratch);
  const int d = chunk.layout.head_dim;
  const auto add = [&](const uint8_t* bytes, int n_steps, int c) {
    if (c >= d) return;
    add_bytes<false>(bytes, n_steps, reinterpret_cast<const int32_t*>(scratch.weights), kMaxSteps,
                     scratch.zero, scratch.unit, chunk.rows, chunk.out + c, d, std::min(64, d - c));
  };
  if (form_of(chunk.layout) == Form::eight) {
    read_packets(chunk, live, 0, ahead, scratch.bytes);
    return add(scratch.bytes, 2 * live.n, 0);
  }
  for (int part = 0; 128 * part < d; ++part) {
    read_packets(chunk, live, part, ahead, scratch.bytes);
    add(scratch.bytes, live.n, 128 * part);
    add(scratch.bytes + 256 * live.n, live.n, 128 * part + 64);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();
#endif  // AVX3_DL

#endif  // per-target include guard
