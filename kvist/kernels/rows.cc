// SPDX-License-Identifier: MIT
// Rows in lanes for norms and products, coordinates in lanes for sums; no fused multiply-add.
#include "kvist/kernels/rows.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvist/kernels/rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kvist/kernels/norms-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {
namespace {

void RowNorms(const float* rows, int n, int d, double* out) {
  squared_norms(rows, 0, n, d, out);
  for (int t = 0; t < n; ++t) out[t] = std::sqrt(out[t]);
}

void RowDots(const float* rows, int n, int d, const double* vector, double* out) {
  const hn::CappedTag<double, 8> d64;
  const hn::Rebind<float, decltype(d64)> d32;
  const hn::Rebind<int32_t, decltype(d64)> di;
  const int lanes = static_cast<int>(hn::Lanes(d64));
  const auto index = hn::Mul(hn::Iota(di, 0), hn::Set(di, d));
  int t = 0;
  for (; t + lanes <= n; t += lanes) {
    auto sum = hn::Zero(d64);
    const float* base = rows + static_cast<int64_t>(t) * d;
    for (int c = 0; c < d; ++c) {
      const auto x = hn::PromoteTo(d64, hn::GatherIndex(d32, base + c, index));
      sum = hn::Add(sum, hn::Mul(x, hn::Set(d64, vector[c])));
    }
    hn::StoreU(sum, d64, out + t);
  }
  for (; t < n; ++t) {
    double sum = 0;
    for (int c = 0; c < d; ++c)
      sum += static_cast<double>(rows[static_cast<int64_t>(t) * d + c]) * vector[c];
    out[t] = sum;
  }
}

void WeightedSum(const float* rows, int n, int d, const double* weights, double* out) {
  const hn::CappedTag<double, 8> d64;
  const hn::Rebind<float, decltype(d64)> d32;
  const int lanes = static_cast<int>(hn::Lanes(d64));
  std::fill(out, out + d, 0.0);
  for (int t = 0; t < n; ++t) {
    const float* row = rows + static_cast<int64_t>(t) * d;
    const auto weight = hn::Set(d64, weights[t]);
    int c = 0;
    for (; c + lanes <= d; c += lanes) {
      const auto x = hn::PromoteTo(d64, hn::LoadU(d32, row + c));
      hn::StoreU(hn::Add(hn::LoadU(d64, out + c), hn::Mul(weight, x)), d64, out + c);
    }
    for (; c < d; ++c) out[c] += weights[t] * static_cast<double>(row[c]);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvist::kernels {
namespace {
HWY_EXPORT(RowNorms);
HWY_EXPORT(RowDots);
HWY_EXPORT(WeightedSum);
}  // namespace

void row_norms(const float* rows, int n, int d, double* out) {
  HWY_DYNAMIC_DISPATCH(RowNorms)(rows, n, d, out);
}
void row_dots(const float* rows, int n, int d, const double* vector, double* out) {
  HWY_DYNAMIC_DISPATCH(RowDots)(rows, n, d, vector, out);
}
void weighted_sum(const float* rows, int n, int d, const double* weights, double* out) {
  HWY_DYNAMIC_DISPATCH(WeightedSum)(rows, n, d, weights, out);
}

}  // namespace kvist::kernels
#endif
