// SPDX-License-Identifier: MIT
// The computation of one step shape, built once and run as often as the shape comes back.
#pragma once

#include <ggml-alloc.h>

#include <atomic>
#include <memory>
#include <vector>

#include "kvist/model/attention.h"
#include "kvist/model/cpu_backend.h"
#include "kvist/model/gguf_check.h"
#include "kvist/model/weights.h"

namespace kvist {

// Rows of a step and how many of them want logits.
struct StepShape {
  int rows = 0, wanted = 0;
  friend bool operator==(const StepShape&, const StepShape&) = default;
};

// Not thread-safe. model, weights and cpu outlive it.
class StepGraph {
 public:
  StepGraph(const CheckedModel& model, Weights& weights, CpuBackend& cpu, StepShape shape);
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  StepShape shape() const { return shape_; }
  int n_nodes() const;
  uint64_t activation_bytes() const { return ggml_gallocr_get_buffer_size(memory_, 0); }
  // wanted: indices of the rows whose logits are wanted, ascending, shape().wanted of them. Returns
  // [wanted][vocab], valid until the next call; null where none is wanted. Throws Error where ggml
  // gives up.
  const float* run(const RowBatch& rows, const std::vector<int32_t>& wanted, Attention& attention);

 private:
  // What a custom node is told: which layer, and through the graph whose keys and values.
  struct LayerCall {
    const StepGraph* graph;
    int layer;
  };
  struct Heads {
    ggml_tensor *q, *k, *v;  // [head_dim, heads, rows]
  };
  static void append_node(ggml_tensor* node, int index, int count, void* call);
  static void attend_node(ggml_tensor* node, int index, int count, void* call);
  // A product on AMX tiles; weights are an input of the node unless they are packed.
  struct TileCall {
    StepGraph* graph;
    std::unique_ptr<Bf16Product> product;
  };
  static void round_node(ggml_tensor* node, int index, int count, void* unused);
  static void split_node(ggml_tensor* node, int index, int count, void*);
  static void tile_node(ggml_tensor* node, int index, int count, void* call);
  static void widen_node(ggml_tensor* node, int index, int count, void* matrix);

  void build();
  ggml_tensor* layer(int i, ggml_tensor* x);
  ggml_tensor* norm(ggml_tensor* x, ggml_tensor* weight);
  // Products of the matrix with x [columns, n]: one stacked result, or one per part.
  std::vector<ggml_tensor*> product(Matrix& matrix, ggml_tensor* x);
  ggml_tensor* tile_product(Matrix& matrix, ggml_tensor* x, ggml_tensor* scratch);
  ggml_tensor* sum_of_halves(ggml_tensor* weight, ggml_tensor* halves);
  Heads heads(LayerWeights& w, ggml_tensor* x);
  ggml_tensor* rope(ggml_tensor* x);
  ggml_tensor* attention(int i, const Heads& heads);
  ggml_tensor* feed_forward(LayerWeights& w, ggml_tensor* x);
  ggml_tensor* select(ggml_tensor* x);

  const CheckedModel& model_;
  Weights& weights_;
  CpuBackend& cpu_;
  StepShape shape_;
  Attention* attention_ = nullptr;  // of the step that runs
  std::vector<LayerCall> calls_;
  std::vector<std::unique_ptr<TileCall>> tiles_;
  std::atomic<bool> failed_ = false;  // a product of the step that runs
  ContextPtr context_;
  ggml_gallocr_t memory_ = nullptr;
  ggml_backend_graph_plan_t plan_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  ggml_tensor *tokens_ = nullptr, *positions_ = nullptr, *wanted_ = nullptr, *logits_ = nullptr;
};

}  // namespace kvist
