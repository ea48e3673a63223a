// SPDX-License-Identifier: MIT
// Floats as two bf16 parts, for products on AMX tiles: for files compiled for AVX512-BF16 alone.
#pragma once

#include "kvist/kernels/attend_pairs-inl.h"

namespace kvist::kernels {
namespace {

inline __m512 widened(__m256i bf16s) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16s), 16));
}

// Sixteen floats as the nearest bf16 and the bf16 nearest to what is left.
inline void split(__m512 x, __m256i* high, __m256i* low) {
  *high = (__m256i)_mm512_cvtneps_pbh(x);
  *low = (__m256i)_mm512_cvtneps_pbh(_mm512_sub_ps(x, widened(*high)));
}

}  // namespace
}  // namespace kvist::kernels
