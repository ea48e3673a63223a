// SPDX-License-Identifier: MIT
// The inner loops of attention on one SIMD target: logits of 64 keys in lanes, weighted sums of
// values, exp and softmax.
#if defined(KVIST_KERNELS_ATTEND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVIST_KERNELS_ATTEND_INL_H_
#undef KVIST_KERNELS_ATTEND_INL_H_
#else
#define KVIST_KERNELS_ATTEND_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "kvist/core/half.h"
#include "kvist/kernels/attend.h"

HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Vec = hn::Vec<Floats>;
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(Floats()));

// One vector of stored numbers, widened exactly.
HWY_INLINE Vec load_wide(const float* p) { return hn::LoadU(Floats(), p); }
HWY_INLINE Vec load_wide(const f16* p) {
  const hn::Rebind<hwy::float16_t, Floats> half;
  return hn::PromoteTo(Floats(), hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(p)));
}
HWY_INLINE Vec load_wide(const bf16* p) {
  const hn::Rebind<hwy::bfloat16_t, Floats> half;
  return hn::PromoteTo(Floats(), hn::LoadU(half, reinterpret_cast<const hwy::bfloat16_t*>(p)));
}

// Vectors side by side in a register tile of `rows` rows: rows * columns sums, the columns and one
// broadcast fit the register file.
constexpr int tile_columns(int rows) {
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
  return rows <= 6 ? 4 : 2;
#else
  return rows <= 2 ? 4 : rows <= 6 ? 2 : 1;
#endif
}

// Where a loop reads a run once, from memory: into the near cache 8 KiB ahead, since the hardware
// stops at the end of a page. Two threads on f16 runs larger than the caches, group 3 and 7, d 64:
// from 15.5 and 11.1 GB/s to 24 and 15.6.
template <bool kStream, int kColumns, typename T>
HWY_INLINE void prefetch_row(const T* p) {
  constexpr int kAhead = 8192, kLine = 64;
  constexpr int kBytes = kColumns * kLanes * static_cast<int>(sizeof(T));
  if (!kStream) return;
  for (int at = 0; at < kBytes; at += kLine)
    __builtin_prefetch(reinterpret_cast<const char*>(p) + kAhead + at, 0, 2);
}

// Keys [first, first + 64) of `keys` as [head_dim][64]; past `end` the last key is repeated.
HWY_INLINE void columns_of_block(const float* keys, int first, int end, int d,
                                 float* HWY_RESTRICT out) {
  const hn::CappedTag<float, 16> df;
  const hn::RebindToSigned<decltype(df)> di;
  const int lanes = static_cast<int>(hn::Lanes(df));
  if (first + kBlock <= end) {
    const auto index = hn::Mul(hn::Iota(di, 0), hn::Set(di, d));
    const float* base = keys + static_cast<int64_t>(first) * d;
    for (int t = 0; t < kBlock; t += lanes) {
      for (int c = 0; c < d; ++c) {
        hn::StoreU(hn::GatherIndex(df, base + static_cast<int64_t>(t) * d + c, index), df,
                   out + c * kBlock + t);
      }
    }
    return;
  }
  for (int t = 0; t < kBlock; ++t) {
    const float* row = keys + static_cast<int64_t>(std::min(first + t, end - 1)) * d;
    for (int c = 0; c < d; ++c) out[c * kBlock + t] = row[c];
  }
}

// s[r][0, 64) = sum over c of q[r][c] * k[c][0, 64), summed in the order of c.
template <typename T, int kRows, bool kStream = false>
HWY_INLINE void score_tile(const T* HWY_RESTRICT k, int head_dim, const float* HWY_RESTRICT q,
                           float* HWY_RESTRICT s, int s_stride) {
  constexpr int kColumns = tile_columns(kRows);
  for (int j = 0; j < kBlock; j += kColumns * kLanes) {
    Vec sum[kRows][kColumns];
    for (int r = 0; r < kRows; ++r)
      for (int n = 0; n < kColumns; ++n) sum[r][n] = hn::Zero(Floats());
    const T* HWY_RESTRICT row = k + j;
    for (int c = 0; c < head_dim; ++c, row += kBlock) {
      prefetch_row<kStream, kColumns>(row);
      Vec key[kColumns];
      for (int n = 0; n < kColumns; ++n) key[n] = load_wide(row + n * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const Vec x = hn::Set(Floats(), q[r * head_dim + c]);
        for (int n = 0; n < kColumns; ++n) sum[r][n] = hn::MulAdd(x, key[n], sum[r][n]);
      }
    }
    for (int r = 0; r < kRows; ++r)
      for (int n = 0; n < kColumns; ++n)
        hn::StoreU(sum[r][n], Floats(), s + r * s_stride + j + n * kLanes);
  }
}

// kColumns vectors of o[r] += sum over t of p[r][t] * v[t], in the order of t.
template <typename T, int kRows, int kColumns, bool kStream>
HWY_INLINE void value_columns(const T* HWY_RESTRICT v, int head_dim, int n_tokens,
                              const float* HWY_RESTRICT p, int p_stride, float* HWY_RESTRICT o) {
  Vec sum[kRows][kColumns];
  for (int r = 0; r < kRows; ++r)
    for (int n = 0; n < kColumns; ++n)
      sum[r][n] = hn::LoadU(Floats(), o + r * head_dim + n * kLanes);
  for (int t = 0; t < n_tokens; ++t, v += head_dim) {
    prefetch_row<kStream, kColumns>(v);
    Vec value[kColumns];
    for (int n = 0; n < kColumns; ++n) value[n] = load_wide(v + n * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Vec x = hn::Set(Floats(), p[r * p_stride + t]);
      for (int n = 0; n < kColumns; ++n) sum[r][n] = hn::MulAdd(x, value[n], sum[r][n]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int n = 0; n < kColumns; ++n)
      hn::StoreU(sum[r][n], Floats(), o + r * head_dim + n * kLanes);
}

// o[r] += sum over t of p[r][t] * v[t], in the order of t.
template <typename T, int kRows, bool kStream = false>
HWY_INLINE void value_tile(const T* HWY_RESTRICT v, int head_dim, int n_tokens,
                           const float* HWY_RESTRICT p, int p_stride, float* HWY_RESTRICT o) {
  constexpr int kColumns = tile_columns(kRows);
  constexpr int kChunk =
      32;  // tokens: memory is asked evenly, not for all columns' lines in the first pass
  const int whole = head_dim / kLanes * kLanes;
  for (int t = 0; t < n_tokens; t += kChunk) {
    const int n = HWY_MIN(kChunk, n_tokens - t);
    const T* from = v + static_cast<int64_t>(t) * head_dim;
    int c = 0;
    for (; c + kColumns * kLanes <= whole; c += kColumns * kLanes)
      value_columns<T, kRows, kColumns, kStream>(from + c, head_dim, n, p + t, p_stride, o + c);
    for (; c < whole; c += kLanes)
      value_columns<T, kRows, 1, kStream>(from + c, head_dim, n, p + t, p_stride, o + c);
  }
  for (int c = whole; c < head_dim; ++c) {
    for (int r = 0; r < kRows; ++r) {
      float sum = o[r * head_dim + c];
      for (int t = 0; t < n_tokens; ++t)
        sum += p[r * p_stride + t] * to_float(v[static_cast<int64_t>(t) * head_dim + c]);
      o[r * head_dim + c] = sum;
    }
  }
}

// exp(x) for x <= 0: relative error below 2e-7 down to -87, exactly 0 below (and for -infinity).
HWY_INLINE Vec exp_negative(Vec x) {
  const Floats d;
  const Vec clamped = hn::Max(x, hn::Set(d, -87.0f));
  const Vec n = hn::Round(hn::Mul(clamped, hn::Set(d, 1.442695041f)));
  Vec r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), clamped);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  Vec y = hn::Set(d, 1.9875691500e-4f);
  y = hn::MulAdd(y, r, hn::Set(d, 1.3981999507e-3f));
  y = hn::MulAdd(y, r, hn::Set(d, 8.3334519073e-3f));
  y = hn::MulAdd(y, r, hn::Set(d, 4.1665795894e-2f));
  y = hn::MulAdd(y, r, hn::Set(d, 1.6666665459e-1f));
  y = hn::MulAdd(y, r, hn::Set(d, 5.0000001201e-1f));
  y = hn::MulAdd(hn::Mul(y, r), r, hn::Add(r, hn::Set(d, 1.0f)));
#if HWY_TARGET <= HWY_AVX3
  y.raw = _mm512_scalef_ps(y.raw, n.raw);  // y 2^n, a normal number: the same bits
#else
  const hn::RebindToSigned<Floats> di;
  const auto exponent = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
  y = hn::Mul(y, hn::BitCast(d, exponent));
#endif
  return hn::IfThenElseZero(hn::Ge(x, hn::Set(d, -87.0f)), y);
}

// Multiplies a row's sums by the factor that its new, larger maximum asks for.
HWY_INLINE void grow_maximum(float top, float* m, float* l, float* HWY_RESTRICT o, int head_dim) {
  const float factor = std::exp(*m - top);  // 0 where m is still -infinity
  *m = top;
  *l *= factor;
  const Vec f = hn::Set(Floats(), factor);
  int c = 0;
  for (; c + kLanes <= head_dim; c += kLanes)
    hn::StoreU(hn::Mul(f, hn::LoadU(Floats(), o + c)), Floats(), o + c);
  for (; c < head_dim; ++c) o[c] *= factor;
}

// Turns the logits s[0, n) of one row, n a multiple of 64, into exp(s - m) with the row's running
// maximum m brought up to date. Entries from `count` on are unseen: they become 0.
HWY_INLINE void softmax_row(float* HWY_RESTRICT s, int n, int count, float* m, float* l,
                            float* HWY_RESTRICT o, int head_dim) {
  const Floats d;
  constexpr float kUnseen = -std::numeric_limits<float>::infinity();
  for (int j = count; j < n; ++j) s[j] = kUnseen;
  Vec top0 = hn::Set(d, kUnseen), top1 = top0;
  for (int j = 0; j < n; j += 2 * kLanes) {
    top0 = hn::Max(top0, hn::LoadU(d, s + j));
    top1 = hn::Max(top1, hn::LoadU(d, s + j + kLanes));
  }
  const float top = hn::GetLane(hn::MaxOfLanes(d, hn::Max(top0, top1)));
  if (top > *m) grow_maximum(top, m, l, o, head_dim);
  if (*m == kUnseen) {
    for (int j = 0; j < n; ++j) s[j] = 0;
    return;
  }
  const Vec max = hn::Set(d, *m);
  Vec sum0 = hn::Zero(d), sum1 = hn::Zero(d);
  for (int j = 0; j < n; j += 2 * kLanes) {
    const Vec y0 = exp_negative(hn::Sub(hn::LoadU(d, s + j), max));
    const Vec y1 = exp_negative(hn::Sub(hn::LoadU(d, s + j + kLanes), max));
    hn::StoreU(y0, d, s + j);
    hn::StoreU(y1, d, s + j + kLanes);
    sum0 = hn::Add(sum0, y0);
    sum1 = hn::Add(sum1, y1);
  }
  *l += hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
}

// Calls of the tiles by a row count known at run time, 1 to 8 or 12.
template <bool kStream = true, typename T>
void score_rows(const T* k, int head_dim, const float* q, int rows, float* s, int s_stride) {
  switch (rows) {
    case 1:
      return score_tile<T, 1, kStream>(k, head_dim, q, s, s_stride);
    case 2:
      return score_tile<T, 2, kStream>(k, head_dim, q, s, s_stride);
    case 3:
      return score_tile<T, 3, kStream>(k, head_dim, q, s, s_stride);
    case 4:
      return score_tile<T, 4, kStream>(k, head_dim, q, s, s_stride);
    case 5:
      return score_tile<T, 5, kStream>(k, head_dim, q, s, s_stride);
    case 6:
      return score_tile<T, 6, kStream>(k, head_dim, q, s, s_stride);
    case 7:
      return score_tile<T, 7, kStream>(k, head_dim, q, s, s_stride);
    default:
      return score_tile<T, 8, kStream>(k, head_dim, q, s, s_stride);
  }
}
template <bool kStream = true, typename T>
void value_rows(const T* v, int head_dim, int n_tokens, const float* p, int p_stride, int rows,
                float* o) {
  switch (rows) {
    case 1:
      return value_tile<T, 1, kStream>(v, head_dim, n_tokens, p, p_stride, o);
    case 2:
      return value_tile<T, 2, kStream>(v, head_dim, n_tokens, p, p_stride, o);
    case 3:
      return value_tile<T, 3, kStream>(v, head_dim, n_tokens, p, p_stride, o);
    case 4:
      return value_tile<T, 4, kStream>(v, head_dim, n_tokens, p, p_stride, o);
    case 5:
      return value_tile<T, 5, kStream>(v, head_dim, n_tokens, p, p_stride, o);
    case 6:
      return value_tile<T, 6, kStream>(v, head_dim, n_tokens, p, p_stride, o);
    case 7:
      return value_tile<T, 7, kStream>(v, head_dim, n_tokens, p, p_stride, o);
    default:
      return value_tile<T, 8, kStream>(v, head_dim, n_tokens, p, p_stride, o);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
