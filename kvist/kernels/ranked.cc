// SPDX-License-Identifier: MIT
// Rows of keys lie token by token with channels in lanes until they are scored, since ranks differ
// from token to token; logits have tokens in lanes.
#include "kvist/kernels/ranked.h"

#undef HWY_WANT_AVX3_DL  // nothing here gains from it over avx3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvist/kernels/ranked.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "kvist/kernels/attend-inl.h"
#include "kvist/kernels/attend_internal.h"
#include "kvist/kernels/constant-inl.h"
#include "kvist/kernels/ranked_tiles.h"

HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {

void widen_numbers(const f16* HWY_RESTRICT in, int64_t n, float by, float* HWY_RESTRICT out) {
  const Vec factor = hn::Set(Floats(), by);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    hn::StoreU(hn::Mul(factor, load_wide(in + i)), Floats(), out + i);
  for (; i < n; ++i) out[i] = by * to_float(in[i]);
}

void narrow_numbers(const float* HWY_RESTRICT in, int64_t n, float by, f16* HWY_RESTRICT out) {
  const hn::Rebind<hwy::float16_t, Floats> half;
  const Vec factor = hn::Set(Floats(), by);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec x = hn::Mul(factor, hn::LoadU(Floats(), in + i));
    hn::StoreU(hn::DemoteTo(half, x), half, reinterpret_cast<hwy::float16_t*>(out + i));
  }
  for (; i < n; ++i) out[i] = to_f16(by * in[i]);
}

// The mean of the rows of token t's anchors into out, or onto it.
template <bool kOnto>
HWY_INLINE void mean_of(const float* HWY_RESTRICT rows, int64_t row_stride,
                        const AnchorLists& anchors, int t, int width, float* HWY_RESTRICT out) {
  const uint16_t* index = anchors.index + int64_t{t} * anchors.stride;
  const int c = anchors.count[t];
  if (c == 0) {
    if (!kOnto) std::fill_n(out, width, 0.0f);
    return;
  }
  const bool exact = (c & (c - 1)) == 0;  // 1 / c is
  const float share = 1.0f / static_cast<float>(c), count = static_cast<float>(c);
  const Vec vshare = hn::Set(Floats(), share), vcount = hn::Set(Floats(), count);
  int k = 0;
  for (; k + kLanes <= width; k += kLanes) {
    Vec sum = hn::LoadU(Floats(), rows + index[0] * row_stride + k);
    for (int i = 1; i < c; ++i)
      sum = hn::Add(sum, hn::LoadU(Floats(), rows + index[i] * row_stride + k));
    const Vec mean = exact ? hn::Mul(sum, vshare) : hn::Div(sum, vcount);
    hn::StoreU(kOnto ? hn::Add(mean, hn::LoadU(Floats(), out + k)) : mean, Floats(), out + k);
  }
  for (; k < width; ++k) {
    float sum = rows[index[0] * row_stride + k];
    for (int i = 1; i < c; ++i) sum += rows[index[i] * row_stride + k];
    const float mean = exact ? sum * share : sum / count;
    out[k] = kOnto ? mean + out[k] : mean;
  }
}

void mean_of_rows(const float* rows, const AnchorLists& anchors, int n, int width, float* out) {
  for (int t = 0; t < n; ++t) mean_of<false>(rows, width, anchors, t, width, out + t * width);
}

// Vectors of a register tile of 4 rows.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
inline constexpr int kBasisColumns = 6;
#else
inline constexpr int kBasisColumns = 2;
#endif
inline constexpr int kBasisRows = 4;

template <int kRows, int kColumns>
HWY_INLINE void basis_tile(const float* HWY_RESTRICT x, int depth, const float* HWY_RESTRICT basis,
                           int64_t stride, float* HWY_RESTRICT rows, int64_t row_stride) {
  Vec sum[kRows][kColumns];
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kColumns; ++i)
      sum[r][i] = hn::LoadU(Floats(), rows + r * row_stride + i * kLanes);
  for (int j = 0; j < depth; ++j, basis += stride) {
    Vec b[kColumns];
    for (int i = 0; i < kColumns; ++i) b[i] = hn::LoadU(Floats(), basis + i * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Vec y = hn::Set(Floats(), x[r * kCoefficients + j]);
      for (int i = 0; i < kColumns; ++i) sum[r][i] = hn::MulAdd(y, b[i], sum[r][i]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kColumns; ++i)
      hn::StoreU(sum[r][i], Floats(), rows + r * row_stride + i * kLanes);
}

// All tokens for kColumns vectors of channels.
template <int kColumns>
void basis_columns(const float* x, const uint8_t* depth, int n, const float* basis, int64_t stride,
                   float* rows, int64_t row_stride) {
  int t = 0;
  for (; t + kBasisRows <= n; t += kBasisRows)
    basis_tile<kBasisRows, kColumns>(x + t * kCoefficients, depth[t], basis, stride,
                                     rows + t * row_stride, row_stride);
  for (; t < n; ++t)
    basis_tile<1, kColumns>(x + t * kCoefficients, depth[t], basis, stride, rows + t * row_stride,
                            row_stride);
}

void add_rows(const float* x, const uint8_t* depth, int n, const BasisSlice& basis, float* rows,
              int64_t row_stride) {
  int c = 0;
  for (; c + kBasisColumns * kLanes <= basis.width; c += kBasisColumns * kLanes)
    basis_columns<kBasisColumns>(x, depth, n, basis.rows + c, basis.stride, rows + c, row_stride);
  if (kBasisColumns > 4)
    for (; c + 4 * kLanes <= basis.width; c += 4 * kLanes)
      basis_columns<4>(x, depth, n, basis.rows + c, basis.stride, rows + c, row_stride);
  for (; c + kLanes <= basis.width; c += kLanes)
    basis_columns<1>(x, depth, n, basis.rows + c, basis.stride, rows + c, row_stride);
  for (; c < basis.width; ++c)
    for (int t = 0; t < n; ++t)
      for (int j = 0; j < depth[t]; ++j)
        rows[t * row_stride + c] += x[t * kCoefficients + j] * basis.rows[j * basis.stride + c];
}

// Pairs from frequency `from` on, as RotationTable::apply does them.
HWY_INLINE void turn_pairs(float* x, const float* turn, const Turn& how, int from) {
  const float direction = how.back ? -1.0f : 1.0f;
  for (int f = from; f < how.n_frequencies; ++f) {
    float& a = x[how.adjacent ? 2 * f : f];
    float& b = x[how.adjacent ? 2 * f + 1 : f + how.n_frequencies];
    const float c = turn[2 * f], s = direction * turn[2 * f + 1];
    const float ac = a * c, bs = b * s, bc = b * c, as = a * s;
    a = ac - bs;
    b = bc + as;
  }
}

#if HWY_TARGET == HWY_SCALAR  // no lanes to pair
HWY_INLINE void turn_head(float* x, const float* turn, const Turn& how) {
  turn_pairs(x, turn, how, 0);
}
#else
// Pairs (2 f, 2 f + 1) of a vector; cs holds their cosines and sines.
HWY_INLINE Vec turned_pairs(Vec y, Vec cs, bool back) {
  const Floats d;
  const Vec straight = hn::Mul(y, hn::DupEven(cs));
  const Vec crossed = hn::Mul(hn::Reverse2(d, y), hn::DupOdd(cs));
  const Vec sum = hn::Add(straight, crossed), difference = hn::Sub(straight, crossed);
  return back ? hn::OddEven(difference, sum) : hn::OddEven(sum, difference);
}

// Pairs of a lane of *a and one of *b; turn [lanes][2].
HWY_INLINE void turn_halves(const float* turn, bool back, Vec* a, Vec* b) {
  const Floats d;
  const Vec low = hn::LoadU(d, turn), high = hn::LoadU(d, turn + kLanes);
  const Vec c = hn::ConcatEven(d, high, low), s = hn::ConcatOdd(d, high, low);
  const Vec ac = hn::Mul(*a, c), bs = hn::Mul(*b, s), bc = hn::Mul(*b, c), as = hn::Mul(*a, s);
  *a = back ? hn::Add(ac, bs) : hn::Sub(ac, bs);
  *b = back ? hn::Sub(bc, as) : hn::Add(bc, as);
}

HWY_INLINE void turn_head(float* HWY_RESTRICT x, const float* HWY_RESTRICT turn, const Turn& how) {
  const Floats d;
  int f = 0;
  if (how.adjacent) {
    for (; 2 * f + kLanes <= 2 * how.n_frequencies; f += kLanes / 2) {
      float* at = x + 2 * f;
      hn::StoreU(turned_pairs(hn::LoadU(d, at), hn::LoadU(d, turn + 2 * f), how.back), d, at);
    }
  } else {
    for (; f + kLanes <= how.n_frequencies; f += kLanes) {
      float* other = x + f + how.n_frequencies;
      Vec a = hn::LoadU(d, x + f), b = hn::LoadU(d, other);
      turn_halves(turn + 2 * f, how.back, &a, &b);
      hn::StoreU(a, d, x + f);
      hn::StoreU(b, d, other);
    }
  }
  turn_pairs(x, turn, how, f);
}
#endif

void turn_all(float* rows, int64_t row_stride, int n, int heads, int head_dim,
              const float* const* turns, const Turn& how) {
  for (int t = 0; t < n; ++t)
    for (int head = 0; head < heads; ++head)
      turn_head(rows + t * row_stride + head * head_dim, turns[t], how);
}

#if HWY_TARGET != HWY_SCALAR
// A token's mean as mean_of() has it, vector by vector, of exactly kCount anchors.
template <int kCount, bool kOnto>
class MeanVectors {
 public:
  MeanVectors(const float* rows, int64_t stride, const uint16_t* index, const float* onto)
      : onto_(onto) {
    for (int i = 0; i < kCount; ++i) row_[i] = rows + index[i] * stride;
  }
  HWY_INLINE Vec at(int k) const {
    Vec sum = hn::LoadU(Floats(), row_[0] + k);
    for (int i = 1; i < kCount; ++i) sum = hn::Add(sum, hn::LoadU(Floats(), row_[i] + k));
    const Vec mean = hn::Mul(sum, hn::Set(Floats(), 1.0f / kCount));
    return kOnto ? hn::Add(mean, hn::LoadU(Floats(), onto_ + k)) : mean;
  }

 private:
  static_assert((kCount & (kCount - 1)) == 0, "other counts divide");
  const float* row_[kCount];
  const float* onto_;
};

// mean_of() and turn_head() of a token in one go; frequencies fill whole vectors.
template <int kCount, bool kOnto>
HWY_INLINE void turned_mean(const MeanVectors<kCount, kOnto>& mean, float* x, int width,
                            const float* HWY_RESTRICT turn, const Turn& how) {
  const Floats d;
  const int turned = 2 * how.n_frequencies;
  if (how.adjacent) {
    for (int k = 0; k < turned; k += kLanes)
      hn::StoreU(turned_pairs(mean.at(k), hn::LoadU(d, turn + k), how.back), d, x + k);
  } else {
    for (int f = 0; f < how.n_frequencies; f += kLanes) {
      Vec a = mean.at(f), b = mean.at(f + how.n_frequencies);
      turn_halves(turn + 2 * f, how.back, &a, &b);
      hn::StoreU(a, d, x + f);
      hn::StoreU(b, d, x + f + how.n_frequencies);
    }
  }
  for (int k = turned; k < width; k += kLanes) hn::StoreU(mean.at(k), d, x + k);
}
#endif

template <bool kOnto>
void turn_with_rows(const float* anchors, int64_t stride, const AnchorLists& lists, float* rows,
                    int64_t row_stride, int n, int head_dim, const float* const* turns, Turn how) {
#if HWY_TARGET != HWY_SCALAR
  constexpr int kUsual = 4;  // anchors of a token
  const int lanes = how.adjacent ? 2 * how.n_frequencies : how.n_frequencies;
  const bool whole = lanes % kLanes == 0 && head_dim % kLanes == 0;
#endif
  for (int t = 0; t < n; ++t, rows += row_stride) {
#if HWY_TARGET != HWY_SCALAR
    if (whole && lists.count[t] == kUsual) {
      const uint16_t* index = lists.index + int64_t{t} * lists.stride;
      turned_mean(MeanVectors<kUsual, kOnto>(anchors, stride, index, rows), rows, head_dim,
                  turns[t], how);
      continue;
    }
#endif
    mean_of<kOnto>(anchors, stride, lists, t, head_dim, rows);
    turn_head(rows, turns[t], how);
  }
}

void turn_means(const float* anchors, int64_t anchor_stride, const AnchorLists& lists, bool onto,
                float* rows, int64_t row_stride, int n, int head_dim, const float* const* turns,
                const Turn& how) {
  if (onto)
    turn_with_rows<true>(anchors, anchor_stride, lists, rows, row_stride, n, head_dim, turns, how);
  else
    turn_with_rows<false>(anchors, anchor_stride, lists, rows, row_stride, n, head_dim, turns, how);
}

#if HWY_TARGET == HWY_SCALAR
void to_columns(const float* rows, int64_t row_stride, int n, int d, float* out) {
  for (int t = 0; t < n; ++t)
    for (int c = 0; c < d; ++c) out[c * kBlock + t] = rows[t * row_stride + c];
}
#else

// Four numbers at p, at p + step, and so on.
template <class D>
HWY_INLINE hn::Vec<D> load_fours(D d, const float* p, int64_t step) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    return hn::LoadU(d, p);
  } else {
    const hn::Half<D> half;
    const int64_t other = static_cast<int64_t>(hn::MaxLanes(half)) / 4 * step;
    return hn::Combine(d, load_fours(half, p + other, step), load_fours(half, p, step));
  }
}

void to_columns(const float* HWY_RESTRICT rows, int64_t row_stride, int n, int d,
                float* HWY_RESTRICT out) {
  const Floats f;
  const hn::RepartitionToWide<Floats> wide;
  const int tokens = n / kLanes * kLanes, channels = d / 4 * 4;
  const int64_t step = 4 * row_stride;
  for (int t = 0; t < tokens; t += kLanes) {
    for (int c = 0; c < channels; c += 4) {
      // Lanes 4 i to 4 i + 3 of these hold four channels of tokens 4 i, 4 i + 1, ...
      const float* p = rows + t * row_stride + c;
      const Vec v0 = load_fours(f, p, step), v1 = load_fours(f, p + row_stride, step);
      const Vec v2 = load_fours(f, p + 2 * row_stride, step);
      const Vec v3 = load_fours(f, p + 3 * row_stride, step);
      const auto a = hn::BitCast(wide, hn::InterleaveLower(f, v0, v1));
      const auto b = hn::BitCast(wide, hn::InterleaveUpper(f, v0, v1));
      const auto e = hn::BitCast(wide, hn::InterleaveLower(f, v2, v3));
      const auto g = hn::BitCast(wide, hn::InterleaveUpper(f, v2, v3));
      float* to = out + c * kBlock + t;
      hn::StoreU(hn::BitCast(f, hn::InterleaveLower(wide, a, e)), f, to);
      hn::StoreU(hn::BitCast(f, hn::InterleaveUpper(wide, a, e)), f, to + kBlock);
      hn::StoreU(hn::BitCast(f, hn::InterleaveLower(wide, b, g)), f, to + 2 * kBlock);
      hn::StoreU(hn::BitCast(f, hn::InterleaveUpper(wide, b, g)), f, to + 3 * kBlock);
    }
  }
  for (int t = 0; t < n; ++t)
    for (int c = t < tokens ? channels : 0; c < d; ++c)
      out[c * kBlock + t] = rows[t * row_stride + c];
}
#endif

// fn(first, count) for rows in as equal groups of at most 8 as there are.
template <typename Fn>
void by_eight(int rows, const Fn& fn) {
  const int groups = (rows + 7) / 8;
  const int size = groups == 0 ? 0 : (rows + groups - 1) / groups;
  for (int r = 0; r < rows; r += size) fn(r, std::min(size, rows - r));
}

// Floats were made just now; 16-bit keys come from memory.
template <typename T>
void score_typed(const T* k, int d, const float* q, int rows, float* s, int64_t s_stride) {
  by_eight(rows, [&](int r, int n) {
    score_rows<sizeof(T) == 2>(k, d, q + r * d, n, s + r * s_stride, static_cast<int>(s_stride));
  });
}

void score(const void* k, Scalar type, int d, const float* q, int rows, float* s,
           int64_t s_stride) {
  switch (type) {
    case Scalar::f16:
      return score_typed(static_cast<const f16*>(k), d, q, rows, s, s_stride);
    case Scalar::bf16:
      return score_typed(static_cast<const bf16*>(k), d, q, rows, s, s_stride);
    case Scalar::f32:
      return score_typed(static_cast<const float*>(k), d, q, rows, s, s_stride);
  }
}

template <typename T>
void values_typed(const T* v, int d, int n, const float* p, int64_t p_stride, int rows, float* o) {
  by_eight(rows, [&](int r, int some) {
    value_rows<false>(v, d, n, p + r * p_stride, static_cast<int>(p_stride), some, o + r * d);
  });
}

void values(const void* v, Scalar type, int d, int n, const float* p, int64_t p_stride, int rows,
            float* o) {
  switch (type) {
    case Scalar::f16:
      return values_typed(static_cast<const f16*>(v), d, n, p, p_stride, rows, o);
    case Scalar::bf16:
      return values_typed(static_cast<const bf16*>(v), d, n, p, p_stride, rows, o);
    case Scalar::f32:
      return values_typed(static_cast<const float*>(v), d, n, p, p_stride, rows, o);
  }
}

bool weigh(float* s, int64_t s_stride, int rows, int n, float* m, float* l, float* factor) {
  bool grown = false;
  for (int r = 0; r < rows; ++r) {
    const float before = m[r];
    softmax_row(s + r * s_stride, kBlock, n, m + r, l + r, nullptr, 0);
    factor[r] = before == m[r] ? 1.0f : std::exp(before - m[r]);
    grown |= factor[r] != 1.0f;
  }
  return grown;
}

template <int kRows>
HWY_INLINE void coefficient_tile(const float* HWY_RESTRICT p, int64_t p_stride,
                                 const float* HWY_RESTRICT x, int n, float* HWY_RESTRICT sums) {
  constexpr int kColumns = kLanes >= 16 ? 2 : 1;
  for (int c = 0; c < kCoefficients; c += kColumns * kLanes) {
    Vec sum[kRows][kColumns];
    for (int r = 0; r < kRows; ++r)
      for (int i = 0; i < kColumns; ++i)
        sum[r][i] = hn::LoadU(Floats(), sums + r * kCoefficients + c + i * kLanes);
    for (int t = 0; t < n; ++t) {
      Vec y[kColumns];
      for (int i = 0; i < kColumns; ++i)
        y[i] = hn::LoadU(Floats(), x + t * kCoefficients + c + i * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const Vec weight = hn::Set(Floats(), p[r * p_stride + t]);
        for (int i = 0; i < kColumns; ++i) sum[r][i] = hn::MulAdd(weight, y[i], sum[r][i]);
      }
    }
    for (int r = 0; r < kRows; ++r)
      for (int i = 0; i < kColumns; ++i)
        hn::StoreU(sum[r][i], Floats(), sums + r * kCoefficients + c + i * kLanes);
  }
}

void coefficients(const float* p, int64_t p_stride, int rows, const float* x, int n, float* sums) {
  by_eight(rows, [&](int r, int some) HWY_ATTR {
    with_constant<8>(some, [&](auto n_rows) HWY_ATTR {
      coefficient_tile<n_rows>(p + r * p_stride, p_stride, x, n, sums + r * kCoefficients);
    });
  });
}

// The first `left` numbers of a vector, zeros after them; nothing behind them is read.
HWY_INLINE Vec load_first(const f16* p, int left) {
#if HWY_TARGET <= HWY_AVX3
  const auto lanes = static_cast<__mmask16>(left >= 16 ? 0xFFFF : left <= 0 ? 0 : (1 << left) - 1);
  return Vec{_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, p))};
#else
  if (left >= kLanes) return load_wide(p);
  HWY_ALIGN float x[kLanes] = {};
  for (int i = 0; i < left; ++i) x[i] = to_float(p[i]);
  return hn::Load(Floats(), x);
#endif
}

template <int kRows>
HWY_INLINE void stored_tile(const float* HWY_RESTRICT p, int64_t p_stride,
                            const f16* HWY_RESTRICT x, const uint8_t* depth, int n, float unit,
                            float* HWY_RESTRICT sums) {
  constexpr int kColumns = kLanes >= 16 ? 2 : 1;
  for (int c = 0; c < kCoefficients; c += kColumns * kLanes) {
    Vec sum[kRows][kColumns];
    for (int r = 0; r < kRows; ++r)
      for (int i = 0; i < kColumns; ++i) sum[r][i] = hn::Zero(Floats());
    const f16* from = x;
    for (int t = 0; t < n && depth[t] > c; from += depth[t++]) {
      Vec y[kColumns];
      for (int i = 0; i < kColumns; ++i) {
        const int at = c + i * kLanes;
        y[i] = load_first(from + at, depth[t] - at);
      }
      for (int r = 0; r < kRows; ++r) {
        const Vec weight = hn::Set(Floats(), p[r * p_stride + t]);
        for (int i = 0; i < kColumns; ++i) sum[r][i] = hn::MulAdd(weight, y[i], sum[r][i]);
      }
    }
    const Vec by = hn::Set(Floats(), unit);
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kColumns; ++i) {
        float* to = sums + r * kCoefficients + c + i * kLanes;
        hn::StoreU(hn::MulAdd(sum[r][i], by, hn::LoadU(Floats(), to)), Floats(), to);
      }
    }
  }
}

void stored_coefficients(const float* p, int64_t p_stride, int rows, const f16* x,
                         const uint8_t* depth, int n, float unit, float* sums) {
  constexpr int kMost = kLanes >= 16 ? 9 : 4;  // rows whose sums stay in registers
  for (int r = 0; r < rows;) {
    const int left = rows - r, parts = (left + kMost - 1) / kMost,
              some = (left + parts - 1) / parts;
    const float* from = p + r * p_stride;
    float* to = sums + r * kCoefficients;
    with_constant<kMost>(some, [&](auto n_rows) HWY_ATTR {
      stored_tile<n_rows>(from, p_stride, x, depth, n, unit, to);
    });
    r += some;
  }
}

void shares(const float* HWY_RESTRICT p, int64_t p_stride, int rows, const AnchorLists& anchors,
            int n, float* HWY_RESTRICT weights, int64_t stride) {
  const hn::RebindToSigned<Floats> di;
  for (int first = 0; first < rows; first += kLanes) {
    const int some = std::min(kLanes, rows - first);
    const auto row = hn::Min(hn::Iota(di, 0), hn::Set(di, some - 1));
    const auto at = hn::Mul(row, hn::Set(di, static_cast<int32_t>(p_stride)));
    const auto there = hn::FirstN(Floats(), static_cast<size_t>(some));
    for (int t = 0; t < n; ++t) {
      const int count = anchors.count[t];
      if (count == 0) continue;
      const uint16_t* index = anchors.index + int64_t{t} * anchors.stride;
      const Vec share = hn::Set(Floats(), 1.0f / static_cast<float>(count));
      const Vec all = hn::Mul(hn::GatherIndex(Floats(), p + first * p_stride + t, at), share);
      const Vec column = hn::IfThenElseZero(there, all);
      for (int i = 0; i < count; ++i) {
        float* to = weights + int64_t{index[i]} * stride + first;
        hn::StoreU(hn::Add(hn::LoadU(Floats(), to), column), Floats(), to);
      }
    }
  }
}

void columns_scaled(float* x, int64_t n, int64_t stride, const float* factor) {
  for (int64_t t = 0; t < n; ++t, x += stride)
    for (int64_t k = 0; k < stride; k += kLanes)
      hn::StoreU(hn::Mul(hn::LoadU(Floats(), x + k), hn::LoadU(Floats(), factor + k)), Floats(),
                 x + k);
}

void columns_added(const float* x, int64_t n, int64_t stride, const float* factor, float* out) {
  for (int64_t t = 0; t < n; ++t, x += stride, out += stride)
    for (int64_t k = 0; k < stride; k += kLanes)
      hn::StoreU(hn::MulAdd(hn::LoadU(Floats(), x + k), hn::LoadU(Floats(), factor + k),
                            hn::LoadU(Floats(), out + k)),
                 Floats(), out + k);
}

float exponentials_of(float* HWY_RESTRICT x, int n, float top) {
  const Vec m = hn::Set(Floats(), top);
  Vec sum = hn::Zero(Floats());
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec y = exp_negative(hn::Sub(hn::LoadU(Floats(), x + i), m));
    hn::StoreU(y, Floats(), x + i);
    sum = hn::Add(sum, y);
  }
  float total = hn::GetLane(hn::SumOfLanes(Floats(), sum));
  for (; i < n; ++i) {
    const float y = hn::GetLane(exp_negative(hn::Set(Floats(), x[i] - top)));
    x[i] = y;
    total += y;
  }
  return total;
}

void scaled_added(const float* HWY_RESTRICT x, int64_t n, float by, float* HWY_RESTRICT out) {
  const Vec f = hn::Set(Floats(), by);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    hn::StoreU(hn::MulAdd(f, hn::LoadU(Floats(), x + i), hn::LoadU(Floats(), out + i)), Floats(),
               out + i);
  for (; i < n; ++i) out[i] += by * x[i];
}

void scaled(float* x, int64_t n, float by) {
  const Vec f = hn::Set(Floats(), by);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    hn::StoreU(hn::Mul(f, hn::LoadU(Floats(), x + i)), Floats(), x + i);
  for (; i < n; ++i) x[i] *= by;
}

}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvist::kernels {
HWY_EXPORT(widen_numbers);
HWY_EXPORT(narrow_numbers);
HWY_EXPORT(mean_of_rows);
HWY_EXPORT(add_rows);
HWY_EXPORT(turn_all);
HWY_EXPORT(turn_means);
HWY_EXPORT(to_columns);
HWY_EXPORT(score);
HWY_EXPORT(values);
HWY_EXPORT(weigh);
HWY_EXPORT(coefficients);
HWY_EXPORT(stored_coefficients);
HWY_EXPORT(shares);
HWY_EXPORT(columns_scaled);
HWY_EXPORT(columns_added);
HWY_EXPORT(exponentials_of);
HWY_EXPORT(scaled_added);
HWY_EXPORT(scaled);

bool has_basis_tiles() noexcept { return internal::amx_allowed(); }

void widen_f16(const f16* in, int64_t n, float by, float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(widen_numbers)(in, n, by, out);
}
void narrow_f16(const float* in, int64_t n, float by, f16* out) noexcept {
  HWY_DYNAMIC_DISPATCH(narrow_numbers)(in, n, by, out);
}
void mean_rows(const float* rows, const AnchorLists& anchors, int n, int width,
               float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(mean_of_rows)(rows, anchors, n, width, out);
}
void add_basis_rows(const float* x, const uint8_t* depth, int n, const BasisSlice& basis,
                    float* rows, int64_t row_stride) noexcept {
  HWY_DYNAMIC_DISPATCH(add_rows)(x, depth, n, basis, rows, row_stride);
}
void turn_rows(float* rows, int64_t row_stride, int n, int heads, int head_dim,
               const float* const* turns, const Turn& how) noexcept {
  HWY_DYNAMIC_DISPATCH(turn_all)(rows, row_stride, n, heads, head_dim, turns, how);
}
void turn_with_means(const float* anchors, int64_t anchor_stride, const AnchorLists& lists,
                     bool onto, float* rows, int64_t row_stride, int n, int head_dim,
                     const float* const* turns, const Turn& how) noexcept {
  HWY_DYNAMIC_DISPATCH(turn_means)
  (anchors, anchor_stride, lists, onto, rows, row_stride, n, head_dim, turns, how);
}
void columns_from_rows(const float* rows, int64_t row_stride, int n, int head_dim,
                       float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(to_columns)(rows, row_stride, n, head_dim, out);
}
void score_block(const void* k, Scalar type, int head_dim, const float* q, int rows, float* s,
                 int64_t s_stride) noexcept {
  HWY_DYNAMIC_DISPATCH(score)(k, type, head_dim, q, rows, s, s_stride);
}
bool weigh_block(float* s, int64_t s_stride, int rows, int n, float* m, float* l,
                 float* factor) noexcept {
  return HWY_DYNAMIC_DISPATCH(weigh)(s, s_stride, rows, n, m, l, factor);
}
void add_coefficients(const float* p, int64_t p_stride, int rows, const CoefficientRows& chunk,
                      float unit, float* sums) noexcept {
  if (chunk.stored != nullptr) HWY_DYNAMIC_DISPATCH(stored_coefficients)
  (p, p_stride, rows, chunk.stored, chunk.depth, chunk.n_tokens, unit, sums);
  else HWY_DYNAMIC_DISPATCH(coefficients)(p, p_stride, rows, chunk.x, chunk.n_tokens, sums);
}
void add_shares(const float* p, int64_t p_stride, int rows, const AnchorLists& anchors, int n,
                float* weights, int64_t stride) noexcept {
  HWY_DYNAMIC_DISPATCH(shares)(p, p_stride, rows, anchors, n, weights, stride);
}
void scale_columns(float* x, int64_t n, int64_t stride, const float* factor) noexcept {
  HWY_DYNAMIC_DISPATCH(columns_scaled)(x, n, stride, factor);
}
void add_scaled_columns(const float* x, int64_t n, int64_t stride, const float* factor,
                        float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(columns_added)(x, n, stride, factor, out);
}
void add_value_rows(const void* v, Scalar type, int head_dim, int n, const float* p,
                    int64_t p_stride, int rows, float* o) noexcept {
  HWY_DYNAMIC_DISPATCH(values)(v, type, head_dim, n, p, p_stride, rows, o);
}
float exponentials_below(float* x, int n, float top) noexcept {
  return HWY_DYNAMIC_DISPATCH(exponentials_of)(x, n, top);
}
void add_scaled(const float* x, int64_t n, float factor, float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(scaled_added)(x, n, factor, out);
}
void scale(float* x, int64_t n, float factor) noexcept {
  HWY_DYNAMIC_DISPATCH(scaled)(x, n, factor);
}

}  // namespace kvist::kernels
#endif  // HWY_ONCE
