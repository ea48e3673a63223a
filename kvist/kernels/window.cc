// SPDX-License-Identifier: MIT
// Attention of the last queries over all keys: softmax against each span's own maximum, then the
// spans brought to the row's maximum and summed over rows in fp64. A few rows at a time, so that
// their weights stay in the caches of the worker that made them.
#include "kvist/kernels/window.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "kvist/core/meeting.h"
#include "kvist/kernels/attend.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvist/kernels/window.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kvist/kernels/attend-inl.h"
#include "kvist/kernels/norms-inl.h"

#ifndef KVIST_KERNELS_WINDOW_ONCE
#define KVIST_KERNELS_WINDOW_ONCE
namespace kvist::kernels {
namespace {

constexpr int kRowStep = 6;  // query rows whose logits are formed together
constexpr int kSpan = 256;   // tokens whose weights share a maximum; a multiple of kBlock
constexpr int64_t kSomeWeights = 400 << 10;  // that exist at a time, or one a query head and token

// Some rows at a time, all query heads of a position together: of rows [first, first + rows), row
// t * group + g is query head g at position n_tokens - window + t.
struct WindowPass {
  const float* keys = nullptr;  // [n_tokens][head_dim]
  int n_tokens = 0, head_dim = 0, window = 0, group = 0, stride = 0;
  int first = 0, rows = 0;
  const float* q = nullptr;       // [rows][head_dim], times the logit scale
  float* weights = nullptr;       // [rows][stride], exp(logit - maximum of the span)
  float* span_maximum = nullptr;  // [spans][rows]
  float* span_sum = nullptr;      // [spans][rows]
  float* span_factor = nullptr;   // [spans][rows], weight * factor = attention
};

}  // namespace
}  // namespace kvist::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {
namespace {

// Turns `count` logits into exp(logit - maximum); those past `visible` become 0.
HWY_INLINE void exponentiate(float* HWY_RESTRICT x, int count, int visible, float* maximum,
                             float* sum) {
  const Floats df;
  std::fill(x + std::max(0, std::min(visible, count)), x + count,
            -std::numeric_limits<float>::infinity());
  Vec top = hn::Load(df, x);
  for (int i = kLanes; i < count; i += kLanes) top = hn::Max(top, hn::Load(df, x + i));
  const Vec most =
      hn::Max(hn::MaxOfLanes(df, top), hn::Set(df, std::numeric_limits<float>::lowest()));
  Vec total = hn::Zero(df);
  for (int i = 0; i < count; i += kLanes) {
    const Vec e = exp_negative(hn::Sub(hn::Load(df, x + i), most));
    hn::Store(e, df, x + i);
    total = hn::Add(total, e);
  }
  *maximum = hn::GetLane(most);
  *sum = hn::GetLane(hn::SumOfLanes(df, total));
}

// scratch [head_dim][64], aligned.
void ScoreSpan(const WindowPass& pass, int span, float* scratch) {
  const int begin = span * kSpan;
  const int end = std::min(begin + kSpan, pass.n_tokens);
  const int padded = (end - begin + kBlock - 1) / kBlock * kBlock;
  for (int first = begin; first < end; first += kBlock) {
    columns_of_block(pass.keys, first, end, pass.head_dim, scratch);
    for (int r = 0; r < pass.rows; r += kRowStep) {
      score_rows(scratch, pass.head_dim, pass.q + static_cast<int64_t>(r) * pass.head_dim,
                 std::min(kRowStep, pass.rows - r),
                 pass.weights + static_cast<int64_t>(r) * pass.stride + first, pass.stride);
    }
  }
  for (int r = 0; r < pass.rows; ++r) {
    const int visible = pass.n_tokens - pass.window + (pass.first + r) / pass.group + 1 - begin;
    const int64_t at = static_cast<int64_t>(span) * pass.rows + r;
    exponentiate(pass.weights + static_cast<int64_t>(r) * pass.stride + begin, padded,
                 std::min(visible, end - begin), pass.span_maximum + at, pass.span_sum + at);
  }
}

// To the nearest bf16, ties to even; x is finite.
template <typename V, typename D>
HWY_INLINE V nearest_bf16(D d, V x) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFFu)));
  return hn::BitCast(d, hn::And(rounded, hn::Set(du, 0xFFFF0000u)));
}

// out[i - begin] += sum of the attention of rows first, first + step, ... of one span, in that
// order.
template <bool kBf16>
HWY_INLINE void sum_rows(const WindowPass& pass, int span, int first, int step, double* out) {
  const hn::CappedTag<double, 8> d64;
  const hn::Rebind<float, decltype(d64)> d32;
  const int lanes = static_cast<int>(hn::Lanes(d64));
  const float* factor = pass.span_factor + static_cast<int64_t>(span) * pass.rows;
  const float* weights = pass.weights + span * kSpan;
  constexpr int kWide = 4;
  for (int i = 0; i < kSpan; i += kWide * lanes) {
    hn::Vec<decltype(d64)> sum[kWide];
    for (int w = 0; w < kWide; ++w) sum[w] = hn::LoadU(d64, out + i + w * lanes);
    for (int r = first; r < pass.rows; r += step) {
      const auto f = hn::Set(d32, factor[r]);
      const float* x = weights + static_cast<int64_t>(r) * pass.stride + i;
      for (int w = 0; w < kWide; ++w) {
        auto weight = hn::Mul(f, hn::LoadU(d32, x + w * lanes));
        if (kBf16) weight = nearest_bf16(d32, weight);
        sum[w] = hn::Add(sum[w], hn::PromoteTo(d64, weight));
      }
    }
    for (int w = 0; w < kWide; ++w) hn::StoreU(sum[w], d64, out + i + w * lanes);
  }
}

void SumRows(const WindowPass& pass, int span, int first, int step, double* out) {
  sum_rows<false>(pass, span, first, step, out);
}
void SumRowsBf16(const WindowPass& pass, int span, int first, int step, double* out) {
  sum_rows<true>(pass, span, first, step, out);
}

// out[i - begin] = the largest attention of the rows of one span, or what it was before.
void MostOfRows(const WindowPass& pass, int span, float* out) {
  const Floats df;
  const float* factor = pass.span_factor + static_cast<int64_t>(span) * pass.rows;
  const float* weights = pass.weights + span * kSpan;
  for (int i = 0; i < kSpan; i += kLanes) {
    Vec most = hn::LoadU(df, out + i);
    for (int r = 0; r < pass.rows; ++r) {
      const Vec x = hn::LoadU(df, weights + static_cast<int64_t>(r) * pass.stride + i);
      most = hn::Max(most, hn::Mul(hn::Set(df, factor[r]), x));
    }
    hn::StoreU(most, df, out + i);
  }
}

void Energies(const float* values, int n, int head_dim, float* out) {
  squared_norms(values, 0, n, head_dim, out);
}

// Index of the first group of 64 that holds a number whose exponent is all ones, or n rounded down
// to 64.
int64_t FirstNonfiniteGroup(const float* x, int64_t n) {
  const hn::ScalableTag<uint32_t> du;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(du));
  const auto infinity = hn::Set(du, 0x7F800000u);
  const uint32_t* bits = reinterpret_cast<const uint32_t*>(x);
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    auto most = hn::Zero(du);
    for (int64_t j = 0; j < 64; j += lanes) {
      most = hn::Max(most, hn::And(hn::LoadU(du, bits + i + j), infinity));
    }
    if (!hn::AllFalse(du, hn::Eq(most, infinity))) break;
  }
  return i;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvist::kernels {
namespace {
HWY_EXPORT(ScoreSpan);
HWY_EXPORT(SumRows);
HWY_EXPORT(SumRowsBf16);
HWY_EXPORT(MostOfRows);
HWY_EXPORT(Energies);
HWY_EXPORT(FirstNonfiniteGroup);

// Uninitialised and on the heap: a mapping of its own would be paged in anew for every head.
template <typename T>
struct Scratch {
  struct Free {
    void operator()(T* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  std::unique_ptr<T[], Free> data;
  explicit Scratch(int64_t n)
      : data(static_cast<T*>(
            ::operator new[](static_cast<size_t>(n) * sizeof(T), std::align_val_t{64}))) {}
};

// span_factor from span_maximum and span_sum, spans in order.
void normalize(const WindowPass& pass, int n_spans) {
  for (int r = 0; r < pass.rows; ++r) {
    const auto at = [&](int span) { return static_cast<int64_t>(span) * pass.rows + r; };
    float maximum = pass.span_maximum[r];
    for (int s = 1; s < n_spans; ++s) maximum = std::max(maximum, pass.span_maximum[at(s)]);
    float sum = 0;
    for (int s = 0; s < n_spans; ++s) {
      const float factor = std::exp(pass.span_maximum[at(s)] - maximum);
      pass.span_factor[at(s)] = factor;
      sum += factor * pass.span_sum[at(s)];
    }
    for (int s = 0; s < n_spans; ++s) pass.span_factor[at(s)] /= sum;
  }
}

int n_spans_of(int n) { return (n + kSpan - 1) / kSpan; }

// Calls reduce(pass, span) for every span of some rows after the other, in the order of the rows;
// a span is always reduced by one worker at a time.
template <typename Reduce>
void attend_window(const float* keys, int n, int head_dim, TensorView<const float, 3> q,
                   float logit_scale, ThreadPool& pool, const Reduce& reduce) {
  const int window = static_cast<int>(q.dim(0)), group = static_cast<int>(q.dim(1));
  const int all_rows = window * group, n_spans = n_spans_of(n);
  const auto positions = std::max<int64_t>(1, kSomeWeights / (int64_t{group} * n_spans * kSpan));
  const int some = group * static_cast<int>(std::min<int64_t>(window, positions));
  KVIST_ASSERT(window <= n);
  WindowPass pass;
  pass.keys = keys;
  pass.n_tokens = n;
  pass.head_dim = head_dim;
  pass.window = window;
  pass.group = group;
  // An odd number of cache lines apart, so that the rows of one token do not share a cache set.
  pass.stride = n_spans * kSpan + 16;
  const int64_t per_span = static_cast<int64_t>(n_spans) * some;
  const int64_t block_floats = static_cast<int64_t>(head_dim) * kBlock;
  const Scratch<float> weights(static_cast<int64_t>(some) * pass.stride);
  const Scratch<float> scaled(static_cast<int64_t>(all_rows) * head_dim);
  const Scratch<float> statistics(3 * per_span), blocks(pool.n_threads() * block_floats);
  pass.weights = weights.data.get();
  pass.span_maximum = statistics.data.get();
  pass.span_sum = pass.span_maximum + per_span;
  pass.span_factor = pass.span_sum + per_span;
  for (int r = 0; r < all_rows; ++r) {
    for (int c = 0; c < head_dim; ++c) {
      scaled.data[r * head_dim + c] = logit_scale * q(r / group, r % group, c);
    }
  }
  Meeting meeting;
  pool.run([&](Worker worker) {
    WindowPass own = pass;
    float* block = blocks.data.get() + worker.index * block_floats;
    for (own.first = 0; own.first < all_rows; own.first += some) {
      own.rows = std::min(some, all_rows - own.first);
      own.q = scaled.data.get() + static_cast<int64_t>(own.first) * head_dim;
      meeting.each(
          n_spans, worker,
          [&](int span) {
            HWY_DYNAMIC_DISPATCH(ScoreSpan)
            (own, span, block);
          },
          [&] { normalize(own, n_spans); });
      meeting.each(n_spans, worker, [&](int span) { reduce(own, span); });
    }
  });
}

template <typename T>
void pool_maximum(const T* in, int n, int radius, T* out) {
  for (int i = 0; i < n; ++i) {
    const int begin = std::max(0, i - radius), end = std::min(n - 1, i + radius);
    T most = in[begin];
    for (int j = begin + 1; j <= end; ++j) most = std::max(most, in[j]);
    out[i] = most;
  }
}

}  // namespace

void window_attention(const float* keys, int n, int head_dim, TensorView<const float, 3> q,
                      float logit_scale, ThreadPool& pool, float* abar) {
  if (q.empty()) return std::fill_n(abar, n, 0.0f), void();
  const int64_t padded = static_cast<int64_t>(n_spans_of(n)) * kSpan;
  const Scratch<double> sums(padded);
  std::fill_n(sums.data.get(), padded, 0.0);
  attend_window(keys, n, head_dim, q, logit_scale, pool, [&](const WindowPass& pass, int span) {
    HWY_DYNAMIC_DISPATCH(SumRows)(pass, span, 0, 1, sums.data.get() + span * kSpan);
  });
  const auto rows = static_cast<double>(q.dim(0) * q.dim(1));
  for (int i = 0; i < n; ++i) abar[i] = static_cast<float>(sums.data[i] / rows);
}

void window_attention_per_head(const float* keys, int n, int head_dim, TensorView<const float, 3> q,
                               float logit_scale, ThreadPool& pool, double* means,
                               Weights weights) {
  if (q.empty()) return std::fill_n(means, q.dim(1) * n, 0.0), void();
  const int group = static_cast<int>(q.dim(1));
  const int64_t padded = static_cast<int64_t>(n_spans_of(n)) * kSpan;
  const Scratch<double> sums(group * padded);
  std::fill_n(sums.data.get(), group * padded, 0.0);
  attend_window(keys, n, head_dim, q, logit_scale, pool, [&](const WindowPass& pass, int span) {
    for (int g = 0; g < group; ++g) {
      double* out = sums.data.get() + g * padded + span * kSpan;
      if (weights == Weights::bf16) {
        HWY_DYNAMIC_DISPATCH(SumRowsBf16)(pass, span, g, group, out);
      } else {
        HWY_DYNAMIC_DISPATCH(SumRows)(pass, span, g, group, out);
      }
    }
  });
  for (int g = 0; g < group; ++g)
    for (int i = 0; i < n; ++i)
      means[static_cast<int64_t>(g) * n + i] =
          sums.data[g * padded + i] / static_cast<double>(q.dim(0));
}

void window_attention_most(const float* keys, int n, int head_dim, TensorView<const float, 3> q,
                           float logit_scale, ThreadPool& pool, float* most) {
  if (q.empty()) return std::fill_n(most, n, 0.0f), void();
  const int64_t padded = static_cast<int64_t>(n_spans_of(n)) * kSpan;
  const Scratch<float> top(padded);
  std::fill_n(top.data.get(), padded, 0.0f);
  attend_window(keys, n, head_dim, q, logit_scale, pool, [&](const WindowPass& pass, int span) {
    HWY_DYNAMIC_DISPATCH(MostOfRows)(pass, span, top.data.get() + span * kSpan);
  });
  std::copy_n(top.data.get(), n, most);
}

void max_pool(const float* in, int n, int radius, float* out) noexcept {
  pool_maximum(in, n, radius, out);
}
void max_pool(const double* in, int n, int radius, double* out) noexcept {
  pool_maximum(in, n, radius, out);
}

void energies(const float* values, int n, int head_dim, float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(Energies)(values, n, head_dim, out);
}

bool find_nonfinite(const float* x, int64_t n, int64_t* where) noexcept {
  for (int64_t i = HWY_DYNAMIC_DISPATCH(FirstNonfiniteGroup)(x, n); i < n; ++i) {
    if (!std::isfinite(x[i])) {
      *where = i;
      return true;
    }
  }
  return false;
}

}  // namespace kvist::kernels
#endif
