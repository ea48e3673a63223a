// SPDX-License-Identifier: MIT
// A Fisher-style signal of a token, as VarRate (arXiv:2607.15498, A.18) describes one in words.
#pragma once

#include "kvist/methods/method.h"

namespace kvist {

// [kv_heads][n_tokens]: sum over the last `window` queries q and the heads h of a group of
// a^2 |W_h (v - o)|^2, a the attention of q to the token, v its value, o the output of the head,
// W_h its columns of the output projection. In double; the same bits for any number of threads.
// Throws invalid_argument where the layer has no output projection.
Scores fisher_signal(const LayerInput& layer, int window);

}  // namespace kvist
