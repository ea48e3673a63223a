// SPDX-License-Identifier: MIT
// The picture of a selection: position across, layer-head down, kept dark.
#pragma once

#include <string>

#include "kvist/cli/plot.h"
#include "kvist/cli/survival.h"

namespace kvist {

// A self-contained SVG of some hundred KB. A column is one position, or from 1,281 tokens up one of
// 640 equal parts of the prompt; a cell's shade is one of six, by the share of its tokens that the
// head keeps, and only cells that are kept or dropped as a whole have the outer two.
std::string survival_svg(const Survival& survival, const PictureText& text);

// The picture, and under it the document with each token shaded by the share of layer-heads that
// keep it.
std::string survival_html(const Survival& survival, const PictureText& text);

}  // namespace kvist
