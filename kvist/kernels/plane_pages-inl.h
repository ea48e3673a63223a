// SPDX-License-Identifier: MIT
// Pages of keys to bytes: the lines of four channels read to one depth become 8-bit
// reconstructions side by side, in the order the dots want. Needs AVX-512 with VBMI and GFNI.
//
// A line is one plane of 512 tokens. Eight lines are transposed byte by byte, so that eight bytes
// hold eight planes of eight tokens; bit-matrix products then copy a token's bits to where they are
// looked up. Two channels of up to 4 bits share such a group, four of up to 2.
#if defined(KVIST_KERNELS_PLANE_PAGES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVIST_KERNELS_PLANE_PAGES_INL_H_
#undef KVIST_KERNELS_PLANE_PAGES_INL_H_
#else
#define KVIST_KERNELS_PLANE_PAGES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "kvist/kernels/plane_bytes-inl.h"
#include "kvist/kernels/plane_keys.h"

#if HWY_TARGET == HWY_AVX3_DL
HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {

constexpr int kGroupBytes = 512;  // eight lines, transposed: [8][64]

// Groups of a step of four channels.
constexpr int step_groups(int depth) { return depth <= 2 ? 1 : depth <= 4 ? 2 : 4; }

// Bytes q of vector j of `group` are bytes 16 (q / 16) + 2 j + q / 8 % 2 of lines 0 to 7. With
// kHalf lines 4 to 7 are those before them.
template <bool kHalf>
HWY_INLINE void transpose_lines(const uint8_t* const* line, uint8_t* HWY_RESTRICT group) {
  const auto four = [=](int first, __m512i* out) HWY_ATTR {
    const __m512i a = _mm512_loadu_si512(line[first]), b = _mm512_loadu_si512(line[first + 1]);
    const __m512i c = _mm512_loadu_si512(line[first + 2]), d = _mm512_loadu_si512(line[first + 3]);
    const __m512i ab0 = _mm512_unpacklo_epi8(a, b), ab1 = _mm512_unpackhi_epi8(a, b);
    const __m512i cd0 = _mm512_unpacklo_epi8(c, d), cd1 = _mm512_unpackhi_epi8(c, d);
    out[0] = _mm512_unpacklo_epi16(ab0, cd0), out[1] = _mm512_unpackhi_epi16(ab0, cd0);
    out[2] = _mm512_unpacklo_epi16(ab1, cd1), out[3] = _mm512_unpackhi_epi16(ab1, cd1);
  };
  __m512i low[4], high[4];
  four(0, low);
  if (!kHalf) four(4, high);
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) {
    const __m512i above = kHalf ? low[v] : high[v];
    _mm512_store_si512(group + 128 * v, _mm512_unpacklo_epi32(low[v], above));
    _mm512_store_si512(group + 128 * v + 64, _mm512_unpackhi_epi32(low[v], above));
  }
}

// The groups of four channels that begin at page + channel[m]. A product makes line r of a group
// bit 7 - r of every token's byte.
template <int kDepth>
HWY_INLINE void transpose_step(const uint8_t* page, const int64_t* channel,
                               uint8_t* HWY_RESTRICT groups) {
  const auto plane = [=](int m, int s) { return page + channel[m] + s * kPlaneBytes; };
  const uint8_t* line[8];
  if (kDepth == 1) {
    for (int m = 0; m < 4; ++m) line[3 - m] = plane(m, 0);
    return transpose_lines<true>(line, groups);
  }
  constexpr int kGroups = step_groups(kDepth), kChannels = 4 / kGroups, kBits = 8 / kChannels;
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; ++g) {
#pragma GCC unroll 8
    for (int bit = 0; bit < 8; ++bit) {
      const int s = kDepth - 1 - bit % kBits;  // negative: any line, the tables do not see it
      line[7 - bit] = plane(g * kChannels + bit / kBits, s < 0 ? 0 : s);
    }
    transpose_lines<false>(line, groups + g * kGroupBytes);
  }
}

// What turns a group's bits into bytes, for a loop over steps of one depth.
template <int kDepth>
class StepBytes {
 public:
  StepBytes() {
    for (int k = 0; k < 4; ++k)
      column_[k] = _mm512_set1_epi64(static_cast<int64_t>(0x0202020201010101) << (2 * k));
    own_ = _mm512_set1_epi32(static_cast<int>(kDepth == 1 ? 0x08040201 : 0xC0300C03));
    nibbles_ = _mm512_set1_epi64(0x3C302C201C100C00);
    table_ = kDepth <= 2 ? line_matrix(kDepth) : _mm512_load_si512(byte_tables().at[kDepth]);
  }

  // out[k] = bytes 4 t + m: channel m of tokens t of vector j of the groups, k = 0 .. 3: qword q's
  // tokens 8 q + 2 k and 8 q + 2 k + 1.
  HWY_INLINE void read(const uint8_t* groups, uint8_t* HWY_RESTRICT out) const {
    const __m512i a = _mm512_load_si512(groups);
    const __m512i b = kDepth > 2 ? _mm512_load_si512(groups + kGroupBytes) : a;
    const __m512i c = kDepth > 4 ? _mm512_load_si512(groups + 2 * kGroupBytes) : a;
    const __m512i d = kDepth > 4 ? _mm512_load_si512(groups + 3 * kGroupBytes) : a;
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      __m512i bits = product<0>(column_[k], a);
      if (kDepth <= 2) {
        bits = product < kDepth == 1 ? kLine1 : kLine2 > (_mm512_and_si512(bits, own_), table_);
      } else {
        if (kDepth <= 4) {
          merge(bits, 0xCCCCCCCCCCCCCCCC, column_[k], b);
          bits = _mm512_multishift_epi64_epi8(nibbles_, bits);
        } else {
          merge(bits, 0x2222222222222222, column_[k], b);
          merge(bits, 0x4444444444444444, column_[k], c);
          merge(bits, 0x8888888888888888, column_[k], d);
        }
        bits = _mm512_permutexvar_epi8(bits, table_);
      }
      _mm512_store_si512(out + 64 * k, bits);
    }
  }

 private:
  // The reconstructions of depths 1 and 2 are so chosen that they are sums of bits modulo 2.
  static constexpr int kLine1 = kByteZero - kByteOf1, kLine2 = kByteZero - kByteOf2[1];
  static __m512i line_matrix(int depth) {
    const uint8_t* bytes = byte_tables().at[depth];
    uint64_t rows = 0;
    for (int bit = 0; bit < 8; ++bit) {
      const auto differs = [&](int i) { return (bytes[0] ^ bytes[i]) >> bit & 1; };
      const uint64_t row =
          depth == 1 ? (differs(1) ? 0x0F : 0) : (differs(1) ? 0x55 : 0) | (differs(2) ? 0xAA : 0);
      rows |= row << (8 * (7 - bit));
    }
    return _mm512_set1_epi64(static_cast<int64_t>(rows));
  }

  // Bit b of byte n is the parity of byte 7 - b of `matrix` under byte n of x, plus bit b of
  // kAdded. As assembly, since the target that Highway compiles for does not name the instruction.
  template <int kAdded>
  static HWY_INLINE __m512i product(__m512i x, __m512i matrix) {
    __m512i out;
    asm("vgf2p8affineqb %3, %2, %1, %0" : "=v"(out) : "v"(x), "v"(matrix), "i"(kAdded));
    return out;
  }
  static HWY_INLINE void merge(__m512i& into, __mmask64 bytes, __m512i x, __m512i matrix) {
    asm("vgf2p8affineqb $0, %2, %1, %0 %{%3%}" : "+v"(into) : "v"(x), "v"(matrix), "Yk"(bytes));
  }

  __m512i column_[4], own_, nibbles_, table_;
};

}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();
#endif  // AVX3_DL

#endif  // per-target include guard
