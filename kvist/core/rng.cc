// SPDX-License-Identifier: MIT
// Gaussian draws.
#include "kvist/core/rng.h"

#include <cmath>
#include <numbers>

namespace kvist {

double Rng::gaussian() {
  if (has_spare_) {
    has_spare_ = false;
    return spare_;
  }
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
  const double angle = 2.0 * std::numbers::pi * uniform();
  spare_ = radius * std::sin(angle);
  has_spare_ = true;
  return radius * std::cos(angle);
}

}  // namespace kvist
