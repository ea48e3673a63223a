// SPDX-License-Identifier: MIT
// Dot products of many rows with many others, in fp32: the second set is packed once.
#pragma once

#include <cstdint>

#include "kvist/core/buffer.h"

namespace kvist::kernels {

inline constexpr int kPanelRows = 32;

// Rows as the products read them: panels of 32 rows, [width][32] each; the last is filled with
// zeros. Immutable once filled.
class PackedRows {
 public:
  // rows [n][width], `stride` apart.
  PackedRows(const float* rows, int n, int width, int64_t stride);

  int size() const { return n_; }
  int width() const { return width_; }
  int padded() const { return (n_ + kPanelRows - 1) / kPanelRows * kPanelRows; }
  const float* panel(int i) const {
    return panels_.data() + static_cast<int64_t>(i) * width_ * kPanelRows;
  }

 private:
  Buffer<float> panels_;
  int n_ = 0, width_ = 0;
};

// out[i * out_stride + j] = a_i . b_j for i < rows and j < columns rounded up to 32; each sum runs
// in the order of the coordinates.
//
//   a    rows of b.width() numbers, `a_stride` apart
//   out  out_stride >= columns rounded up to 32
void dot_products(const float* a, int rows, int64_t a_stride, const PackedRows& b, int columns,
                  float* out, int64_t out_stride) noexcept;

}  // namespace kvist::kernels
