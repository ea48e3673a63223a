// SPDX-License-Identifier: MIT
// A non-owning view of a strided array: a pointer, a shape and strides, outermost axis first. Goes
// by value.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <type_traits>

#include "kvist/core/error.h"

namespace kvist {

template <typename T, int Rank>
class TensorView {
 public:
  TensorView() = default;
  // A contiguous array in C order.
  TensorView(T* data, std::array<int64_t, Rank> shape) : data_(data), shape_(shape) {
    int64_t stride = 1;
    for (int axis = Rank - 1; axis >= 0; --axis) {
      strides_[axis] = stride;
      stride *= shape_[axis];
    }
  }
  TensorView(T* data, std::array<int64_t, Rank> shape, std::array<int64_t, Rank> strides)
      : data_(data), shape_(shape), strides_(strides) {}

  operator TensorView<const T, Rank>() const requires(!std::is_const_v<T>) {
    return {data_, shape_, strides_};
  }

  T* data() const { return data_; }
  int64_t dim(int axis) const { return shape_[axis]; }
  int64_t stride(int axis) const { return strides_[axis]; }  // in elements
  const std::array<int64_t, Rank>& shape() const { return shape_; }
  int64_t size() const {
    int64_t n = 1;
    for (int64_t s : shape_) n *= s;
    return n;
  }
  bool empty() const { return size() == 0; }

  template <typename... Index>
  T& operator()(Index... index) const {
    static_assert(sizeof...(Index) == Rank);
    const std::array<int64_t, Rank> at{static_cast<int64_t>(index)...};
    int64_t offset = 0;
    for (int axis = 0; axis < Rank; ++axis) offset += at[axis] * strides_[axis];
    return data_[offset];
  }

  // The view at `index` of the outermost axis.
  TensorView<T, Rank - 1> operator[](int64_t index) const requires(Rank > 1) {
    std::array<int64_t, Rank - 1> shape{}, strides{};
    for (int axis = 1; axis < Rank; ++axis) {
      shape[axis - 1] = shape_[axis];
      strides[axis - 1] = strides_[axis];
    }
    return {data_ + index * strides_[0], shape, strides};
  }

 private:
  T* data_ = nullptr;
  std::array<int64_t, Rank> shape_{};
  std::array<int64_t, Rank> strides_{};
};

}  // namespace kvist
