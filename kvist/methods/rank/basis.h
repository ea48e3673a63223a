// SPDX-License-Identifier: MIT
// What VarRate (arXiv:2607.15498) learns once for a model: per layer, the directions in which
// residuals are largest.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvist/core/half.h"
#include "kvist/methods/rank/plan.h"
#include "kvist/methods/read/calibration.h"

namespace kvist {

// One layer: rows of decreasing eigenvalue, or of decreasing share of their group's energy where
// there are groups, orthonormal up to the rounding of their format.
// Encoder and decoder use the same numbers.
struct RankBasisLayer {
  int n_rows = 0;                  // R <= D
  int width = 0;                   // D
  std::vector<float> rows;         // [R][D], order of z as in RankedCode
  std::vector<float> eigenvalues;  // [R] of the mean second moment of what is coded
  // [D] of the covariance of z itself: what the anchors gain can be seen beside it.
  std::vector<float> raw_eigenvalues;
  double residual_energy = 0;  // mean square length of a residual,
  double total_energy = 0;     // and of z itself, over the calibration texts

  // Of RankPlan::Basis::heads alone: rows come in portions, each of one group of heads and of keys
  // or values; every row is 0 outside its group.
  struct Portion {
    int rows = 0;
    double worth = 0;     // share of the group's energy that one of them holds, of their mean
    int64_t reached = 0;  // rows of all layers up to these, by falling worth
  };
  std::vector<Portion> portions;
  // How many leading rows of this layer belong to the `total` most valuable of all layers, in whole
  // portions.
  int rows_within(int64_t total) const;

  const float* row(int j) const { return rows.data() + static_cast<int64_t>(j) * width; }
};

struct RankBasis {
  RankPlan::Basis kind = RankPlan::Basis::residual;
  ReadSource source;  // the model and its RoPE
  int stride = 16;    // the anchors that residuals were taken from
  int neighbours = 4;
  double value_scale = 1;       // values are multiplied by it inside z
  int64_t residuals = 0;        // seen in each layer
  Scalar format = Scalar::f32;  // that rows are stored in: f16 where the basis is large
  std::vector<RankBasisLayer> layers;

  // Throws invalid_argument naming both sides where this was measured on another model or RoPE,
  // with values scaled otherwise, or is of another kind than the plan asks for.
  void check_fits(const ReadSource& other, const RankPlan& plan) const;
  uint64_t charged_bytes() const;  // rows and eigenvalues as stored
};

const char* name(RankPlan::Basis kind);  // as the option says it

// How many leading eigenvalues hold `share` of their sum.
int rank_of_energy(std::span<const float> eigenvalues, double share);

// Files: "KVISTRKB", version, fields, XXH64; little endian. `save` throws io; `load` not_found or
// io, and corrupt naming file, field, found and expected.
void save(const RankBasis& basis, const std::string& path);
RankBasis load_basis(const std::string& path);
// The same on bytes; `name` stands for the file in messages.
std::vector<uint8_t> encode(const RankBasis& basis);
RankBasis decode_basis(std::span<const uint8_t> bytes, const std::string& name);

}  // namespace kvist
