// SPDX-License-Identifier: MIT
// Bits to numbers on one SIMD target: 64 codes read to a depth from their bit planes.
#if defined(KVIST_KERNELS_PLANE_CODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVIST_KERNELS_PLANE_CODE_INL_H_
#undef KVIST_KERNELS_PLANE_CODE_INL_H_
#else
#define KVIST_KERNELS_PLANE_CODE_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "kvist/kernels/tree_code.h"

HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// `planes` words of 64 codes, most significant bit first, `stride` bytes apart.
HWY_INLINE void split_planes(const uint8_t* codes, int planes, uint8_t* out, int64_t stride) {
#if HWY_TARGET == HWY_SCALAR
  for (int s = 0; s < planes; ++s) {
    uint64_t word = 0;
    for (int i = 0; i < 64; ++i) word |= uint64_t{codes[i] >> (7 - s) & 1u} << i;
    std::memcpy(out + s * stride, &word, 8);
  }
#else
  const hn::CappedTag<int8_t, 64> d;
  constexpr int kBytes = static_cast<int>(hn::MaxLanes(d));
  for (int i = 0; i < 64; i += kBytes) {
    auto x = hn::LoadU(d, reinterpret_cast<const int8_t*>(codes) + i);
    for (int s = 0; s < planes; ++s, x = hn::Add(x, x))
      hn::StoreMaskBits(d, hn::Lt(x, hn::Zero(d)), out + s * stride + i / 8);
  }
#endif
}

// prefix[0, 64): the first `depth` bits of 64 codes. Bit i of the 8 bytes at planes + s * stride is
// plane s + 1 of code i.
HWY_INLINE void read_prefixes(const uint8_t* planes, int64_t stride, int depth,
                              uint8_t* HWY_RESTRICT prefix) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < 64; ++i) {
    int bits = 0;
    for (int s = 0; s < depth; ++s) bits = 2 * bits + (planes[s * stride + i / 8] >> (i % 8) & 1);
    prefix[i] = static_cast<uint8_t>(bits);
  }
#else
  const hn::CappedTag<uint8_t, 64> d;
  constexpr int kBytes = static_cast<int>(hn::MaxLanes(d));
  const auto one = hn::Set(d, 1);
  for (int i = 0; i < 64; i += kBytes) {
    auto bits = hn::Zero(d);
    for (int s = 0; s < depth; ++s) {
      const auto plane = hn::LoadMaskBits(d, planes + s * stride + i / 8);
      bits = hn::Or(hn::Add(bits, bits), hn::IfThenElseZero(plane, one));
    }
    hn::StoreU(bits, d, prefix + i);
  }
#endif
}

// out[i] = centroids[prefix[i]] for i in [0, 64), with centroids = tree_centroids(depth). Deeper
// tables follow it, so that whole registers of it may be loaded.
HWY_INLINE void look_up(const uint8_t* HWY_RESTRICT prefix, const float* HWY_RESTRICT centroids,
                        int depth, float* HWY_RESTRICT out) {
#if HWY_TARGET == HWY_SCALAR
  (void)depth;
  for (int i = 0; i < 64; ++i) out[i] = centroids[prefix[i]];
#else
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  constexpr int kN = static_cast<int>(hn::MaxLanes(d));
  const hn::CappedTag<uint8_t, kN> d8;
#if HWY_TARGET <= HWY_AVX3
  // As many registers as the table fills, up to four; beyond them a gather is faster.
  if (depth <= 6) {
    const __m512 t0 = _mm512_loadu_ps(centroids), t1 = _mm512_loadu_ps(centroids + 16);
    const __m512 t2 = _mm512_loadu_ps(centroids + 32), t3 = _mm512_loadu_ps(centroids + 48);
    for (int i = 0; i < 64; i += kN) {
      const __m512i at = hn::PromoteTo(di, hn::LoadU(d8, prefix + i)).raw;
      __m512 x;
      if (depth <= 4) {
        x = _mm512_permutexvar_ps(at, t0);
      } else {
        x = _mm512_permutex2var_ps(t0, at, t1);
        if (depth == 6) {
          const __mmask16 high = _mm512_test_epi32_mask(at, _mm512_set1_epi32(32));
          x = _mm512_mask_blend_ps(high, x, _mm512_permutex2var_ps(t2, at, t3));
        }
      }
      _mm512_storeu_ps(out + i, x);
    }
    return;
  }
#elif HWY_TARGET == HWY_AVX2
  if (depth <= 4) {
    const __m256 low = _mm256_loadu_ps(centroids), high = _mm256_loadu_ps(centroids + 8);
    for (int i = 0; i < 64; i += kN) {
      const __m256i at = hn::PromoteTo(di, hn::LoadU(d8, prefix + i)).raw;
      __m256 x = _mm256_permutevar8x32_ps(low, at);
      if (depth == 4) {
        const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(at, 28));
        x = _mm256_blendv_ps(x, _mm256_permutevar8x32_ps(high, at), upper);
      }
      _mm256_storeu_ps(out + i, x);
    }
    return;
  }
#endif
  (void)depth;
  for (int i = 0; i < 64; i += kN) {
    const auto at = hn::PromoteTo(di, hn::LoadU(d8, prefix + i));
    hn::StoreU(hn::GatherIndex(d, centroids, at), d, out + i);
  }
#endif
}

// out[0, 64) = Q_depth of 64 codes, depth >= 1.
HWY_INLINE void decode64(const uint8_t* planes, int64_t stride, int depth,
                         float* HWY_RESTRICT out) {
  HWY_ALIGN uint8_t prefix[64];
  read_prefixes(planes, stride, depth, prefix);
  look_up(prefix, tree_centroids(depth), depth, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
