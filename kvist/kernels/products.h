// SPDX-License-Identifier: MIT
// Dot products of many rows with many others: the second set is packed once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvist/core/buffer.h"

namespace kvist::kernels {

inline constexpr int kPanelRows = 32;

// Rows as the products read them: panels of 32 rows, [width][32] each, the last filled with zeros;
// or, on AMX, tiles of the rows as two bf16 parts. Immutable.
class PackedRows {
 public:
  // fp32: products and sums in fp32, each sum in the order of the coordinates. fast: whatever this
  // CPU does fastest with an error near that of fp32.
  enum class Products { fp32, fast };
  // rows [n][width], `stride` apart.
  PackedRows(const float* rows, int n, int width, int64_t stride,
             Products products = Products::fp32);

  int size() const { return n_; }
  int width() const { return width_; }
  int padded() const { return (n_ + kPanelRows - 1) / kPanelRows * kPanelRows; }
  // A product with a is off by at most unit() |a| |b|.
  double unit() const;

  const float* panel(int i) const {
    return panels_.data() + static_cast<int64_t>(i) * width_ * kPanelRows;
  }
  const std::byte* tiles() const { return tiles_.empty() ? nullptr : tiles_.data(); }

 private:
  Buffer<float> panels_;  // one of the two
  Buffer<std::byte> tiles_;
  int n_ = 0, width_ = 0;
};

// Products with packed rows, which outlive it. Each thread has its own.
class DotProducts {
 public:
  explicit DotProducts(const PackedRows& b);

  // out[i * out_stride + j] = a_i . b_j for i < rows and j < columns rounded up to 32.
  //
  //   a    rows of b.width() numbers, `a_stride` apart
  //   out  out_stride >= columns rounded up to 32
  void operator()(const float* a, int rows, int64_t a_stride, int columns, float* out,
                  int64_t out_stride) noexcept;

 private:
  const PackedRows* b_;
  Buffer<std::byte> scratch_;
};

}  // namespace kvist::kernels
