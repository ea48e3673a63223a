// SPDX-License-Identifier: MIT
// A comparison as a picture, and as a page with the picture, the table and the answers.
#pragma once

#include <string>

#include "kvist/cli/comparison.h"

namespace kvist {

// Factor to the right, divergence upwards on a logarithmic scale: the lower right is the place to
// be.
std::string comparison_svg(const Comparison& comparison);
std::string comparison_html(const Comparison& comparison);

}  // namespace kvist
