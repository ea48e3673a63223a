// SPDX-License-Identifier: MIT
// Rows of weights of any type, dequantised, rounded to bf16 where that is wanted.
#include "kvist/model/widen.h"

#include <algorithm>
#include <bit>
#include <cstring>

// The rounding loop is compiled once per instruction set; sanitizers cannot run inside the resolver
// that picks one.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define KVIST_CLONES __attribute__((target_clones("arch=skylake-avx512", "avx2", "default")))
#else
#define KVIST_CLONES
#endif

namespace kvist {
namespace {

constexpr int64_t kBlock = 4096;  // a multiple of every block size of ggml

}  // namespace

KVIST_CLONES void round_to_bf16(const float* from, uint16_t* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t u = std::bit_cast<uint32_t>(from[i]);
    const uint32_t rounded = (u + 0x7FFFu + (u >> 16 & 1u)) >> 16;
    const uint32_t nan = u >> 16 | 0x40u;
    to[i] = static_cast<uint16_t>((u & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded);
  }
}

bool widening_pays(ggml_type type) {
  switch (type) {
    case GGML_TYPE_Q4_0:
    case GGML_TYPE_Q4_1:
    case GGML_TYPE_Q5_0:
    case GGML_TYPE_Q5_1:
    case GGML_TYPE_Q8_0:
    case GGML_TYPE_IQ1_S:
    case GGML_TYPE_IQ1_M:
    case GGML_TYPE_IQ2_XXS:
    case GGML_TYPE_IQ2_XS:
    case GGML_TYPE_IQ2_S:
    case GGML_TYPE_IQ3_XXS:
    case GGML_TYPE_IQ3_S:
    case GGML_TYPE_IQ4_NL:
    case GGML_TYPE_IQ4_XS:
    case GGML_TYPE_TQ1_0:
    case GGML_TYPE_TQ2_0:
      return true;
    default:
      return false;
  }
}

void to_f32(ggml_type type, const void* from, int64_t n, float* to) {
  if (type == GGML_TYPE_F32) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
  } else {
    ggml_get_type_traits(type)->to_float(from, to, n);
  }
}

void widen_rows(ggml_type type, const void* from, int64_t columns, int64_t first, int64_t last,
                ggml_type wide, void* to) {
  float block[kBlock];
  const size_t row_bytes = ggml_row_size(type, columns);
  for (int64_t row = first; row < last; ++row) {
    const char* source = static_cast<const char*>(from) + static_cast<size_t>(row) * row_bytes;
    if (wide == GGML_TYPE_F32) {
      to_f32(type, source, columns, static_cast<float*>(to) + row * columns);
      continue;
    }
    uint16_t* target = static_cast<uint16_t*>(to) + row * columns;
    for (int64_t at = 0; at < columns; at += kBlock) {
      const int64_t n = std::min(kBlock, columns - at);
      to_f32(type, source + ggml_row_size(type, at), n, block);
      round_to_bf16(block, target + at, n);
    }
  }
}

}  // namespace kvist
