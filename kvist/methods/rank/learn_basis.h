// SPDX-License-Identifier: MIT
// Learns a basis from the residuals of held-out texts (VarRate, arXiv:2607.15498): second moments
// as texts go by, eigenvectors at the end.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kvist/methods/method.h"
#include "kvist/methods/rank/basis.h"
#include "kvist/methods/rank/plan.h"
#include "kvist/methods/rank/rotation_table.h"

namespace kvist {

// Of vectors x [width]: products of blocks of 256 vectors are summed in fp32, blocks in fp64, so
// the result depends on where calls cut the vectors, but not on threads.
struct SecondMoment {
  explicit SecondMoment(int n) : width(n), sum(static_cast<size_t>(n) * static_cast<size_t>(n)) {}

  int width;
  int64_t count = 0;
  std::vector<double> sum;  // [width][width] of x x^T

  void add(const float* rows, int64_t n, ThreadPool& pool);  // rows [n][width]
};

// The `n_rows` leading eigenvectors and eigenvalues of the mean second moment. The entry of largest
// magnitude of a row is positive, the first of them among equals. Rows are rounded to `format`
// once. Throws Error(corrupt) where rounded rows are not orthonormal to 1e-5 (f32), 1e-3 (f16);
// O(width^3).
RankBasisLayer principal_rows(const SecondMoment& moment, int n_rows, Scalar format);

// Gathers residuals under the rule of encode_layer, with anchors of `plan`, and beside them whole
// tokens. Memory 2 D^2 doubles a layer.
class BasisLearner {
 public:
  BasisLearner(const ReadSource& source, const RankPlan& plan);

  // One layer of one text. Texts no longer than the exact window add nothing.
  void add(const LayerInput& layer, const RotationTable& rotation);
  int64_t residuals() const;

  // At most `n_rows` rows a layer. Throws invalid_argument where no text was long enough.
  //
  // RankPlan::Basis::heads: keys before RoPE and values each by groups of up to 4 heads, every
  // group with eigenvectors of its own. Rows are ordered by portions of 32 of a group, those first
  // that hold most of their group's energy a row, among equals of earlier layers and groups.
  RankBasis finish(RankPlan::Basis kind, int n_rows, ThreadPool& pool) const;

 private:
  RankBasisLayer grouped_rows(const SecondMoment& moment, int n_rows, Scalar format) const;

  struct Layer {
    explicit Layer(int width)
        : residual(width), raw(width), raw_sum(static_cast<size_t>(width), 0.0) {}
    SecondMoment residual, raw;
    std::vector<double> raw_sum;  // [width], of z
  };
  ReadSource source_;
  RankPlan plan_;
  std::vector<Layer> layers_;
};

}  // namespace kvist
