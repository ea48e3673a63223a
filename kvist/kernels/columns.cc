// SPDX-License-Identifier: MIT
// Register tiles of four rows; butterflies two levels at a time.
#include "kvist/kernels/columns.h"

#undef HWY_WANT_AVX3_DL  // nothing here gains from it over avx3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvist/kernels/columns.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Vec = hn::Vec<Floats>;

// kRows rows and kVectors vectors of columns of out.
template <int kRows, int kVectors>
HWY_INLINE void multiply_tile(const float* HWY_RESTRICT m, int depth, const float* HWY_RESTRICT x,
                              int64_t n, float* HWY_RESTRICT out) {
  const Floats d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  Vec sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kVectors; ++i) sum[r][i] = hn::Zero(d);
  for (int j = 0; j < depth; ++j, x += n) {
    Vec y[kVectors];
    for (int i = 0; i < kVectors; ++i) y[i] = hn::LoadU(d, x + i * lanes);
    for (int r = 0; r < kRows; ++r) {
      const Vec factor = hn::Set(d, m[r * depth + j]);
      for (int i = 0; i < kVectors; ++i) sum[r][i] = hn::Add(sum[r][i], hn::Mul(y[i], factor));
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kVectors; ++i) hn::StoreU(sum[r][i], d, out + r * n + i * lanes);
}

void multiply(const float* m, int rows, int depth, const float* x, int n, float* out) {
  constexpr int kRows = 4, kVectors = 2;
  const int lanes = static_cast<int>(hn::Lanes(Floats()));
  int t = 0;
  for (; t + kVectors * lanes <= n; t += kVectors * lanes) {
    int i = 0;
    for (; i + kRows <= rows; i += kRows)
      multiply_tile<kRows, kVectors>(m + int64_t{i} * depth, depth, x + t, n,
                                     out + int64_t{i} * n + t);
    for (; i < rows; ++i)
      multiply_tile<1, kVectors>(m + int64_t{i} * depth, depth, x + t, n, out + int64_t{i} * n + t);
  }
  for (; t < n; ++t) {
    for (int i = 0; i < rows; ++i) {
      float sum = 0;
      for (int j = 0; j < depth; ++j) sum += x[int64_t{j} * n + t] * m[int64_t{i} * depth + j];
      out[int64_t{i} * n + t] = sum;
    }
  }
}

// One level: a, b = a + b, a - b.
HWY_INLINE void butterfly(float* HWY_RESTRICT a, float* HWY_RESTRICT b, int64_t n) {
  const Floats d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const Vec x = hn::LoadU(d, a + i), y = hn::LoadU(d, b + i);
    hn::StoreU(hn::Add(x, y), d, a + i);
    hn::StoreU(hn::Sub(x, y), d, b + i);
  }
  for (; i < n; ++i) {
    const float x = a[i], y = b[i];
    a[i] = x + y, b[i] = x - y;
  }
}

// Two levels at once, of four runs `step` numbers apart.
HWY_INLINE void two_butterflies(float* x, int64_t step, int64_t n) {
  const Floats d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    float* p = x + i;
    const Vec a = hn::LoadU(d, p), b = hn::LoadU(d, p + step);
    const Vec c = hn::LoadU(d, p + 2 * step), e = hn::LoadU(d, p + 3 * step);
    const Vec ab = hn::Add(a, b), a_b = hn::Sub(a, b), ce = hn::Add(c, e), c_e = hn::Sub(c, e);
    hn::StoreU(hn::Add(ab, ce), d, p);
    hn::StoreU(hn::Add(a_b, c_e), d, p + step);
    hn::StoreU(hn::Sub(ab, ce), d, p + 2 * step);
    hn::StoreU(hn::Sub(a_b, c_e), d, p + 3 * step);
  }
  for (; i < n; ++i) {
    float* p = x + i;
    const float ab = p[0] + p[step], a_b = p[0] - p[step];
    const float ce = p[2 * step] + p[3 * step], c_e = p[2 * step] - p[3 * step];
    p[0] = ab + ce, p[step] = a_b + c_e, p[2 * step] = ab - ce, p[3 * step] = a_b - c_e;
  }
}

void hadamard(float* x, int outer, int64_t inner) {
  const int64_t size = outer * inner;
  int64_t half = inner;
  for (; 4 * half <= size; half *= 4)
    for (int64_t begin = 0; begin < size; begin += 4 * half) two_butterflies(x + begin, half, half);
  if (half < size) butterfly(x, x + half, half);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvist::kernels {
HWY_EXPORT(multiply);
HWY_EXPORT(hadamard);

void multiply_columns(const float* m, int rows, int depth, const float* x, int n,
                      float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(multiply)(m, rows, depth, x, n, out);
}
void hadamard_columns(float* x, int outer, int64_t inner) noexcept {
  HWY_DYNAMIC_DISPATCH(hadamard)(x, outer, inner);
}

}  // namespace kvist::kernels
#endif  // HWY_ONCE
