// SPDX-License-Identifier: MIT
// Attention over one run: the loops over blocks for few rows and for many, and the choice between
// them and the bf16 path.
#include "kvist/kernels/attend.h"

#undef HWY_WANT_AVX3_DL  // nothing here gains from it over avx3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvist/kernels/attend.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kvist/kernels/attend-inl.h"
#include "kvist/kernels/attend_internal.h"
#include "kvist/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {

using internal::kRowTile;
using internal::kSpan;

// Block `index` of the run's keys as [head_dim][64]: in place, or copied to `pad` where the stored
// block is narrower.
template <typename T>
const T* key_block(const KvRun& run, int index, T* pad) {
  const T* k = static_cast<const T*>(run.k) + static_cast<int64_t>(index) * kBlock * run.head_dim;
  const int width = run.last_width;
  if (width == kBlock || index != (run.n_tokens - 1) / kBlock) return k;
  for (int c = 0; c < run.head_dim; ++c) {
    std::memcpy(pad + c * kBlock, k + c * width, sizeof(T) * static_cast<size_t>(width));
    std::memset(static_cast<void*>(pad + c * kBlock + width), 0,
                sizeof(T) * static_cast<size_t>(kBlock - width));
  }
  return pad;
}

// Tokens of [at, at + n) that row r sees.
HWY_INLINE int seen(const int32_t* visible, int r, int at, int n) {
  return visible == nullptr ? n : std::clamp(visible[r] - at, 0, n);
}

// Rows < kFastRows: K and V are widened in registers and each is read once for up to 8 rows.
// Scratch: logits f32 [kFastRows][kSpan], one key block [head_dim][64].
template <typename T>
void attend_few(const KvRun& run, int begin, int end, const float* q, int rows,
                const int32_t* visible, SoftmaxState state, std::byte* scratch) {
  const int d = run.head_dim;
  float* s = reinterpret_cast<float*>(scratch);
  T* pad = reinterpret_cast<T*>(s + kFastRows * kSpan);
  const int n_chunks = (rows + 7) / 8;
  const int chunk = (rows + n_chunks - 1) / n_chunks;
  for (int at = begin; at < end; at += kSpan) {
    const int n = std::min(kSpan, end - at);
    const int padded = (n + kBlock - 1) / kBlock * kBlock;
    for (int b = 0; b < padded; b += kBlock) {
      const T* k = key_block(run, (at + b) / kBlock, pad);
      for (int r = 0; r < rows; r += chunk)
        score_rows(k, d, q + r * d, std::min(chunk, rows - r), s + r * kSpan + b, kSpan);
    }
    for (int r = 0; r < rows; ++r)
      softmax_row(s + r * kSpan, padded, seen(visible, r, at, n), state.m + r, state.l + r,
                  state.o + r * d, d);
    const T* v = static_cast<const T*>(run.v) + static_cast<int64_t>(at) * d;
    for (int r = 0; r < rows; r += chunk)
      value_rows(v, d, n, s + r * kSpan, kSpan, std::min(chunk, rows - r), state.o + r * d);
  }
}

template <typename T>
void widen(const T* in, int64_t n, float* HWY_RESTRICT out) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(load_wide(in + i), Floats(), out + i);
  for (; i < n; ++i) out[i] = to_float(in[i]);
}

// One block for rows [0, rows) of a tile, all fp32. k [head_dim][64], v [n][head_dim], s
// [rows][64].
template <int kRows>
void block_tile(const float* k, const float* v, int d, const float* q, int at, int n,
                const int32_t* visible, SoftmaxState state, float* s) {
  score_tile<float, kRows>(k, d, q, s, kBlock);
  for (int r = 0; r < kRows; ++r)
    softmax_row(s + r * kBlock, kBlock, seen(visible, r, at, n), state.m + r, state.l + r,
                state.o + r * d, d);
  value_tile<float, kRows>(v, d, n, s, kBlock, state.o);
}

// Any number of rows: each block is widened once to f32 and used by register tiles of rows.
// Scratch: k f32 [head_dim][64], v f32 [64][head_dim], logits f32 [kRowTile][64], one key block
// [head_dim][64].
template <typename T>
void attend_many(const KvRun& run, int begin, int end, const float* q, int rows,
                 const int32_t* visible, SoftmaxState state, std::byte* scratch) {
  const int d = run.head_dim;
  float* k = reinterpret_cast<float*>(scratch);
  float* v = k + d * kBlock;
  float* s = v + d * kBlock;
  T* pad = reinterpret_cast<T*>(s + kRowTile * kBlock);
  for (int at = begin; at < end; at += kBlock) {
    const int n = std::min(kBlock, end - at);
    widen(key_block(run, at / kBlock, pad), d * kBlock, k);
    widen(static_cast<const T*>(run.v) + static_cast<int64_t>(at) * d, n * d, v);
    for (int r = 0; r < rows;) {
      const int32_t* seen_by = visible == nullptr ? nullptr : visible + r;
      const SoftmaxState part{state.m + r, state.l + r, state.o + r * d};
      const float* x = q + r * d;
      const int left = rows - r;
      if (left >= kRowTile) {
        block_tile<kRowTile>(k, v, d, x, at, n, seen_by, part, s);
        r += kRowTile;
      } else if (left >= 6) {
        block_tile<6>(k, v, d, x, at, n, seen_by, part, s);
        r += 6;
      } else if (left >= 2) {
        block_tile<2>(k, v, d, x, at, n, seen_by, part, s);
        r += 2;
      } else {
        block_tile<1>(k, v, d, x, at, n, seen_by, part, s);
        r += 1;
      }
    }
  }
}

template <typename T>
void attend_typed(const KvRun& run, int begin, int end, const float* q, int rows,
                  const int32_t* visible, SoftmaxState state, std::byte* scratch) {
  if (rows < kFastRows)
    attend_few<T>(run, begin, end, q, rows, visible, state, scratch);
  else
    attend_many<T>(run, begin, end, q, rows, visible, state, scratch);
}

void attend_f32(const KvRun& run, int begin, int end, const float* q, int rows,
                const int32_t* visible, SoftmaxState state, std::byte* scratch) {
  switch (run.type) {
    case Scalar::f16:
      return attend_typed<f16>(run, begin, end, q, rows, visible, state, scratch);
    case Scalar::bf16:
      return attend_typed<bf16>(run, begin, end, q, rows, visible, state, scratch);
    case Scalar::f32:
      return attend_typed<float>(run, begin, end, q, rows, visible, state, scratch);
  }
}

// into[0, n) = into * a + from * b
void blend(float* HWY_RESTRICT into, float a, const float* HWY_RESTRICT from, float b, int n) {
  const Vec va = hn::Set(Floats(), a), vb = hn::Set(Floats(), b);
  int c = 0;
  for (; c + kLanes <= n; c += kLanes) {
    const Vec x = hn::Mul(va, hn::LoadU(Floats(), into + c));
    hn::StoreU(hn::MulAdd(vb, hn::LoadU(Floats(), from + c), x), Floats(), into + c);
  }
  for (; c < n; ++c) into[c] = into[c] * a + from[c] * b;
}

}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvist::kernels {
HWY_EXPORT(attend_f32);
HWY_EXPORT(blend);

namespace {
constexpr float kUnseen = -std::numeric_limits<float>::infinity();

size_t f32_scratch_bytes(int head_dim) {
  const size_t block = sizeof(float) * kBlock * static_cast<size_t>(head_dim);
  return 3 * block + sizeof(float) * kFastRows * internal::kSpan;
}
}  // namespace

bool internal::amx_allowed() noexcept { return cpu_has_amx() && avx512_allowed(); }

void reset(SoftmaxState state, int rows, int head_dim) noexcept {
  std::fill_n(state.m, rows, kUnseen);
  std::fill_n(state.l, rows, 0.0f);
  std::fill_n(state.o, static_cast<int64_t>(rows) * head_dim, 0.0f);
}

bool has_bf16_dot() noexcept {
  static const bool cpu =
      internal::cpu_has_amx() || (internal::cpu_has_bf16_dot() && internal::bf16_dot_is_fast());
  return cpu && avx512_allowed();
}

size_t attend_scratch_bytes(int max_rows, int head_dim) noexcept {
  return std::max({f32_scratch_bytes(head_dim), internal::bf16_scratch_bytes(max_rows, head_dim),
                   internal::amx_scratch_bytes(max_rows, head_dim)});
}

void attend(const KvRun& run, int begin, int end, const float* q, int rows, const int32_t* visible,
            Precision precision, SoftmaxState state, std::byte* scratch) noexcept {
  if (rows <= 0) return;
  end = std::min(end, run.n_tokens);
  if (visible != nullptr) end = std::min(end, *std::max_element(visible, visible + rows));
  if (end <= begin) return;
  if (precision == Precision::exact || rows < kFastRows || !has_bf16_dot())
    HWY_DYNAMIC_DISPATCH(attend_f32)(run, begin, end, q, rows, visible, state, scratch);
  else if (internal::cpu_has_amx())
    internal::attend_amx(run, begin, end, q, rows, visible, state, scratch);
  else
    internal::attend_bf16(run, begin, end, q, rows, visible, state, scratch);
}

void merge(SoftmaxState state, SoftmaxState other, int rows, int head_dim) noexcept {
  for (int r = 0; r < rows; ++r) {
    const float top = std::max(state.m[r], other.m[r]);
    if (other.m[r] == kUnseen) continue;
    const float a = std::exp(state.m[r] - top), b = std::exp(other.m[r] - top);
    state.m[r] = top;
    state.l[r] = state.l[r] * a + other.l[r] * b;
    HWY_DYNAMIC_DISPATCH(blend)(state.o + r * head_dim, a, other.o + r * head_dim, b, head_dim);
  }
}

void finish(SoftmaxState state, int rows, int head_dim, float* out, int64_t out_stride) noexcept {
  for (int r = 0; r < rows; ++r) {
    const float l = state.l[r];
    const float* o = state.o + r * head_dim;
    float* to = out + r * out_stride;
    for (int c = 0; c < head_dim; ++c) to[c] = l == 0 ? 0 : o[c] / l;
  }
}

}  // namespace kvist::kernels
#endif  // HWY_ONCE
