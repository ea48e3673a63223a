// SPDX-License-Identifier: MIT
// Both passes are products of small matrices of which one triangle is formed: that of the moments
// is symmetric, that of the logits meets the same key on both sides.
#include "kvist/kernels/moments.h"

#include <algorithm>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvist/kernels/moments.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kvist/kernels/attend-inl.h"

#ifndef KVIST_KERNELS_MOMENTS_ONCE
#define KVIST_KERNELS_MOMENTS_ONCE
namespace kvist::kernels {
namespace {

constexpr int kMomentRows = 256;  // rows whose products are summed in fp32
constexpr int kPassRows = 64;     // rows that stay in the near cache while their products are made
constexpr int kMomentTile = 4;    // rows of the moments formed together; divides kPad
constexpr int kPad = 16;          // a block's rows are padded with zeros to a multiple
constexpr int kLogitTile = 6;     // rows of the quadratic form multiplied together

int padded(int d) { return (d + kPad - 1) / kPad * kPad; }

}  // namespace
}  // namespace kvist::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {
namespace {

// Adds products of columns [row, row + 4) and kColumns vectors from `column` on, over n rows of x.
template <int kColumns>
HWY_INLINE void moment_tile(const float* HWY_RESTRICT x, int n, int stride, int row, int column,
                            float* HWY_RESTRICT out) {
  const Floats df;
  Vec sum[kMomentTile][kColumns];
  for (int i = 0; i < kMomentTile; ++i)
    for (int j = 0; j < kColumns; ++j)
      sum[i][j] = hn::LoadU(df, out + (row + i) * stride + column + j * kLanes);
  for (int t = 0; t < n; ++t, x += stride) {
    Vec right[kColumns];
    for (int j = 0; j < kColumns; ++j) right[j] = hn::LoadU(df, x + column + j * kLanes);
    for (int i = 0; i < kMomentTile; ++i) {
      const Vec left = hn::Set(df, x[row + i]);
      for (int j = 0; j < kColumns; ++j) sum[i][j] = hn::MulAdd(left, right[j], sum[i][j]);
    }
  }
  for (int i = 0; i < kMomentTile; ++i)
    for (int j = 0; j < kColumns; ++j)
      hn::StoreU(sum[i][j], df, out + (row + i) * stride + column + j * kLanes);
}

// Adds the upper triangle of x x^T summed over n rows of `width` numbers, to [width][width].
HWY_INLINE void add_products(const float* x, int n, int width, float* products) {
  constexpr int kColumns = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64 ? 4 : 2;
  for (int row = 0; row < width; row += kMomentTile) {
    int c = row / kLanes * kLanes;
    for (; c + kColumns * kLanes <= width; c += kColumns * kLanes)
      moment_tile<kColumns>(x, n, width, row, c, products);
    for (; c + 2 * kLanes <= width; c += 2 * kLanes) moment_tile<2>(x, n, width, row, c, products);
    if (c < width) moment_tile<1>(x, n, width, row, c, products);
  }
}

// Adds the rows' sum, each column's in the order of the rows.
HWY_INLINE void add_rows(const float* x, int n, int width, double* sums) {
  const hn::CappedTag<double, 8> d64;
  const hn::Rebind<float, decltype(d64)> d32;
  const int lanes = static_cast<int>(hn::Lanes(d64));
  for (int c = 0; c < width; c += lanes) {
    auto sum = hn::LoadU(d64, sums + c);
    for (int t = 0; t < n; ++t)
      sum = hn::Add(sum, hn::PromoteTo(d64, hn::LoadU(d32, x + t * width + c)));
    hn::StoreU(sum, d64, sums + c);
  }
}

// n <= 256 rows of d numbers, `stride` apart; first and second as in add_moments. scratch
// [(64 + padded d) * padded d], whose columns past d are 0 and stay so; sums [padded d].
void BlockMoments(const float* x, int n, int64_t stride, int d, const float* shift, float* scratch,
                  double* sums, double* first, double* second) {
  const int width = padded(d);
  float* HWY_RESTRICT pass = scratch;
  float* HWY_RESTRICT products = scratch + kPassRows * width;
  std::fill_n(products, width * width, 0.0f);
  std::fill_n(sums, width, 0.0);
  for (int begin = 0; begin < n; begin += kPassRows) {
    const int rows = std::min(kPassRows, n - begin);
    for (int t = 0; t < rows; ++t)
      for (int c = 0; c < d; ++c) pass[t * width + c] = x[(begin + t) * stride + c] - shift[c];
    add_rows(pass, rows, width, sums);
    if (second != nullptr) add_products(pass, rows, width, products);
  }
  for (int c = 0; c < d; ++c) first[c] += sums[c];
  if (second == nullptr) return;
  for (int i = 0; i < d; ++i)
    for (int j = i; j < d; ++j) second[i * d + j] += static_cast<double>(products[i * width + j]);
}

// keys [n][d] of one block, n <= 64; scratch [d * 64 + 6 * 64].
void BlockLogits(const float* keys, int n, int d, const float* linear, const float* quadratic,
                 float* scratch, double* out) {
  float* columns = scratch;
  float* products = scratch + d * kBlock;
  columns_of_block(keys, 0, n, d, columns);
  const hn::CappedTag<double, 8> d64;
  const hn::Rebind<float, decltype(d64)> d32;
  const int lanes = static_cast<int>(hn::Lanes(d64));
  double sums[kBlock] = {};
  const auto half = hn::Set(d32, 0.5f);
  for (int c = 0; c < d; c += kLogitTile) {
    const int rows = std::min(kLogitTile, d - c);
    if (quadratic != nullptr) {
      score_rows<false>(columns + c * kBlock, d - c, quadratic, rows, products, kBlock);
      quadratic += rows * (d - c);
    }
    for (int t = 0; t < kBlock; t += lanes) {
      auto sum = hn::Zero(d32);
      for (int i = 0; i < rows; ++i) {
        auto factor = hn::Set(d32, linear[c + i]);
        if (quadratic != nullptr)
          factor = hn::MulAdd(half, hn::LoadU(d32, products + i * kBlock + t), factor);
        sum = hn::MulAdd(hn::LoadU(d32, columns + (c + i) * kBlock + t), factor, sum);
      }
      hn::StoreU(hn::Add(hn::LoadU(d64, sums + t), hn::PromoteTo(d64, sum)), d64, sums + t);
    }
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
  const auto width = static_cast<size_t>(padded(d));
  std::vector<float> scratch((kPassRows + width) * width);
  std::vector<double> sums(width);
  for (int begin = 0; begin < rows; begin += kMomentRows) {
    HWY_DYNAMIC_DISPATCH(BlockMoments)
    (x + begin * stride, std::min(kMomentRows, rows - begin), stride, d, shift, scratch.data(),
     sums.data(), first, second);
  }
}

QuadraticForm::QuadraticForm(const float* symmetric, int d) {
  rows_.reserve(static_cast<size_t>(d) * static_cast<size_t>(d + kLogitTile));
  for (int first = 0; first < d; first += kLogitTile) {
    for (int i = first; i < std::min(first + kLogitTile, d); ++i) {
      for (int j = first; j < d; ++j) {
        const float x = symmetric[i * d + j];
        rows_.push_back(j < i ? 0.0f : j == i ? x : 2 * x);
      }
    }
  }
}

void expected_logits(const float* keys, int n, int d, const float* linear,
                     const QuadraticForm* quadratic, double* out) {
  std::vector<float> scratch(static_cast<size_t>(d + kLogitTile) * kBlock);
  for (int begin = 0; begin < n; begin += kBlock) {
    HWY_DYNAMIC_DISPATCH(BlockLogits)
    (keys + static_cast<int64_t>(begin) * d, std::min(kBlock, n - begin), d, linear,
     quadratic == nullptr ? nullptr : quadratic->rows().data(), scratch.data(), out + begin);
  }
}

}  // namespace kvist::kernels
#endif
