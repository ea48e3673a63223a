// SPDX-License-Identifier: MIT
// Squared norms of rows in fp64, each in coordinate order: tokens in lanes, so every target gives
// the same bits.
#if defined(KVIST_KERNELS_NORMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVIST_KERNELS_NORMS_INL_H_
#undef KVIST_KERNELS_NORMS_INL_H_
#else
#define KVIST_KERNELS_NORMS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// out[t] = sum over k of x[t][k]^2 for t in [begin, end), rounded to Out once. x [tokens][d].
template <typename Out>
HWY_INLINE void squared_norms(const float* x, int begin, int end, int d, Out* out) {
  const hn::CappedTag<double, 8> d64;
  const hn::Rebind<float, decltype(d64)> d32;
  const hn::Rebind<int32_t, decltype(d64)> di;
  const int lanes = static_cast<int>(hn::Lanes(d64));
  const auto index = hn::Mul(hn::Iota(di, 0), hn::Set(di, d));
  HWY_ALIGN double sums[8];
  int t = begin;
  for (; t + lanes <= end; t += lanes) {
    auto sum = hn::Zero(d64);
    const float* base = x + static_cast<int64_t>(t) * d;
    for (int k = 0; k < d; ++k) {
      const auto v = hn::PromoteTo(d64, hn::GatherIndex(d32, base + k, index));
      sum = hn::Add(sum, hn::Mul(v, v));
    }
    hn::Store(sum, d64, sums);
    for (int lane = 0; lane < lanes; ++lane) out[t + lane] = static_cast<Out>(sums[lane]);
  }
  for (; t < end; ++t) {
    double sum = 0;
    for (int k = 0; k < d; ++k) {
      const double v = static_cast<double>(x[static_cast<int64_t>(t) * d + k]);
      sum += v * v;
    }
    out[t] = static_cast<Out>(sum);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();
#endif  // KVIST_KERNELS_NORMS_INL_H_
