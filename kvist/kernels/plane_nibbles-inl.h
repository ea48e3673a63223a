// SPDX-License-Identifier: MIT
// Bit planes to bytes, and their sums, with what AVX2 has: permutes by tables of 16 entries and
// dots of two bytes. No bit is spread: a nibble holds the planes of one item (depths 3 to 6), of
// two (depth 2) or one plane of four (depth 1), and a table for each place in it gives that item's
// reconstruction. Vector j of a run of planes is items 8 k + j, k = 0 .. 31.
#if defined(KVIST_KERNELS_PLANE_NIBBLES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVIST_KERNELS_PLANE_NIBBLES_INL_H_
#undef KVIST_KERNELS_PLANE_NIBBLES_INL_H_
#else
#define KVIST_KERNELS_PLANE_NIBBLES_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kvist/kernels/constant-inl.h"
#include "kvist/kernels/plane_bytes-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {

constexpr int kVectorBytes = 32;

// Vectors that hold a run read to this depth.
constexpr int packed_vectors(int depth) { return depth <= 2 ? depth : depth <= 4 ? 4 : depth; }

// Bits of `a` where the mask has ones, and those of `b`, which has them there too, `by` higher.
template <int by>
HWY_INLINE __m256i low_fields(__m256i a, __m256i b, __m256i mask) {
  return _mm256_or_si256(_mm256_and_si256(a, mask),
                         _mm256_slli_epi16(_mm256_and_si256(b, mask), by));
}
// The fields above those, brought down.
template <int by>
HWY_INLINE __m256i high_fields(__m256i a, __m256i b, __m256i mask) {
  return _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a, by), mask),
                         _mm256_andnot_si256(mask, b));
}

// plane(s) is plane s + 1 of 256 items. Depth 2: nibbles of items (0, 1 | 4, 5) and (2, 3 | 6, 7)
// of each byte, first plane lowest. Deeper: items 0 | 4, 1 | 5, 2 | 6, 3 | 7, planes 1, 3, 2, 4
// from the lowest bit on; planes 5 and 6 as they are.
template <int kDepth, typename Plane>
HWY_INLINE void pack_planes(const Plane& plane, uint8_t* HWY_RESTRICT packed) {
  const auto store = [=](int i, __m256i x) HWY_ATTR {
    _mm256_store_si256(reinterpret_cast<__m256i*>(packed + kVectorBytes * i), x);
  };
  const __m256i pairs = _mm256_set1_epi8(0x33), singles = _mm256_set1_epi8(0x55);
  if constexpr (kDepth == 1) return store(0, plane(0));
  const __m256i a = plane(0), b = plane(1);
  const __m256i ab[2] = {low_fields<2>(a, b, pairs), high_fields<2>(a, b, pairs)};
  if constexpr (kDepth == 2) return store(0, ab[0]), store(1, ab[1]);
  const __m256i c = kDepth > 2 ? plane(2) : a, d = kDepth > 3 ? plane(3) : _mm256_setzero_si256();
  const __m256i cd[2] = {low_fields<2>(c, d, pairs), high_fields<2>(c, d, pairs)};
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    store(2 * i, low_fields<1>(ab[i], cd[i], singles));
    store(2 * i + 1, high_fields<1>(ab[i], cd[i], singles));
  }
  if constexpr (kDepth > 4) store(4, plane(4));
  if constexpr (kDepth > 5) store(5, plane(5));
}

// tables[depth][place][16] for lookups by nibble: place of the item in it at depths 1 and 2, planes
// 5 and 6 as a number at depths 5 and 6.
struct NibbleTables {
  alignas(64) int8_t at[kByteDepth + 1][4][16];
};
inline const NibbleTables& nibble_tables() {
  static const NibbleTables made = [] {
    NibbleTables t{};
    for (int depth = 1; depth <= kByteDepth; ++depth)
      for (int place = 0; place < 4; ++place)
        for (int i = 0; i < 16; ++i) {
          const auto bit = [i](int n) { return i >> n & 1; };
          int prefix = depth == 1   ? bit(place)
                       : depth == 2 ? 2 * bit(place % 2) + bit(place % 2 + 2)
                                    : 8 * bit(0) + 4 * bit(2) + 2 * bit(1) + bit(3);
          if (depth == 3) prefix /= 2;
          if (depth > 4) prefix = (prefix << (depth - 4)) + place % (1 << (depth - 4));
          t.at[depth][place][i] =
              static_cast<int8_t>(std::lround(tree_centroids(depth)[prefix] / byte_unit()));
        }
    return t;
  }();
  return made;
}

// Reconstructions of items 8 k + j of packed runs, in units of byte_unit(), for a loop over runs of
// one depth. kUnsigned: beside kByteZero. kHigh: j >= 4.
template <int kDepth, bool kUnsigned, bool kHigh>
class NibbleBytes {
 public:
  explicit NibbleBytes(int j)
      : vector_(kVectorBytes * (kDepth == 1   ? 0
                                : kDepth == 2 ? j / 2 % 2
                                              : j % 4)),
        up_(_mm_cvtsi32_si128(7 - j)) {
    for (int i = 0; i < kTables; ++i) {
      const int place = kDepth == 1 ? j % 4 : kDepth == 2 ? j % 2 : i;
      const auto* from = reinterpret_cast<const __m128i*>(nibble_tables().at[kDepth][place]);
      table_[i] = _mm256_broadcastsi128_si256(_mm_load_si128(from));
      if (kUnsigned) table_[i] = _mm256_xor_si256(table_[i], _mm256_set1_epi8(-128));
    }
  }

  HWY_INLINE __m256i read(const uint8_t* packed) const {
    const auto load = [=](int64_t at) HWY_ATTR {
      return _mm256_load_si256(reinterpret_cast<const __m256i*>(packed + at));
    };
    const __m256i both = load(vector_);
    const __m256i index =
        _mm256_and_si256(kHigh ? _mm256_srli_epi16(both, 4) : both, _mm256_set1_epi8(0x0F));
    const auto look_up = [=, this](int i)
                             HWY_ATTR { return _mm256_shuffle_epi8(table_[i], index); };
    if constexpr (kDepth <= 4) return look_up(0);
    const __m256i last = _mm256_sll_epi16(load(kVectorBytes * (kDepth - 1)), up_);
    const __m256i low = _mm256_blendv_epi8(look_up(0), look_up(1), last);
    if constexpr (kDepth <= 5) return low;
    const __m256i high = _mm256_blendv_epi8(look_up(2 % kTables), look_up(3 % kTables), last);
    return _mm256_blendv_epi8(low, high, _mm256_sll_epi16(load(kVectorBytes * 4), up_));
  }

 private:
  static constexpr int kTables = kDepth <= 4 ? 1 : kDepth == 5 ? 2 : 4;
  int64_t vector_;
  __m128i up_;
  __m256i table_[kTables];
};

// fn(reader) with the NibbleBytes of items 8 k + j.
template <int kDepth, bool kUnsigned, typename Fn>
HWY_INLINE void for_nibble(int j, const Fn& fn) {
  if (j < 4)
    fn(NibbleBytes<kDepth, kUnsigned, false>(j));
  else
    fn(NibbleBytes<kDepth, kUnsigned, true>(j));
}

// Four vectors x of items become vectors of dots: lane 16 l + 4 i + m of out[q] is byte
// 16 l + 4 q + i of x[m].
HWY_INLINE void interleave_four(const __m256i* x, __m256i* out) {
  const __m256i ab0 = _mm256_unpacklo_epi8(x[0], x[1]), ab1 = _mm256_unpackhi_epi8(x[0], x[1]);
  const __m256i cd0 = _mm256_unpacklo_epi8(x[2], x[3]), cd1 = _mm256_unpackhi_epi8(x[2], x[3]);
  out[0] = _mm256_unpacklo_epi16(ab0, cd0), out[1] = _mm256_unpackhi_epi16(ab0, cd0);
  out[2] = _mm256_unpacklo_epi16(ab1, cd1), out[3] = _mm256_unpackhi_epi16(ab1, cd1);
}

// sums[q] += dots of four bytes: `unsigned_bytes` times `signed_bytes`, of which two products never
// leave 16 bits.
HWY_INLINE void add_dots(__m256i& sum, __m256i unsigned_bytes, __m256i signed_bytes) {
  const __m256i two = _mm256_maddubs_epi16(unsigned_bytes, signed_bytes);
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(two, _mm256_set1_epi16(1)));
}

// sum[r][q] = the dots of all steps, q < 2. bytes [n_steps], `step` bytes apart; weight(r, s) those
// of a row and step. kSignedWeights: bytes are unsigned, else they are signed and weights are not.
template <int kRows, bool kSignedWeights, typename Weight, typename Store>
HWY_INLINE void two_vectors(const uint8_t* HWY_RESTRICT bytes, int n_steps, int64_t step,
                            const Weight& weight, const Store& store) {
  __m256i sum[kRows][2];
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
  for (int s = 0; s < n_steps; ++s, bytes += step) {
    const __m256i x0 = _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes));
    const __m256i x1 = _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes + kVectorBytes));
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m256i w = weight(r, s);
      if constexpr (kSignedWeights) {
        add_dots(sum[r][0], x0, w), add_dots(sum[r][1], x1, w);
      } else {
        add_dots(sum[r][0], w, x0), add_dots(sum[r][1], w, x1);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) store(r, 0, sum[r][0]), store(r, 1, sum[r][1]);
}

// fn(first, constant n) for rows in parts of at most four.
template <typename Fn>
HWY_INLINE void for_row_parts(int rows, const Fn& fn) {
  for (int r = 0; r < rows;) {
    const int left = rows - r, n = left > 4 ? (left == 5 ? 3 : 4) : left;
    with_constant<4>(n, [&](auto some) HWY_ATTR { fn(r, some); });
    r += n;
  }
}

// sums[j][k] as 8 vectors `stride` numbers apart, 8 items k of each: out[8 k + j] += unit (sum -
// zero).
HWY_INLINE void add_in_order(const int32_t* sums, int64_t stride, int32_t zero, float unit,
                             float* HWY_RESTRICT out) {
  __m256 x[8], y[8];
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    const __m256i sum = _mm256_load_si256(reinterpret_cast<const __m256i*>(sums + j * stride));
    x[j] = _mm256_cvtepi32_ps(_mm256_sub_epi32(sum, _mm256_set1_epi32(zero)));
  }
#pragma GCC unroll 4
  for (int j = 0; j < 8; j += 2) {
    y[j] = _mm256_unpacklo_ps(x[j], x[j + 1]), y[j + 1] = _mm256_unpackhi_ps(x[j], x[j + 1]);
  }
#pragma GCC unroll 2
  for (int j = 0; j < 8; j += 4) {
    x[j] = _mm256_shuffle_ps(y[j], y[j + 2], 0x44),
    x[j + 1] = _mm256_shuffle_ps(y[j], y[j + 2], 0xEE);
    x[j + 2] = _mm256_shuffle_ps(y[j + 1], y[j + 3], 0x44);
    x[j + 3] = _mm256_shuffle_ps(y[j + 1], y[j + 3], 0xEE);
  }
  const __m256 u = _mm256_set1_ps(unit);
#pragma GCC unroll 8
  for (int k = 0; k < 8; ++k) {
    const __m256 row = k < 4 ? _mm256_permute2f128_ps(x[k], x[k + 4], 0x20)
                             : _mm256_permute2f128_ps(x[k - 4], x[k], 0x31);
    _mm256_storeu_ps(out + 8 * k, _mm256_fmadd_ps(row, u, _mm256_loadu_ps(out + 8 * k)));
  }
}

// Runs fn with each depth that can be summed in bytes as a constant.
template <typename Fn>
HWY_INLINE void for_byte_depths(const Fn& fn) {
  fn(std::integral_constant<int, 1>()), fn(std::integral_constant<int, 2>());
  fn(std::integral_constant<int, 3>()), fn(std::integral_constant<int, 4>());
  fn(std::integral_constant<int, 5>()), fn(std::integral_constant<int, 6>());
}

// Two vectors of items become two of dots: lane 16 l + 4 i + m of out[q] is byte 4 q + i of half l
// of x[0] for m = 0, of x[1] for m = 1, and for 2 and 3 the bytes 8 behind those.
HWY_INLINE void interleave_two(const __m256i* x, __m256i* out) {
  const __m256i low = _mm256_unpacklo_epi8(x[0], x[1]), high = _mm256_unpackhi_epi8(x[0], x[1]);
  out[0] = _mm256_unpacklo_epi16(low, high), out[1] = _mm256_unpackhi_epi16(low, high);
}

// Items 8 k + j of all steps as dots want them, kVectors vectors a step: steps[depth] of each
// depth, their runs packed one after the other.
template <int kVectors, bool kUnsigned>
void nibble_steps(const int* steps, int j, const uint8_t* HWY_RESTRICT packed,
                  uint8_t* HWY_RESTRICT bytes) {
  for_byte_depths([&](auto depth) HWY_ATTR {
    if (steps[depth] == 0) return;
    for_nibble<depth, kUnsigned>(j, [&](const auto& run) HWY_ATTR {
      for (int s = 0; s < steps[depth]; ++s, bytes += kVectors * kVectorBytes) {
        __m256i x[kVectors], y[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v, packed += packed_vectors(depth) * kVectorBytes)
          x[v] = run.read(packed);
        if constexpr (kVectors == 4)
          interleave_four(x, y);
        else
          interleave_two(x, y);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v)
          _mm256_store_si256(reinterpret_cast<__m256i*>(bytes + kVectorBytes * v), y[v]);
      }
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();
#endif  // AVX2, AVX3

#endif  // per-target include guard
