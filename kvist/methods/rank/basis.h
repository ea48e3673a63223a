// SPDX-License-Identifier: MIT
// What VarRate (arXiv:2607.15498) learns once for a model: per layer, the directions in which
// residuals are largest.
#pragma once

#include <cstdint>
#include <vector>

#include "kvist/methods/read/calibration.h"

namespace kvist {

// One layer: rows of decreasing eigenvalue, orthonormal up to the rounding of their format.
// Encoder and decoder use the same numbers.
struct RankBasisLayer {
  int n_rows = 0;                  // R <= D
  int width = 0;                   // D
  std::vector<float> rows;         // [R][D], order of z as in RankedCode
  std::vector<float> eigenvalues;  // [R] of the mean second moment of residuals
  double residual_energy = 0;      // mean square length of a residual,
  double total_energy = 0;         // and of z itself, over the calibration texts

  const float* row(int j) const { return rows.data() + static_cast<int64_t>(j) * width; }
};

struct RankBasis {
  ReadSource source;  // the model and its RoPE
  int stride = 16;    // the anchors that residuals were taken from
  int neighbours = 4;
  double value_scale = 1;  // values are multiplied by it inside z
  int64_t residuals = 0;   // seen in each layer
  std::vector<RankBasisLayer> layers;
};

}  // namespace kvist
