// SPDX-License-Identifier: MIT
// How many coefficients VarRate (arXiv:2607.15498) may hand out in a layer: whole numbers only.
#pragma once

#include <cstdint>

#include "kvist/methods/rank/plan.h"

namespace kvist {

struct RankBudget {
  int stride = 0;         // as asked for, or wider; 0 without anchors
  int least_rank = 0;     // likewise, or lower
  int64_t exact = 0;      // tokens
  int64_t coded = 0;      // tokens; 0: everything stays as it is
  int64_t total = 0;      // B: coefficients that the share kept leaves beside exact tokens
  int64_t spendable = 0;  // of these no more than full rank everywhere takes
};

// For a layer of n_tokens vectors of `width` numbers and a basis of n_rows rows:
//
//   B = floor(keep * width * n_tokens) - exact * width
//
// where a plan is strict less 1/16 of the bits of metadata; and with rate=bytes, of kv_heads heads,
// the most whose bytes, metadata and quantiser scales charged at their largest, stay within the
// share of a 16-bit layer.
//
// Without anchors the first token and the window are exact. With basis=heads the least rank is 0.
// Where B is less than the least rank of all coded tokens, plan.infeasible decides. Throws
// Error(invalid_argument) with the numbers and the smallest share that works where that is `error`;
// where the least rank exceeds the basis; and Error(unsupported) for a layer of 2^39 numbers.
RankBudget rank_budget(const RankPlan& plan, int n_tokens, int width, int n_rows, int kv_heads = 1);

}  // namespace kvist
