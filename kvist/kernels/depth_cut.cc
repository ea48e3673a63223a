// SPDX-License-Identifier: MIT
// Integer compares on the bits of weights, a vector of items at a time.
#include "kvist/kernels/depth_cut.h"

#undef HWY_WANT_AVX3_DL  // nothing here gains from it over avx3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvist/kernels/depth_cut.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Ints = hn::CappedTag<int32_t, 16>;
constexpr int kN = static_cast<int>(hn::MaxLanes(Ints()));
constexpr int32_t kInfinityBits = 0x7F800000;

HWY_INLINE auto load_bits(const float* p) {
  return hn::BitCast(Ints(), hn::LoadU(hn::RebindToFloat<Ints>(), p));
}

// each(bits) sees every whole vector, one(bits) every weight of the rest.
template <typename Each, typename One>
HWY_INLINE WeightRange range_with(const float* weights, int64_t n, const Each& each,
                                  const One& one) {
  const Ints d;
  const auto zero = hn::Zero(d), infinity = hn::Set(d, kInfinityBits);
  const auto minus_zero = hn::Set(d, std::numeric_limits<int32_t>::min());
  WeightRange out;
  auto least = infinity, most = zero;
  int64_t i = 0;
  for (; i + kN <= n; i += kN) {
    const auto bits = load_bits(weights + i);
    const auto positive = hn::Gt(bits, zero);
    const auto bad = hn::Or(hn::Gt(bits, hn::Set(d, kInfinityBits - 1)),
                            hn::And(hn::Lt(bits, zero), hn::Ne(bits, minus_zero)));
    out.valid &= hn::AllFalse(d, bad);
    out.positive += static_cast<int64_t>(hn::CountTrue(d, positive));
    least = hn::Min(least, hn::IfThenElse(positive, bits, infinity));
    most = hn::Max(most, bits);
    each(bits);
  }
  out.least = hn::GetLane(hn::MinOfLanes(d, least));
  out.most = hn::GetLane(hn::MaxOfLanes(d, most));
  for (; i < n; ++i) {
    int32_t bits;
    std::memcpy(&bits, weights + i, sizeof(bits));
    out.valid &= bits < kInfinityBits && (bits >= 0 || bits == std::numeric_limits<int32_t>::min());
    out.positive += bits > 0;
    out.least = std::min(out.least, bits > 0 ? bits : kInfinityBits);
    out.most = std::max(out.most, bits);
    one(bits);
  }
  return out;
}

WeightRange range(const float* weights, int64_t n) {
  return range_with(
      weights, n, [](auto) HWY_ATTR {}, [](int32_t) {});
}

WeightRange count_bins(const float* weights, int64_t n, uint32_t* bins) {
  // In two loops, or the compiler takes each bin out of its vector instead of storing all.
  constexpr int64_t kAtOnce = 512;
  HWY_ALIGN int32_t bin[kAtOnce];
  WeightRange out;
  for (int64_t at = 0; at < n; at += kAtOnce) {
    const int64_t m = std::min(kAtOnce, n - at);
    int32_t* to = bin;
    const WeightRange range = range_with(
        weights + at, m,
        [&](auto bits) HWY_ATTR {
          hn::StoreU(hn::ShiftRight<kWeightBinShift>(hn::Max(bits, hn::Zero(Ints()))), Ints(), to);
          to += kN;
        },
        [&](int32_t bits) { *to++ = std::max(bits, 0) >> kWeightBinShift; });
    out.valid &= range.valid;
    out.positive += range.positive;
    out.least = std::min(out.least, range.least);
    out.most = std::max(out.most, range.most);
    int64_t i = 0;
    for (; i + 1 < m; i += 2) {
      ++bins[2 * bin[i]];
      ++bins[2 * bin[i + 1] + 1];
    }
    if (i < m) ++bins[2 * bin[i]];
  }
  return out;
}

DepthSplit split(const float* weights, int64_t n, const int32_t* above, const int32_t* below,
                 int min_depth, uint8_t* depths, int32_t* items) {
  DepthSplit out;
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Ints d;
  const hn::Rebind<uint8_t, Ints> d8;
  const auto one = hn::Set(d, 1), base = hn::Set(d, min_depth);
  auto total = hn::Zero(d);
  // Here, since a store to `depths` may be one to a threshold for all the compiler knows.
  hn::Vec<Ints> under_above[8];
  for (int level = 0; level < 8; ++level) under_above[level] = hn::Set(d, above[level] - 1);
#if HWY_TARGET <= HWY_AVX3
  HWY_ALIGN int32_t levels[kN];
  std::fill_n(levels, kN, std::numeric_limits<int32_t>::max());
  for (int level = 0, n_used = 0; level < 8; ++level)
    if (below[level] != kInfinityBits) levels[n_used++] = below[level] - 1;
  const auto next = hn::Load(d, levels);
#else
  hn::Vec<Ints> under_below[8];
  for (int level = 0; level < 8; ++level) under_below[level] = hn::Set(d, below[level] - 1);
#endif
  for (; i + kN <= n; i += kN) {
    const auto bits = load_bits(weights + i);
    const auto count = [&](const hn::Vec<Ints>* under) HWY_ATTR {
      auto n = hn::Zero(d);
      for (int level = 0; level < 8; ++level) {
        const auto reached = hn::Gt(bits, under[level]);
#if HWY_TARGET <= HWY_AVX3
        n.raw = _mm512_mask_add_epi32(n.raw, reached.raw, n.raw, one.raw);
#else
        n = hn::Sub(n, hn::VecFromMask(d, reached));
#endif
      }
      return n;
    };
    const auto sure = count(under_above);
#if HWY_TARGET <= HWY_AVX3
    // Thresholds rise with the level, so that the next one alone decides.
    const auto open = hn::Gt(bits, hn::TableLookupLanes(next, hn::IndicesFromVec(d, sure)));
#else
    const auto open = hn::Gt(count(under_below), sure);
#endif
    total = hn::Add(total, sure);
    hn::StoreU(hn::DemoteTo(d8, hn::Add(sure, base)), d8, depths + i);
    if (!hn::AllFalse(d, open)) {
      const auto index = hn::Iota(d, static_cast<int32_t>(i));
      out.items +=
          static_cast<int64_t>(hn::CompressBlendedStore(index, open, d, items + out.items));
    }
  }
  out.levels = hn::GetLane(hn::SumOfLanes(d, total));
#endif
  for (; i < n; ++i) {
    int32_t bits;
    std::memcpy(&bits, weights + i, sizeof(bits));
    int sure = 0, reach = 0;
    for (int level = 0; level < 8; ++level) {
      sure += bits >= above[level];
      reach += bits >= below[level];
    }
    out.levels += sure;
    depths[i] = static_cast<uint8_t>(min_depth + sure);
    items[out.items] = static_cast<int32_t>(i);
    out.items += reach > sure;
  }
  return out;
}

}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvist::kernels {
HWY_EXPORT(range);
HWY_EXPORT(count_bins);
HWY_EXPORT(split);

WeightRange weight_range(const float* weights, int64_t n) noexcept {
  return HWY_DYNAMIC_DISPATCH(range)(weights, n);
}

WeightRange count_weights(const float* weights, int64_t n, uint32_t* bins) noexcept {
  return HWY_DYNAMIC_DISPATCH(count_bins)(weights, n, bins);
}

DepthSplit split_depths(const float* weights, int64_t n, const int32_t* above, const int32_t* below,
                        int min_depth, uint8_t* depths, int32_t* items) noexcept {
  return HWY_DYNAMIC_DISPATCH(split)(weights, n, above, below, min_depth, depths, items);
}

}  // namespace kvist::kernels
#endif  // HWY_ONCE
