// SPDX-License-Identifier: MIT
// Rotations of all positions of a prefix, for keys that are coded before RoPE (VarRate,
// arXiv:2607.15498).
#pragma once

#include <cstdint>

#include "kvist/core/buffer.h"
#include "kvist/methods/method.h"

namespace kvist {

// Angles in double, cosine and sine rounded to float once, applied with separate products and sums:
// turn() and turn_back() are the same orthogonal map in both directions, on every machine.
// A RoPE's magnitude stays in the keys, which are coded with it. Immutable; shared by all layers.
class RotationTable {
 public:
  RotationTable(const Rope& rope, int n_positions);

  int n_positions() const { return n_positions_; }
  // x [head_dim] of the key at `position`, in place.
  void turn(int position, float* x) const noexcept { apply(position, x, 1.0f); }
  void turn_back(int position, float* x) const noexcept { apply(position, x, -1.0f); }
  // [frequencies][2]: cosine and sine of a position.
  const float* row(int position) const {
    return table_.data() + static_cast<int64_t>(position) * n_frequencies_ * 2;
  }
  int n_frequencies() const { return n_frequencies_; }
  bool adjacent() const { return adjacent_; }  // pairs (2f, 2f + 1); else (f, f + frequencies)

 private:
  void apply(int position, float* x, float direction) const noexcept;

  Buffer<float> table_;
  int n_frequencies_ = 0;
  int n_positions_ = 0;
  bool adjacent_ = false;
};

}  // namespace kvist
