// SPDX-License-Identifier: MIT
// Gathers a ReadKV calibration from the keys, values and queries of held-out text, a few rows at a
// time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kvist/methods/read/calibration.h"

namespace kvist {

// Means and population variances by Welford's recurrence in double, row after row: the result does
// not depend on where the rows are cut into calls. Calls for different layers may run at once;
// calls for one layer wait for each other, and their order is the order of the rows.
class CalibrationAccumulator {
 public:
  // Throws unsupported for a head dimension without a transform, invalid_argument where heads is
  // no multiple of kv_heads.
  CalibrationAccumulator(const ReadSource& source, const ReadBasis& basis);
  ~CalibrationAccumulator();

  // Rows as attention sees them, keys and queries after RoPE.
  //   k, v  [n][kv_heads][head_dim]     q  [n_queries][heads][head_dim]
  // Throws corrupt naming layer and array where a number is not finite; that call adds nothing.
  // O(n heads head_dim log head_dim); with klt head_dim^2.
  void add(int layer, int64_t n, const float* k, const float* v, int64_t n_queries, const float* q);

  // Tokens and positions are taken to be the rows seen. Throws invalid_argument where a layer has
  // seen none.
  ReadCalibration finish() const;

 private:
  struct LayerSums;
  ReadSource source_;
  ReadBasis basis_;
  std::vector<std::unique_ptr<LayerSums>> layers_;
};

}  // namespace kvist
