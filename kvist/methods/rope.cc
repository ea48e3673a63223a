// SPDX-License-Identifier: MIT
// Tables of cosines and sines.
#include "kvist/methods/rope.h"

#include <algorithm>
#include <cmath>

#include "kvist/kernels/ranked.h"

namespace kvist {

PairRotation PairRotation::at(const Rope& rope, int64_t position) {
  return mean(rope, position, 1);
}

PairRotation PairRotation::mean(const Rope& rope, int64_t begin, int64_t count) {
  PairRotation r;
  r.adjacent = rope.adjacent;
  for (double frequency : rope.frequencies) {
    double cosine = 0, sine = 0;
    for (int64_t t = begin; t < begin + count; ++t) {
      cosine += std::cos(static_cast<double>(t) * frequency);
      sine += std::sin(static_cast<double>(t) * frequency);
    }
    r.cosine.push_back(rope.magnitude * cosine / static_cast<double>(count));
    r.sine.push_back(rope.magnitude * sine / static_cast<double>(count));
  }
  return r;
}

PairRotation PairRotation::shift(const Rope& rope, int64_t by) {
  Rope plain = rope;
  plain.magnitude = 1;
  return at(plain, by);
}

PairRotation PairRotation::inverse() const {
  PairRotation r = *this;
  for (size_t f = 0; f < cosine.size(); ++f) {
    const double square = cosine[f] * cosine[f] + sine[f] * sine[f];
    r.cosine[f] = cosine[f] / square;
    r.sine[f] = -sine[f] / square;
  }
  return r;
}

BackRotation::BackRotation(const Rope& rope, int first, int count)
    : n_frequencies_(static_cast<int>(rope.frequencies.size())), adjacent_(rope.adjacent) {
  for (int t = first; t < first + count; ++t) {
    const PairRotation back = PairRotation::at(rope, t).inverse();
    for (size_t f = 0; f < back.cosine.size(); ++f) {
      table_.push_back(static_cast<float>(back.cosine[f]));
      table_.push_back(static_cast<float>(back.sine[f]));
    }
  }
}

void BackRotation::apply(TensorView<const float, 3> q, float* out, ThreadPool& pool) const {
  const auto heads = static_cast<int>(q.dim(1)), head_dim = static_cast<int>(q.dim(2));
  const int64_t row = q.dim(1) * q.dim(2);
  constexpr int64_t kRows = 16;  // of a worker at a time, still in its cache when they are turned
  pool.parallel_for((q.dim(0) + kRows - 1) / kRows, [&](int64_t chunk) {
    const int64_t begin = chunk * kRows, n = std::min(kRows, q.dim(0) - begin);
    const float* turns[kRows];
    for (int64_t t = 0; t < n; ++t) {
      std::copy_n(q.data() + (begin + t) * q.stride(0), row, out + (begin + t) * row);
      turns[t] = table_.data() + (begin + t) * 2 * n_frequencies_;
    }
    kernels::turn_rows(out + begin * row, row, static_cast<int>(n), heads, head_dim, turns,
                       {.n_frequencies = n_frequencies_, .adjacent = adjacent_});
  });
}

}  // namespace kvist
