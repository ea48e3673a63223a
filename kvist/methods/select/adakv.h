// SPDX-License-Identifier: MIT
// How Ada-KV (arXiv:2407.11550) lets the heads of a layer compete for its slots.
#pragma once

#include "kvist/core/ratio.h"
#include "kvist/methods/method.h"

namespace kvist {

// The best of a head that stay in any case: trunc(n_kept * safeguard) in double, at least one where
// safeguard > 0.
int safe_tokens(int n_kept, Ratio safeguard);

// Keeps the heads * n_kept best of all heads together, the safe ones of each head among them.
Selection keep_best_of_all(const LayerInput& layer, Scores scores, int n_kept, Ratio safeguard,
                           bool explain);

}  // namespace kvist
