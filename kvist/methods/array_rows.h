// SPDX-License-Identifier: MIT
// Keys or values that lie in one float array, as a selector reads them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kvist/methods/method.h"

namespace kvist {

// Does not own `data`: [tokens][kv_heads][head_dim].
class ArrayRows final : public HeadRows {
 public:
  ArrayRows(const float* data, int kv_heads, int head_dim)
      : data_(data), kv_heads_(kv_heads), head_dim_(head_dim) {}

  void read(int head, int begin, int end, float* out) const override {
    for (int t = begin; t < end; ++t, out += head_dim_) {
      std::copy_n(data_ + (int64_t{t} * kv_heads_ + head) * head_dim_, head_dim_, out);
    }
  }

 private:
  const float* data_;
  int kv_heads_, head_dim_;
};

}  // namespace kvist
