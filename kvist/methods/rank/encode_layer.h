// SPDX-License-Identifier: MIT
// One layer of a prefix as VarRate (arXiv:2607.15498) codes it.
#pragma once

#include "kvist/methods/method.h"
#include "kvist/methods/rank/basis.h"
#include "kvist/methods/rank/layer_code.h"
#include "kvist/methods/rank/plan.h"
#include "kvist/methods/rank/rotation_table.h"

namespace kvist {

// Memory that one layer after the other works in.
struct EncodeScratch {
  Buffer<float> z;
};

// Anchors, residuals, salience, ranks and coefficients. `layer.q` holds plan.window_queries() rows;
// `basis` is the layer's, of width 2 kv_heads head_dim, in the coordinates of plan.value_scale;
// `rotation` covers n_tokens. With basis=heads a layer takes its part of a budget that all layers
// share, layer.n_layers times its own.
//
// Throws Error(invalid_argument) for a budget that does not suffice (rank_budget) or a basis of
// another width or kind, Error(corrupt) naming layer, head and position of a number that is not
// finite.
//
// 2 |coded| |anchors| D + 2 D sum of ranks operations, 2 |coded| D R where energies decide; memory
// two copies of the layer in fp32.
RankedCode encode_layer(const LayerInput& layer, const RankBasisLayer& basis, const RankPlan& plan,
                        const RotationTable& rotation, ThreadPool& pool,
                        EncodeScratch* scratch = nullptr);

}  // namespace kvist
