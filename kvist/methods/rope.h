// SPDX-License-Identifier: MIT
// Rotations by position, and their mean over many positions.
#pragma once

#include <span>
#include <vector>

#include "kvist/methods/method.h"

namespace kvist {

// The rotation of one position, or the mean of several: of each pair (a, b),
// a' = cosine a - sine b, b' = sine a + cosine b. Channels beyond the pairs stay.
struct PairRotation {
  std::vector<double> cosine, sine;  // [frequencies]
  bool adjacent = false;

  static PairRotation at(const Rope& rope, int64_t position);
  // Over positions [begin, begin + count): no longer a rotation, since lengths shrink.
  static PairRotation mean(const Rope& rope, int64_t begin, int64_t count);
  // From any position to the one `by` further; a magnitude that a vector has already stays its own.
  static PairRotation shift(const Rope& rope, int64_t by);
  // What takes it back: exact for the rotation of one position.
  PairRotation inverse() const;

  // x [head_dim], `stride` numbers apart.
  template <typename T>
  void apply(T* x, int64_t stride = 1) const {
    const auto half = static_cast<int64_t>(cosine.size());
    for (int64_t f = 0; f < half; ++f) {
      T& a = x[(adjacent ? 2 * f : f) * stride];
      T& b = x[(adjacent ? 2 * f + 1 : f + half) * stride];
      const double c = cosine[static_cast<size_t>(f)], s = sine[static_cast<size_t>(f)];
      const double turned = c * static_cast<double>(a) - s * static_cast<double>(b);
      b = static_cast<T>(s * static_cast<double>(a) + c * static_cast<double>(b));
      a = static_cast<T>(turned);
    }
  }
};

// What turns queries of positions [first, first + count) back to what they were before RoPE, in
// fp32.
class BackRotation {
 public:
  BackRotation(const Rope& rope, int first, int count);
  // q [count, heads, head_dim], rows of a position together; out of the same shape.
  void apply(TensorView<const float, 3> q, float* out, ThreadPool& pool) const;

 private:
  int n_frequencies_ = 0;
  bool adjacent_ = false;
  std::vector<float> table_;  // [positions][frequencies][2]: cosine and sine
};

}  // namespace kvist
