// SPDX-License-Identifier: MIT
// Attention of many rows with bf16 dot products (AVX512-BF16): each block of K and V is interleaved
// in pairs once and used by register tiles of 12 rows. Nothing of the standard library is
// instantiated here: this file's flags must not leak out.
#include "kvist/kernels/attend_internal.h"

#if defined(__AVX512BF16__)
#include "kvist/kernels/attend_pairs-inl.h"

namespace kvist::kernels::internal {
namespace {

struct Scratch {
  uint32_t* k;  // [(head_dim + 1) / 2][64] pairs of channels
  uint32_t* v;  // [32][columns] pairs of tokens
  uint32_t* q;  // [rows][(head_dim + 1) / 2] pairs of channels
  float* s;     // [kRowTile][64]
  uint32_t* p;  // [kRowTile][32] pairs of tokens
};

inline __m512bh load_pairs(const uint32_t* p) { return (__m512bh)_mm512_loadu_si512(p); }
inline __m512bh broadcast(uint32_t pair) {
  return (__m512bh)_mm512_set1_epi32(static_cast<int>(pair));
}

// s[r][0, 64) = q[r] . k
template <int kRows>
inline void scores(const uint32_t* q, const uint32_t* k, int pairs, float* s) {
  for (int j = 0; j < kBlock; j += 32) {
    __m512 sum[kRows][2];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (int c = 0; c < pairs; ++c) {
      const __m512bh k0 = load_pairs(k + c * kBlock + j), k1 = load_pairs(k + c * kBlock + j + 16);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const __m512bh x = broadcast(q[r * pairs + c]);
        sum[r][0] = _mm512_dpbf16_ps(sum[r][0], x, k0);
        sum[r][1] = _mm512_dpbf16_ps(sum[r][1], x, k1);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      _mm512_storeu_ps(s + r * kBlock + j, sum[r][0]);
      _mm512_storeu_ps(s + r * kBlock + j + 16, sum[r][1]);
    }
  }
}

// o[r][0, 32) += p[r] . v over `pairs` pairs of tokens
template <int kRows>
inline void values32(const uint32_t* p, const uint32_t* v, int columns, int pairs, float* o,
                     int head_dim) {
  __m512 sum[kRows][2];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    sum[r][0] = _mm512_loadu_ps(o + r * head_dim);
    sum[r][1] = _mm512_loadu_ps(o + r * head_dim + 16);
  }
  for (int t = 0; t < pairs; ++t) {
    const __m512bh v0 = load_pairs(v + t * columns), v1 = load_pairs(v + t * columns + 16);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const __m512bh x = broadcast(p[r * kPairs + t]);
      sum[r][0] = _mm512_dpbf16_ps(sum[r][0], x, v0);
      sum[r][1] = _mm512_dpbf16_ps(sum[r][1], x, v1);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    _mm512_storeu_ps(o + r * head_dim, sum[r][0]);
    _mm512_storeu_ps(o + r * head_dim + 16, sum[r][1]);
  }
}

// The same for at most 16 columns.
template <int kRows>
inline void values16(const uint32_t* p, const uint32_t* v, int columns, int pairs, float* o,
                     int head_dim, __mmask16 mask) {
  __m512 sum[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) sum[r] = _mm512_maskz_loadu_ps(mask, o + r * head_dim);
  for (int t = 0; t < pairs; ++t) {
    const __m512bh x = load_pairs(v + t * columns);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
      sum[r] = _mm512_dpbf16_ps(sum[r], broadcast(p[r * kPairs + t]), x);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) _mm512_mask_storeu_ps(o + r * head_dim, mask, sum[r]);
}

// exp(x) for x <= 0, 0 below -87, as in attend-inl.h.
inline __m512 exp_negative(__m512 x) {
  const __mmask16 seen = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_GE_OQ);
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.442695041f)), 0);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 y = _mm512_set1_ps(1.9875691500e-4f);
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.3981999507e-3f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(8.3334519073e-3f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(4.1665795894e-2f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.6666665459e-1f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(5.0000001201e-1f));
  y = _mm512_fmadd_ps(_mm512_mul_ps(y, r), r, _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
  return _mm512_maskz_scalef_ps(seen, y, n);
}

inline void grow_maximum(float top, float* m, float* l, float* o, int head_dim) {
  const float factor = __builtin_expf(*m - top);  // 0 where m is still -infinity
  *m = top;
  *l *= factor;
  const __m512 f = _mm512_set1_ps(factor);
  for (int c = 0; c < head_dim; c += 16) {
    const __mmask16 mask = first_lanes(head_dim - c);
    _mm512_mask_storeu_ps(o + c, mask, _mm512_mul_ps(f, _mm512_maskz_loadu_ps(mask, o + c)));
  }
}

// Turns 64 logits of one row into bf16 weights p and brings m, l and o up to date; logits from
// `count` on are unseen. The sum l is of the rounded weights, so that they add up to one.
inline void softmax_row(const float* s, int count, float* m, float* l, float* o, int head_dim,
                        uint32_t* p) {
  const __m512 unseen = _mm512_set1_ps(kUnseen);
  __m512 x[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm512_loadu_ps(s + 16 * i);
    if (count < kBlock) {
      const int left = count - 16 * i;
      x[i] = _mm512_mask_mov_ps(unseen, first_lanes(left > 0 ? left : 0), x[i]);
    }
  }
  const float top =
      _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(x[0], x[1]), _mm512_max_ps(x[2], x[3])));
  if (top > *m) grow_maximum(top, m, l, o, head_dim);
  if (*m == kUnseen) {
    _mm512_storeu_si512(p, _mm512_setzero_si512());
    _mm512_storeu_si512(p + 16, _mm512_setzero_si512());
    return;
  }
  const __m512 max = _mm512_set1_ps(*m);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) x[i] = exp_negative(_mm512_sub_ps(x[i], max));
  const __m512i p0 = (__m512i)_mm512_cvtne2ps_pbh(x[1], x[0]);
  const __m512i p1 = (__m512i)_mm512_cvtne2ps_pbh(x[3], x[2]);
  _mm512_storeu_si512(p, p0);
  _mm512_storeu_si512(p + 16, p1);
  // pairs (even, odd): the sums of both halves as floats
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  const __m512 even = _mm512_add_ps(_mm512_castsi512_ps(_mm512_slli_epi32(p0, 16)),
                                    _mm512_castsi512_ps(_mm512_slli_epi32(p1, 16)));
  const __m512 odd = _mm512_add_ps(_mm512_castsi512_ps(_mm512_and_si512(p0, high)),
                                   _mm512_castsi512_ps(_mm512_and_si512(p1, high)));
  *l += _mm512_reduce_add_ps(_mm512_add_ps(even, odd));
}

// A block at token `at` holding n tokens, for one tile of rows.
template <int kRows>
void block_tile(const Scratch& scratch, const uint32_t* q, int head_dim, int at, int n,
                const int32_t* visible, SoftmaxState state) {
  const int pairs = (head_dim + 1) / 2, columns = round_up(head_dim, 16);
  const int token_pairs = (n + 1) / 2;
  scores<kRows>(q, scratch.k, pairs, scratch.s);
  for (int r = 0; r < kRows; ++r) {
    softmax_row(scratch.s + r * kBlock, seen_tokens(visible, r, at, n), state.m + r, state.l + r,
                state.o + r * head_dim, head_dim, scratch.p + r * kPairs);
  }
  int c = 0;
  for (; c + 32 <= head_dim; c += 32)
    values32<kRows>(scratch.p, scratch.v + c, columns, token_pairs, state.o + c, head_dim);
  for (; c < head_dim; c += 16)
    values16<kRows>(scratch.p, scratch.v + c, columns, token_pairs, state.o + c, head_dim,
                    first_lanes(head_dim - c));
}

template <typename T>
void attend_typed(const KvRun& run, int begin, int end, int rows, const int32_t* visible,
                  SoftmaxState state, const Scratch& scratch) {
  const int d = run.head_dim, pairs = (d + 1) / 2;
  const int last_block = (run.n_tokens - 1) / kBlock;
  for (int at = begin; at < end; at += kBlock) {
    const int n = end - at < kBlock ? end - at : kBlock;
    const int64_t offset = static_cast<int64_t>(at) * d;
    unpack_keys(static_cast<const T*>(run.k) + offset,
                at / kBlock == last_block ? run.last_width : kBlock, d, scratch.k);
    unpack_values(static_cast<const T*>(run.v) + offset, n, d, round_up(d, 16), scratch.v);
    for (int r = 0; r < rows;) {
      const int left = rows - r;
      const int32_t* seen = visible == nullptr ? nullptr : visible + r;
      const SoftmaxState part{state.m + r, state.l + r, state.o + r * d};
      const uint32_t* q = scratch.q + r * pairs;
      if (left >= kRowTile) {
        block_tile<kRowTile>(scratch, q, d, at, n, seen, part);
        r += kRowTile;
      } else if (left >= 6) {
        block_tile<6>(scratch, q, d, at, n, seen, part);
        r += 6;
      } else if (left >= 2) {
        block_tile<2>(scratch, q, d, at, n, seen, part);
        r += 2;
      } else {
        block_tile<1>(scratch, q, d, at, n, seen, part);
        r += 1;
      }
    }
  }
}

size_t key_words(int head_dim) { return static_cast<size_t>((head_dim + 1) / 2) * kBlock; }
size_t value_words(int head_dim) { return static_cast<size_t>(round_up(head_dim, 16)) * kPairs; }

}  // namespace

bool cpu_has_bf16_dot() noexcept { return __builtin_cpu_supports("avx512bf16") != 0; }
bool bf16_dot_is_fast() noexcept { return __builtin_cpu_is("amd") != 0; }

size_t bf16_scratch_bytes(int rows, int head_dim) noexcept {
  const size_t tile = static_cast<size_t>(kRowTile) * (kBlock + kPairs);
  const size_t queries = static_cast<size_t>(rows) * static_cast<size_t>((head_dim + 1) / 2);
  return 4 * (key_words(head_dim) + value_words(head_dim) + tile + queries);
}

void attend_bf16(const KvRun& run, int begin, int end, const float* q, int rows,
                 const int32_t* visible, SoftmaxState state, std::byte* memory) noexcept {
  Scratch scratch;
  scratch.k = reinterpret_cast<uint32_t*>(memory);
  scratch.v = scratch.k + key_words(run.head_dim);
  scratch.s = reinterpret_cast<float*>(scratch.v + value_words(run.head_dim));
  scratch.p = reinterpret_cast<uint32_t*>(scratch.s + kRowTile * kBlock);
  scratch.q = scratch.p + kRowTile * kPairs;
  pack_queries(q, rows, run.head_dim, (run.head_dim + 1) / 2, scratch.q);
  switch (run.type) {
    case Scalar::f16:
      return attend_typed<f16>(run, begin, end, rows, visible, state, scratch);
    case Scalar::bf16:
      return attend_typed<bf16>(run, begin, end, rows, visible, state, scratch);
    case Scalar::f32:
      return attend_typed<float>(run, begin, end, rows, visible, state, scratch);
  }
}

}  // namespace kvist::kernels::internal

#else  // no AVX512-BF16 in this build

namespace kvist::kernels::internal {
bool cpu_has_bf16_dot() noexcept { return false; }
bool bf16_dot_is_fast() noexcept { return false; }
size_t bf16_scratch_bytes(int, int) noexcept { return 0; }
void attend_bf16(const KvRun&, int, int, const float*, int, const int32_t*, SoftmaxState,
                 std::byte*) noexcept {}
}  // namespace kvist::kernels::internal

#endif
