// SPDX-License-Identifier: MIT
// Attention as the definition has it: K and V as float rows, softmax in double. For tests of the
// model alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include "kvist/model/model.h"

namespace kvist {

// Keeps every row of every sequence. One worker does all the work; the others return at once.
class PlainAttention final : public Attention {
 public:
  explicit PlainAttention(const ModelInfo& info)
      : info_(info), layers_(static_cast<size_t>(info.n_layers)) {}

  // Call before the step: attend needs to know whose rows they are.
  void expect(const RowBatch& rows) {
    positions_.assign(rows.positions.begin(), rows.positions.end());
    sequences_.assign(rows.sequences.begin(), rows.sequences.end());
  }

  void append(int layer, const float* k, const float* v, Worker worker) noexcept override {
    if (worker.index != 0) return;
    const size_t width = static_cast<size_t>(info_.kv_heads) * static_cast<size_t>(info_.head_dim);
    for (size_t row = 0; row < positions_.size(); ++row) {
      Stored& s = layers_[static_cast<size_t>(layer)][sequences_[row]];
      s.positions.push_back(positions_[row]);
      s.k.insert(s.k.end(), k + row * width, k + (row + 1) * width);
      s.v.insert(s.v.end(), v + row * width, v + (row + 1) * width);
    }
  }

  void attend(int layer, const float* q, float* out, Worker worker) noexcept override {
    const auto heads = static_cast<size_t>(info_.heads), d = static_cast<size_t>(info_.head_dim);
    const size_t jobs = positions_.size() * heads;
    for (size_t job = static_cast<size_t>(worker.index); job < jobs;
         job += static_cast<size_t>(worker.count)) {
      attend_head(layer, job / heads, job % heads, q + job * d, out + job * d);
    }
  }

  // K and V of one sequence, as appended: [tokens][kv_heads][head_dim].
  const std::vector<float>& keys(int layer, int sequence) {
    return layers_[static_cast<size_t>(layer)][sequence].k;
  }
  const std::vector<float>& values(int layer, int sequence) {
    return layers_[static_cast<size_t>(layer)][sequence].v;
  }

 private:
  struct Stored {
    std::vector<int32_t> positions;
    std::vector<float> k, v;
  };

  void attend_head(int layer, size_t row, size_t head, const float* q, float* out) const {
    const Stored& s = layers_[static_cast<size_t>(layer)].at(sequences_[row]);
    const auto d = static_cast<size_t>(info_.head_dim),
               kv_heads = static_cast<size_t>(info_.kv_heads);
    const size_t kv = head / (static_cast<size_t>(info_.heads) / kv_heads);
    std::vector<double> weight(s.positions.size(), -INFINITY);
    double top = -INFINITY, sum = 0;
    for (size_t t = 0; t < weight.size(); ++t) {
      if (s.positions[t] > positions_[row]) continue;
      double dot = 0;
      for (size_t c = 0; c < d; ++c) dot += double{q[c]} * double{s.k[(t * kv_heads + kv) * d + c]};
      weight[t] = dot * double{info_.logit_scale};
      top = std::max(top, weight[t]);
    }
    std::vector<double> result(d, 0);
    for (size_t t = 0; t < weight.size(); ++t) {
      const double w = std::exp(weight[t] - top);
      sum += w;
      for (size_t c = 0; c < d; ++c) result[c] += w * double{s.v[(t * kv_heads + kv) * d + c]};
    }
    for (size_t c = 0; c < d; ++c) out[c] = static_cast<float>(result[c] / sum);
  }

  ModelInfo info_;
  std::vector<std::map<int32_t, Stored>> layers_;
  std::vector<int32_t> positions_, sequences_;
};

}  // namespace kvist
