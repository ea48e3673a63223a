// SPDX-License-Identifier: MIT
// The split of a row, block by block.
#include "kvist/model/activation.h"

#include <algorithm>
#include <cmath>

#include "kvist/core/half.h"

namespace kvist {

void split_activation(const float* x, int64_t n, float* high, float* low) {
  constexpr int kBlock = 32;  // of q8_0 and q8_1
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    float most = 0;
    for (int i = 0; i < kBlock; ++i) most = std::max(most, std::fabs(x[begin + i]));
    const float step = to_float(to_f16(most / 127.0f));
    const float inverse = step > 0 ? 1.0f / step : 0.0f;
    for (int i = 0; i < kBlock; ++i) {
      const float k = std::clamp(std::nearbyint(x[begin + i] * inverse), -127.0f, 127.0f);
      high[begin + i] = k * step;
      low[begin + i] = x[begin + i] - k * step;
    }
  }
}

}  // namespace kvist
