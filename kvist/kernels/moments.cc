// SPDX-License-Identifier: MIT
// Both passes are products of small matrices: 64 rows at a time through the tiles of attention.
#include "kvist/kernels/moments.h"

#include <algorithm>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvist/kernels/moments.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kvist/kernels/attend-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {
namespace {

constexpr int kTile = 6;  // rows of the result formed together

// Rows [0, n) of x, n <= 64, as [d][64]; 0 past n.
void transpose(const float* x, int n, int d, float* HWY_RESTRICT out) {
  for (int c = 0; c < d; ++c) {
    for (int t = 0; t < kBlock; ++t) out[c * kBlock + t] = t < n ? x[t * d + c] : 0.0f;
  }
}

// x [n][d] of one block, n <= 64; scratch [d * (64 + d)].
void BlockMoments(const float* x, int n, int d, float* scratch, double* first, double* second) {
  float* columns = scratch;
  float* products = scratch + d * kBlock;
  transpose(x, n, d, columns);
  for (int c = 0; c < d; ++c) {
    double sum = 0;
    for (int t = 0; t < n; ++t) sum += static_cast<double>(columns[c * kBlock + t]);
    first[c] += sum;
  }
  if (second == nullptr) return;
  std::fill(products, products + d * d, 0.0f);
  for (int c = 0; c < d; c += kTile) {
    value_rows(x, d, n, columns + c * kBlock, kBlock, std::min(kTile, d - c), products + c * d);
  }
  for (int i = 0; i < d * d; ++i) second[i] += static_cast<double>(products[i]);
}

// keys [n][d] of one block, n <= 64; scratch [d * 128].
void BlockLogits(const float* keys, int n, int d, const float* linear, const float* quadratic,
                 float* scratch, double* out) {
  float* columns = scratch;
  float* products = scratch + d * kBlock;  // [d][64], quadratic k
  transpose(keys, n, d, columns);
  const hn::CappedTag<double, 8> d64;
  const hn::Rebind<float, decltype(d64)> d32;
  const int lanes = static_cast<int>(hn::Lanes(d64));
  if (quadratic != nullptr) {
    for (int c = 0; c < d; c += kTile) {
      score_rows(columns, d, quadratic + c * d, std::min(kTile, d - c), products + c * kBlock,
                 kBlock);
    }
  }
  double sums[kBlock];
  const auto half = hn::Set(d64, 0.5);
  for (int t = 0; t < kBlock; t += lanes) {
    auto sum = hn::Zero(d64);
    for (int c = 0; c < d; ++c) {
      const auto x = hn::PromoteTo(d64, hn::LoadU(d32, columns + c * kBlock + t));
      auto y = hn::Set(d64, static_cast<double>(linear[c]));
      if (quadratic != nullptr) {
        const auto p = hn::PromoteTo(d64, hn::LoadU(d32, products + c * kBlock + t));
        y = hn::Add(y, hn::Mul(half, p));
      }
      sum = hn::Add(sum, hn::Mul(x, y));
    }
    hn::StoreU(sum, d64, sums + t);
  }
  std::copy(sums, sums + n, out);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvist::kernels {
namespace {
HWY_EXPORT(BlockMoments);
HWY_EXPORT(BlockLogits);
}  // namespace

void add_moments(const float* x, int rows, int64_t stride, int d, const float* shift, double* first,
                 double* second) {
  const auto width = static_cast<size_t>(d);
  std::vector<float> block(kBlock * width), scratch(width * (kBlock + width));
  for (int begin = 0; begin < rows; begin += kBlock) {
    const int n = std::min(kBlock, rows - begin);
    for (int t = 0; t < n; ++t) {
      const float* row = x + (begin + t) * stride;
      for (int c = 0; c < d; ++c) block[static_cast<size_t>(t * d + c)] = row[c] - shift[c];
    }
    HWY_DYNAMIC_DISPATCH(BlockMoments)(block.data(), n, d, scratch.data(), first, second);
  }
}

void expected_logits(const float* keys, int n, int d, const float* linear, const float* quadratic,
                     double* out) {
  std::vector<float> scratch(static_cast<size_t>(d) * 2 * kBlock);
  for (int begin = 0; begin < n; begin += kBlock) {
    HWY_DYNAMIC_DISPATCH(BlockLogits)
    (keys + static_cast<int64_t>(begin) * d, std::min(kBlock, n - begin), d, linear, quadratic,
     scratch.data(), out + begin);
  }
}

}  // namespace kvist::kernels
#endif
