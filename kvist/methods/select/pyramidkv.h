// SPDX-License-Identifier: MIT
// How PyramidKV (arXiv:2406.02069) divides a budget over layers.
#pragma once

#include "kvist/core/ratio.h"

namespace kvist {

// Tokens that each head of layer `layer` of n_layers keeps of n, the window included: from much to
// little down the layers, beta saying how steep, in the doubles and order of the reference. Where
// the last layer could not hold more than the window, the same for all.
int pyramid_budget(int n, Ratio removed, int window, int64_t beta, int layer, int n_layers);

}  // namespace kvist
