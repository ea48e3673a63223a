// SPDX-License-Identifier: MIT
// Dot products of rows with the columns of a packed panel on one SIMD target.
#if defined(KVIST_KERNELS_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVIST_KERNELS_PRODUCTS_INL_H_
#undef KVIST_KERNELS_PRODUCTS_INL_H_
#else
#define KVIST_KERNELS_PRODUCTS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "kvist/kernels/products.h"

HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using PanelFloats = hn::CappedTag<float, 16>;

// out[i * out_stride + j] = a_i . b_j, j in [0, 32), each summed in the order of the coordinates.
// panel [width][32], a kRows rows.
template <int kRows>
HWY_INLINE void panel_tile(const float* HWY_RESTRICT a, int64_t a_stride,
                           const float* HWY_RESTRICT panel, int width, float* HWY_RESTRICT out,
                           int64_t out_stride) {
  const PanelFloats df;
  const int lanes = static_cast<int>(hn::Lanes(df));
  for (int j = 0; j < kPanelRows; j += 2 * lanes) {
    hn::Vec<PanelFloats> low[kRows], high[kRows];
    for (int r = 0; r < kRows; ++r) low[r] = high[r] = hn::Zero(df);
    const float* HWY_RESTRICT b = panel + j;
    for (int c = 0; c < width; ++c, b += kPanelRows) {
      const auto b0 = hn::Load(df, b), b1 = hn::Load(df, b + lanes);
      for (int r = 0; r < kRows; ++r) {
        const auto x = hn::Set(df, a[r * a_stride + c]);
        low[r] = hn::MulAdd(x, b0, low[r]);
        high[r] = hn::MulAdd(x, b1, high[r]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      hn::StoreU(low[r], df, out + r * out_stride + j);
      hn::StoreU(high[r], df, out + r * out_stride + j + lanes);
    }
  }
}

// Two vectors a row must fit the register file beside two of the panel.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
inline constexpr int kTileRows = 12;
#else
inline constexpr int kTileRows = 6;
#endif

// The same for any number of rows.
HWY_INLINE void panel_products(const float* a, int rows, int64_t a_stride, const float* panel,
                               int width, float* out, int64_t out_stride) {
  int r = 0;
  for (; r + kTileRows <= rows; r += kTileRows)
    panel_tile<kTileRows>(a + r * a_stride, a_stride, panel, width, out + r * out_stride,
                          out_stride);
  for (; r + 3 <= rows; r += 3)
    panel_tile<3>(a + r * a_stride, a_stride, panel, width, out + r * out_stride, out_stride);
  for (; r < rows; ++r)
    panel_tile<1>(a + r * a_stride, a_stride, panel, width, out + r * out_stride, out_stride);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();

#endif  // include guard
