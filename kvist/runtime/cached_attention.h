// SPDX-License-Identifier: MIT
// Answers the graph's attention from caches: new keys and values go to each sequence's own store,
// queries read the shared prefix and that store.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvist/cache/coded_reader.h"
#include "kvist/cache/prefix.h"
#include "kvist/cache/suffix.h"
#include "kvist/core/buffer.h"
#include "kvist/core/tensor.h"
#include "kvist/model/attention.h"

namespace kvist {

// The growing store of one sequence, all layers.
using LayerStores = std::vector<SuffixLayer>;

// Keeps the queries of some adjacent positions: the last of a prompt, or those of one step, for
// methods that ask for them.
class QueryWindow {
 public:
  QueryWindow() = default;
  // Will hold positions [n_tokens - n_rows, n_tokens).
  QueryWindow(int n_layers, int heads, int head_dim, int n_tokens, int n_rows);
  // Forgets them: will hold [first, first + n_rows) instead, n_rows at most as many as ever.
  void restart(int first, int n_rows);
  // q [heads][head_dim] of one position; positions outside the window are ignored. Different
  // positions from several threads at once are safe.
  void record(int layer, int position, const float* q) noexcept;
  TensorView<const float, 3> rows(int layer) const;  // [rows, heads, head_dim], oldest first
  int first_position() const { return first_; }
  int size() const { return n_rows_; }  // rows; 0: nothing is recorded

 private:
  int heads_ = 0, head_dim_ = 0, first_ = 0, n_rows_ = 0;
  Buffer<float> q_;  // [layers][rows][heads][head_dim]
};

// Adjacent rows of a step that belong to one sequence and continue its store.
struct SequenceRows {
  LayerStores* stores = nullptr;
  int row = 0;
  int n_rows = 0;
};

class CachedAttention final : public Attention {
 public:
  CachedAttention(const KvShape& shape, int n_layers, float logit_scale,
                  kernels::Precision precision, int n_workers);

  // Prepares one step: makes room in every store for its new rows and sizes the workspace. `prefix`
  // (null: none) and `windows`, which record queries, outlive the step. Throws Error(exhausted)
  // with all stores as they were.
  void begin_step(const PrefixCache* prefix, std::span<const SequenceRows> sequences,
                  std::span<const int32_t> positions, std::span<QueryWindow* const> windows,
                  ReadTrace* trace = nullptr);
  // After a step: throws Error(corrupt) naming the layer where a key or value was not finite and
  // its store cannot hold that.
  void check_finite() const;
  // After a step that failed: takes its rows out of the stores again.
  void abandon_step();

  uint64_t workspace_bytes() const { return workspace_->allocated_bytes(); }
  // Between steps: gives the workspace back; the next step makes one as large as it needs.
  void forget_workspace() { workspace_ = std::make_unique<AttendWorkspace>(); }

  void append(int layer, const float* k, const float* v, Worker worker) noexcept override;
  void attend(int layer, const float* q, float* out, Worker worker) noexcept override;

 private:
  int64_t not_finite(int layer) const;  // in all stores of the step

  KvShape shape_;
  int n_layers_;
  float logit_scale_;
  kernels::Precision precision_;
  int n_workers_;

  const PrefixCache* prefix_ = nullptr;
  std::vector<QueryWindow*> windows_;
  ReadTrace* trace_ = nullptr;
  std::vector<SequenceRows> sequences_;
  std::vector<int> first_token_;    // [sequences] index in its store of a sequence's first new row
  std::vector<int32_t> positions_;  // [rows]
  std::vector<SuffixRows> suffixes_;       // [layers][sequences]
  std::vector<kernels::KvRun> no_prefix_;  // [kv_heads], all empty
  std::vector<int64_t> not_finite_;        // [layers] in the stores before the step
  std::unique_ptr<AttendWorkspace> workspace_ = std::make_unique<AttendWorkspace>();
};

}  // namespace kvist
