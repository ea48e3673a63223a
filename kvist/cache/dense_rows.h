// SPDX-License-Identifier: MIT
// A dense layer as methods read it.
#pragma once

#include "kvist/cache/dense.h"
#include "kvist/methods/method.h"

namespace kvist {

// Does not own the layer.
class DenseRows final : public HeadRows {
 public:
  DenseRows(const DenseLayer& layer, bool keys) : layer_(layer), keys_(keys) {}
  void read(int head, int begin, int end, float* out) const override {
    const kernels::KvRun run = layer_.run(head);
    keys_ ? kernels::load_keys(run, begin, end, out) : kernels::load_values(run, begin, end, out);
  }

 private:
  const DenseLayer& layer_;
  bool keys_;
};

}  // namespace kvist
