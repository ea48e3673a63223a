// SPDX-License-Identifier: MIT
// Packing, and the loop over panels.
#include "kvist/kernels/products.h"

#include <algorithm>

#include "kvist/kernels/attend_internal.h"
#include "kvist/kernels/products_tiles.h"

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

PackedRows::PackedRows(const float* rows, int n, int width, int64_t stride, Products products)
    : n_(n), width_(width) {
  if (products == Products::fast && internal::amx_allowed()) {
    tiles_ = Buffer<std::byte>(right_tiles_bytes(n, width));
    make_right_tiles(rows, n, width, stride, tiles_.data());
    return;
  }
  panels_ = Buffer<float>(static_cast<size_t>(padded()) * static_cast<size_t>(width));
  for (int i = 0; i < n; ++i) {
    float* out =
        panels_.data() + static_cast<int64_t>(i / kPanelRows) * width * kPanelRows + i % kPanelRows;
    for (int c = 0; c < width; ++c) out[int64_t{c} * kPanelRows] = rows[i * stride + c];
  }
}

double PackedRows::unit() const {
  return tiles() != nullptr ? tile_unit(width_) : (width_ + 1) * 0x1p-24;
}

DotProducts::DotProducts(const PackedRows& b) : b_(&b) {
  if (b.tiles() != nullptr) scratch_ = Buffer<std::byte>(tile_scratch_bytes(b.width()));
}

void DotProducts::operator()(const float* a, int rows, int64_t a_stride, int columns, float* out,
                             int64_t out_stride) noexcept {
  if (b_->tiles() == nullptr) {
    HWY_DYNAMIC_DISPATCH(Products)(a, rows, a_stride, b_, columns, out, out_stride);
    return;
  }
  const int whole = (columns + kPanelRows - 1) / kPanelRows * kPanelRows;
  for (int r = 0; r < rows; r += kTileRowsAtOnce) {
    tile_products(a + r * a_stride, std::min(kTileRowsAtOnce, rows - r), a_stride, b_->width(),
                  b_->tiles(), whole, out + r * out_stride, out_stride, scratch_.data());
  }
}

}  // namespace kvist::kernels
#endif
