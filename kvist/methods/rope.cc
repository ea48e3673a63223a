// SPDX-License-Identifier: MIT
// Tables of cosines and sines.
#include "kvist/methods/rope.h"

#include <cmath>

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

PairRotation PairRotation::inverse() const {
  PairRotation r = *this;
  for (size_t f = 0; f < cosine.size(); ++f) {
    const double square = cosine[f] * cosine[f] + sine[f] * sine[f];
    r.cosine[f] = cosine[f] / square;
    r.sine[f] = -sine[f] / square;
  }
  return r;
}

}  // namespace kvist
