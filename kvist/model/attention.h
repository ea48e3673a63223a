// SPDX-License-Identifier: MIT
// The seam between the graph and whatever holds keys and values: the model has never heard of
// compression.
#pragma once

#include <cstdint>
#include <span>

#include "kvist/core/thread_pool.h"

namespace kvist {

// The rows of one step: tokens to run, each in its sequence at its absolute position. Rows of one
// sequence are adjacent and ascending in position.
struct RowBatch {
  std::span<const int32_t> tokens;
  std::span<const int32_t> positions;
  std::span<const int32_t> sequences;
  std::span<const uint8_t> want_logits;  // [rows] nonzero: logits of this row are wanted
};

// Answers the graph, layer by layer. Both calls are made by every worker of the graph with the same
// arguments; append is complete for all workers before attend begins. They must not throw.
class Attention {
 public:
  virtual ~Attention() = default;
  // k, v [rows][kv_heads][head_dim] f32, k after RoPE.
  virtual void append(int layer, const float* k, const float* v, Worker worker) noexcept = 0;
  // q, out [rows][heads][head_dim] f32, q after RoPE, not scaled.
  virtual void attend(int layer, const float* q, float* out, Worker worker) noexcept = 0;
};

}  // namespace kvist
