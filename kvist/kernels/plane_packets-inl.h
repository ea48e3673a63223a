// SPDX-License-Identifier: MIT
// Packets of values to bytes: the bit planes of four tokens become 8-bit reconstructions side by
// side, in the order the dots want. Needs AVX-512 with VBMI, VNNI and GFNI.
#if defined(KVIST_KERNELS_PLANE_PACKETS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVIST_KERNELS_PLANE_PACKETS_INL_H_
#undef KVIST_KERNELS_PLANE_PACKETS_INL_H_
#else
#define KVIST_KERNELS_PLANE_PACKETS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kvist/core/half.h"
#include "kvist/kernels/plane_bytes-inl.h"

#if HWY_TARGET == HWY_AVX3_DL
HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {

// One table for every depth: the index of a prefix of t bits has plane s at bit kIndexBit[s - 1]
// for s <= t and a 1 at bit kIndexBit[t], and 0 above in that order. Depths below 6 need 64
// entries.
constexpr int kIndexBit[kByteDepth + 1] = {3, 2, 1, 0, 4, 5, 6};

struct IndexTable {
  alignas(64) uint8_t at[128];   // the byte of the reconstruction
  alignas(16) uint8_t keep[16];  // [depth] bits of the index that are planes
  alignas(16) uint8_t mark[16];  // [depth] the 1
};
inline const IndexTable& index_table() {
  static const IndexTable made = [] {
    IndexTable t{};
    std::fill_n(t.at, 128, static_cast<uint8_t>(kByteZero));
    for (int depth = 0; depth <= kByteDepth; ++depth) {
      t.mark[depth] = static_cast<uint8_t>(1 << kIndexBit[depth]);
      for (int prefix = 0; depth > 0 && prefix < 1 << depth; ++prefix) {
        int index = t.mark[depth];
        for (int s = 0; s < depth; ++s) index |= (prefix >> (depth - 1 - s) & 1) << kIndexBit[s];
        t.at[index] = static_cast<uint8_t>(
            kByteZero + static_cast<int>(std::lround(tree_centroids(depth)[prefix] / byte_unit())));
      }
      for (int s = 0; s < depth; ++s) t.keep[depth] |= static_cast<uint8_t>(1 << kIndexBit[s]);
    }
    return t;
  }();
  return made;
}

constexpr int64_t kEachByte = 0x0101010101010101;
constexpr auto kBitOfByte = static_cast<int64_t>(0x8040201008040201);

// Bit n of byte 7 - s of a group of `planes` becomes bit s of byte n; `columns` are the bits 0 to
// 7, kBitOfByte. As assembly, since the target that Highway compiles for does not name the
// instruction.
HWY_INLINE __m512i transpose_bits(__m512i planes, __m512i columns) {
  __m512i out;
  asm("vgf2p8affineqb $0, %2, %1, %0" : "=v"(out) : "v"(columns), "v"(planes));
  return out;
}

// The constants of a loop over packets.
class PacketBytes {
 public:
  PacketBytes() {
    const IndexTable& t = index_table();
    low_ = _mm512_load_si512(t.at);
    high_ = _mm512_load_si512(t.at + 64);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i in_all = _mm512_mullo_epi32(lane, _mm512_set1_epi32(0x01010101));
    order_ = _mm512_add_epi8(in_all, _mm512_set1_epi32(0x30201000));
    columns_ = _mm512_set1_epi64(kBitOfByte);
  }

  // The bytes of four tokens, channel by channel: out0[0, 256) of the lower and out1[0, 256) of the
  // upper half of each 16 bytes of a line. Of the eight channels 8 o of a half, o = 0 .. 7, vector
  // 2 (o / 4) + o % 2 has those in its lower half where o % 4 < 2. Byte m of keep and mark is that
  // of IndexTable for the depth of token m, at most kDeepest, which is 4, 5 or 6. No line past
  // `deepest` is touched.
  template <int kDeepest>
  HWY_INLINE void read(const uint8_t* lines, int deepest, const uint8_t* keep, const uint8_t* mark,
                       int64_t upper, uint8_t* HWY_RESTRICT out0,
                       uint8_t* HWY_RESTRICT out1) const {
    const int64_t last = 64 * (deepest - 1);
    const auto line = [=](int s) HWY_ATTR {
      return _mm512_loadu_si512(lines + std::min<int64_t>(64 * s, last));
    };
    const __m512i zero = _mm512_setzero_si512();
    const __m512i a = line(0), b = line(1), c = line(2), d = line(3);
    const __m512i e = kDeepest > 4 ? line(4) : zero, f = kDeepest > 5 ? line(5) : zero;
    place<kDeepest>(_mm512_unpacklo_epi8(a, b), _mm512_unpacklo_epi8(c, d),
                    kDeepest > 4 ? _mm512_unpacklo_epi8(f, e) : zero, keep, mark, out0);
    place<kDeepest>(_mm512_unpackhi_epi8(a, b), _mm512_unpackhi_epi8(c, d),
                    kDeepest > 4 ? _mm512_unpackhi_epi8(f, e) : zero, keep + upper, mark + upper,
                    out1);
  }

 private:
  template <int kDeepest>
  HWY_INLINE void place(__m512i ab, __m512i cd, __m512i fe, const uint8_t* keep4,
                        const uint8_t* mark4, uint8_t* HWY_RESTRICT out) const {
    const __m512i zero = _mm512_setzero_si512();
    const __m512i high[2] = {_mm512_unpacklo_epi16(ab, cd), _mm512_unpackhi_epi16(ab, cd)};
    const __m512i keep = load4(keep4), mark = load4(mark4);
    constexpr __mmask16 kOdd = 0xAAAA;
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i, out += 128) {
      // Eight bytes are twice four planes; `keep` drops those of the other eight channels.
      __m512i planes[2] = {_mm512_rol_epi64(high[i], 32), high[i]};
      if (kDeepest > 4) {
        const __m512i low =
            i == 0 ? _mm512_unpacklo_epi16(zero, fe) : _mm512_unpackhi_epi16(zero, fe);
        planes[0] = _mm512_mask_mov_epi32(low, kOdd, planes[0]);
        planes[1] = _mm512_mask_mov_epi32(_mm512_rol_epi64(low, 32), kOdd, planes[1]);
      }
#pragma GCC unroll 2
      for (int k = 0; k < 2; ++k) {
        const __m512i bits = _mm512_permutexvar_epi8(order_, transpose_bits(planes[k], columns_));
        const __m512i index = _mm512_ternarylogic_epi64(bits, keep, mark, 0xEA);
        _mm512_store_si512(out + 64 * k, kDeepest > 5 ? _mm512_permutex2var_epi8(low_, index, high_)
                                                      : _mm512_permutexvar_epi8(index, low_));
      }
    }
  }

  static HWY_INLINE __m512i load4(const uint8_t* p) {
    int32_t four;
    std::memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
  }

  __m512i low_, high_, order_, columns_;
};

// Reconstructions of depths 7 and 8 in f16, by the first eight bits of a code: lower bytes, then
// upper ones.
struct DeepTables {
  alignas(64) uint8_t at[kTreeDepth - kByteDepth][2][1 << kTreeDepth];
};
inline const DeepTables& deep_tables() {
  static const DeepTables made = [] {
    DeepTables t{};
    for (int depth = kByteDepth + 1; depth <= kTreeDepth; ++depth) {
      for (int i = 0; i < 1 << kTreeDepth; ++i) {
        const f16 x = to_f16(tree_centroids(depth)[i >> (kTreeDepth - depth)]);
        uint8_t bytes[2];
        std::memcpy(bytes, &x, 2);
        for (int k = 0; k < 2; ++k) t.at[depth - kByteDepth - 1][k][i] = bytes[k];
      }
    }
    return t;
  }();
  return made;
}

// Codes of depths 7 and 8 to numbers in f16's precision, for a loop over tokens of one stride.
class DeepValues {
 public:
  explicit DeepValues(int64_t stride) : tables_(deep_tables()) {
    const __m512i lane = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
    at_ = _mm512_mullo_epi64(lane, _mm512_set1_epi64(stride));
    // Byte s of group k is byte k of plane s + 1, which becomes bit 7 - s; groups 0 and 4 first, as
    // unpacking takes them apart.
    const __m512i group = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    by_group_ = _mm512_add_epi8(_mm512_set1_epi64(0x3830282018100800),
                                _mm512_mullo_epi64(group, _mm512_set1_epi64(kEachByte)));
  }

  // out[k] = Q_depth of codes 16 k to 16 k + 15. Bit i of the 8 bytes at planes + s * stride is
  // plane s + 1 of code i.
  HWY_INLINE void read(const uint8_t* planes, int depth, __m512* out) const {
    const auto read = static_cast<__mmask8>((1 << depth) - 1);
    const __m512i all = _mm512_mask_i64gather_epi64(_mm512_setzero_si512(), read, at_, planes, 1);
    const __m512i prefix =
        transpose_bits(_mm512_permutexvar_epi8(by_group_, all), _mm512_set1_epi64(kBitOfByte));
    const __mmask64 upper = _mm512_movepi8_mask(prefix);
    const auto look_up = [=, this](int k) HWY_ATTR {
      const uint8_t* table = tables_.at[depth - kByteDepth - 1][k];
      const auto half = [=](int i) HWY_ATTR {
        return _mm512_permutex2var_epi8(_mm512_load_si512(table + 128 * i), prefix,
                                        _mm512_load_si512(table + 128 * i + 64));
      };
      return _mm512_mask_blend_epi8(upper, half(0), half(1));
    };
    const __m512i low = look_up(0), high = look_up(1);
    const __m512i x[2] = {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      out[2 * i] = _mm512_cvtph_ps(_mm512_castsi512_si256(x[i]));
      out[2 * i + 1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(x[i], 1));
    }
  }

  HWY_INLINE void decode64(const uint8_t* planes, int depth, float* HWY_RESTRICT out) const {
    __m512 x[4];
    read(planes, depth, x);
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) _mm512_storeu_ps(out + 16 * k, x[k]);
  }

 private:
  const DeepTables& tables_;
  __m512i at_, by_group_;
};

}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();
#endif  // AVX3_DL

#endif  // per-target include guard
