// SPDX-License-Identifier: MIT
// A small number as a constant, for loops whose sums lie in registers.
#if defined(KVIST_KERNELS_CONSTANT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVIST_KERNELS_CONSTANT_INL_H_
#undef KVIST_KERNELS_CONSTANT_INL_H_
#else
#define KVIST_KERNELS_CONSTANT_INL_H_
#endif

#include <hwy/highway.h>

#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {

// fn(std::integral_constant<int, n>()) for n in 1 .. kMost.
template <int kMost, typename Fn>
HWY_INLINE void with_constant(int n, const Fn& fn) {
  if constexpr (kMost > 1) {
    if (n < kMost) return with_constant<kMost - 1>(n, fn);
  }
  fn(std::integral_constant<int, kMost>());
}

}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
