// SPDX-License-Identifier: MIT
#include "kvist/methods/rank/rotation_table.h"

#include <cmath>

namespace kvist {

RotationTable::RotationTable(const Rope& rope, int n_positions)
    : n_frequencies_(static_cast<int>(rope.frequencies.size())),
      n_positions_(n_positions),
      adjacent_(rope.adjacent) {
  table_ = Buffer<float>(static_cast<size_t>(n_positions) * rope.frequencies.size() * 2);
  float* out = table_.data();
  for (int position = 0; position < n_positions; ++position) {
    for (const double frequency : rope.frequencies) {
      const double angle = position * frequency;
      *out++ = static_cast<float>(std::cos(angle));
      *out++ = static_cast<float>(std::sin(angle));
    }
  }
}

void RotationTable::apply(int position, float* x, float direction) const noexcept {
  const float* row = this->row(position);
  for (int f = 0; f < n_frequencies_; ++f) {
    float& a = x[adjacent_ ? 2 * f : f];
    float& b = x[adjacent_ ? 2 * f + 1 : f + n_frequencies_];
    const float c = row[2 * f], s = direction * row[2 * f + 1];
    const float ac = a * c, bs = b * s, bc = b * c, as = a * s;
    a = ac - bs;
    b = bc + as;
  }
}

}  // namespace kvist
