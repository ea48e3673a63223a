// SPDX-License-Identifier: MIT
// Packing, and the loop over panels.
#include "kvist/kernels/products.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvist/kernels/products.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kvist/kernels/products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {
namespace {

void Products(const float* a, int rows, int64_t a_stride, const PackedRows* b, int columns,
              float* out, int64_t out_stride) {
  for (int j = 0; j < columns; j += kPanelRows)
    panel_products(a, rows, a_stride, b->panel(j / kPanelRows), b->width(), out + j, out_stride);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvist::kernels {
namespace {
HWY_EXPORT(Products);
}  // namespace

PackedRows::PackedRows(const float* rows, int n, int width, int64_t stride) : n_(n), width_(width) {
  panels_ = Buffer<float>(static_cast<size_t>(padded()) * static_cast<size_t>(width));
  for (int i = 0; i < n; ++i) {
    float* out =
        panels_.data() + static_cast<int64_t>(i / kPanelRows) * width * kPanelRows + i % kPanelRows;
    for (int c = 0; c < width; ++c) out[int64_t{c} * kPanelRows] = rows[i * stride + c];
  }
}

void dot_products(const float* a, int rows, int64_t a_stride, const PackedRows& b, int columns,
                  float* out, int64_t out_stride) noexcept {
  HWY_DYNAMIC_DISPATCH(Products)(a, rows, a_stride, &b, columns, out, out_stride);
}

}  // namespace kvist::kernels
#endif
