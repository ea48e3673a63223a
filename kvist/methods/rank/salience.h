// SPDX-License-Identifier: MIT
// How much each coded token of a layer deserves: what the last queries attend to, what is rare, and
// the controls (VarRate, arXiv:2607.15498).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvist/methods/method.h"
#include "kvist/methods/rank/plan.h"

namespace kvist {

// Mean attention of the last plan.scoring_window queries and all query heads on each token before
// them: [n_tokens - scoring_window]. Softmax over all keys in fp32, means in fp64; with bf16_scores
// each weight is rounded to bf16 first. Throws Error(invalid_argument) where layer.q has fewer
// rows, Error(corrupt) where something is not finite.
std::vector<double> window_means(const LayerInput& layer, const RankPlan& plan);

// Of each coded token a number in [0, 1], larger for more rank: [coded]. Measured quantities are
// averaged over five neighbours where they are attention, then brought to [0, 1] by their least and
// largest over the coded tokens; where all are equal, all are 1. Coded tokens that the window's
// queries do not score, newer than its first, have 1.
//
//   coded            positions, ascending
//   residual_energy  [coded] squared length of each residual; only for norm, else empty
std::vector<double> salience(const LayerInput& layer, const RankPlan& plan,
                             std::span<const int32_t> coded,
                             std::span<const double> residual_energy);

// round(s * 2^24), half to even.
std::vector<uint32_t> quantized_salience(std::span<const double> salience);

}  // namespace kvist
