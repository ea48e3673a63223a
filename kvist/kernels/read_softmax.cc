// SPDX-License-Identifier: MIT
// Exponentials and squared weights, vectorised over tokens.
#include "kvist/kernels/read_softmax.h"

#undef HWY_WANT_AVX3_DL  // nothing here gains from it over avx3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvist/kernels/read_softmax.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "kvist/kernels/attend-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {

PageSum exponentials(float* HWY_RESTRICT s, int n) {
  constexpr int kSide = 4;  // vectors in flight: an exponential is a chain of a dozen steps
  const Floats d;
  const int whole = n / kLanes * kLanes, sides = n / (kSide * kLanes) * (kSide * kLanes);
  float tail[kLanes];
  for (int i = 0; i < kLanes; ++i)
    tail[i] = whole + i < n ? s[whole + i] : -std::numeric_limits<float>::infinity();
  Vec top[kSide];
  for (Vec& t : top) t = hn::LoadU(d, tail);
  for (int j = 0; j < sides; j += kSide * kLanes)
    for (int i = 0; i < kSide; ++i) top[i] = hn::Max(top[i], hn::LoadU(d, s + j + i * kLanes));
  for (int j = sides; j < whole; j += kLanes) top[0] = hn::Max(top[0], hn::LoadU(d, s + j));
  const Vec m = hn::MaxOfLanes(d, hn::Max(hn::Max(top[0], top[1]), hn::Max(top[2], top[3])));
  Vec sum[kSide];
  for (Vec& x : sum) x = hn::Zero(d);
  for (int j = 0; j < sides; j += kSide * kLanes) {
    Vec e[kSide];
    for (int i = 0; i < kSide; ++i)
      e[i] = exp_negative(hn::Sub(hn::LoadU(d, s + j + i * kLanes), m));
    for (int i = 0; i < kSide; ++i) {
      hn::StoreU(e[i], d, s + j + i * kLanes);
      sum[i] = hn::Add(sum[i], e[i]);
    }
  }
  for (int j = sides; j < whole; j += kLanes) {
    const Vec e = exp_negative(hn::Sub(hn::LoadU(d, s + j), m));
    hn::StoreU(e, d, s + j);
    sum[0] = hn::Add(sum[0], e);
  }
  const Vec e = exp_negative(hn::Sub(hn::LoadU(d, tail), m));
  hn::StoreU(e, d, tail);
  for (int j = whole; j < n; ++j) s[j] = tail[j - whole];
  const Vec all = hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3]));
  return {hn::GetLane(m), hn::GetLane(hn::SumOfLanes(d, hn::Add(all, e)))};
}

void weigh(float* HWY_RESTRICT e, int64_t stride, const float* factor, int rows, int n,
           double scale, float* HWY_RESTRICT weight) {
  int j = 0;
#if HWY_HAVE_FLOAT64 && HWY_TARGET != HWY_SCALAR
  const Floats d;
  const hn::Half<Floats> half;
  const hn::Repartition<double, Floats> dd;
  const auto vscale = hn::Set(dd, scale);
  for (; j + kLanes <= n; j += kLanes) {
    auto low = hn::Zero(dd), high = hn::Zero(dd);
    for (int r = 0; r < rows; ++r) {
      const auto alpha = hn::Mul(hn::LoadU(d, e + r * stride + j), hn::Set(d, factor[r]));
      hn::StoreU(alpha, d, e + r * stride + j);
      const auto a = hn::PromoteTo(dd, hn::LowerHalf(half, alpha));
      const auto b = hn::PromoteTo(dd, hn::UpperHalf(half, alpha));
      low = hn::MulAdd(a, a, low), high = hn::MulAdd(b, b, high);  // squares are exact
    }
    hn::StoreU(hn::DemoteTo(half, hn::Mul(vscale, low)), half, weight + j);
    hn::StoreU(hn::DemoteTo(half, hn::Mul(vscale, high)), half, weight + j + kLanes / 2);
  }
#endif
  for (; j < n; ++j) {
    double sum = 0;
    for (int r = 0; r < rows; ++r) {
      const float alpha = e[r * stride + j] * factor[r];
      e[r * stride + j] = alpha;
      sum += double{alpha} * double{alpha};
    }
    weight[j] = static_cast<float>(scale * sum);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvist::kernels {
HWY_EXPORT(exponentials);
HWY_EXPORT(weigh);

PageSum exp_page(float* s, int n) noexcept { return HWY_DYNAMIC_DISPATCH(exponentials)(s, n); }

void weigh_page(float* e, int64_t stride, const float* factor, int rows, int n, double scale,
                float* weight) noexcept {
  HWY_DYNAMIC_DISPATCH(weigh)(e, stride, factor, rows, n, scale, weight);
}

}  // namespace kvist::kernels
#endif  // HWY_ONCE
