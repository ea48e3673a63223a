// SPDX-License-Identifier: MIT
// How a layer's slots are divided over its heads: half uniform, half by a competition of all heads
// for the same slots (TwinKV, arXiv:2608.27128, after Ada-KV, arXiv:2407.11550).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvist/core/tensor.h"

namespace kvist {

// How many of the heads * slots largest z lie in each head. Equal z: the smaller head first, then
// the smaller position; NaN counts as 0. Every z zero: `slots` each. O(heads * n).
//
//   z      [heads, n] capacity signal of the positions that compete
//   slots  per head on average, 0 <= slots <= n
std::vector<int> global_counts(TensorView<const float, 2> z, int slots);

// floor((g + slots) / 2) each, and one more for the first half of the heads where that leaves a
// remainder: the sum is exactly heads * slots. g sums to heads * slots.
std::vector<int> mixed_quotas(std::span<const int> g, int slots);

}  // namespace kvist
