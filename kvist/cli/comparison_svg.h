// SPDX-License-Identifier: MIT
// A comparison as a picture, and as a page with the picture, the table and the answers.
#pragma once

#include <string>

#include "kvist/cli/comparison.h"

namespace kvist {

// A line for each method, as long as its divergence on a logarithmic scale; the nearest first, with
// factor, agreement and cost beside it.
std::string comparison_svg(const Comparison& comparison);
std::string comparison_html(const Comparison& comparison);

}  // namespace kvist
