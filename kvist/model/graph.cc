// SPDX-License-Identifier: MIT
// The computation of one step shape, built once and run as often as the shape comes back.
#include "kvist/model/graph.h"

#include <cstring>

#include "kvist/core/error.h"
#include "kvist/core/known_barrier.h"
#include "kvist/model/activation.h"
#include "kvist/model/widen.h"

namespace kvist {

StepGraph::StepGraph(const CheckedModel& model, Weights& weights, CpuBackend& cpu, StepShape shape)
    : model_(model), weights_(weights), cpu_(cpu), shape_(shape) {
  const size_t n = 64 + 48 * static_cast<size_t>(model.n_layers);  // headers; fewer are nodes
  context_ = header_context(n);
  graph_ = ggml_new_graph_custom(context_.get(), n, false);
  for (int i = 0; i < model.n_layers; ++i) calls_.push_back({this, i});
  build();
  memory_ = ggml_gallocr_new(cpu_.buffer_type());
  if (!ggml_gallocr_alloc_graph(memory_, graph_)) {
    ggml_gallocr_free(memory_);
    throw Error(ErrorKind::exhausted,
                str("no memory for the activations of a step of ", shape.rows, " rows"));
  }
  plan_ = ggml_backend_graph_plan_create(cpu_.backend(), graph_);
}

StepGraph::~StepGraph() {
  ggml_backend_graph_plan_free(cpu_.backend(), plan_);
  ggml_gallocr_free(memory_);
}

int StepGraph::n_nodes() const { return ggml_graph_n_nodes(graph_); }

const float* StepGraph::run(const RowBatch& rows, const std::vector<int32_t>& wanted,
                            Attention& attention) {
  std::memcpy(tokens_->data, rows.tokens.data(), rows.tokens.size_bytes());
  std::memcpy(positions_->data, rows.positions.data(), rows.positions.size_bytes());
  if (wanted_ != nullptr)
    std::memcpy(wanted_->data, wanted.data(), wanted.size() * sizeof(int32_t));
  attention_ = &attention;
  failed_ = false;
  { const KnownBarrier start; }
  const ggml_status status = ggml_backend_graph_plan_compute(cpu_.backend(), plan_);
  { const KnownBarrier end; }
  attention_ = nullptr;
  if (status != GGML_STATUS_SUCCESS) {
    throw Error(ErrorKind::exhausted,
                str("ggml could not run a step of ", shape_.rows,
                    " rows: ", ggml_status_to_string(status), " ", take_backend_errors()));
  }
  if (failed_) throw Error(ErrorKind::exhausted, "oneDNN could not run a product of this step");
  return logits_ == nullptr ? nullptr : static_cast<const float*>(logits_->data);
}

void StepGraph::append_node(ggml_tensor* node, int index, int count, void* call) {
  const KnownBarrier between_nodes;
  const auto* c = static_cast<const LayerCall*>(call);
  c->graph->attention_->append(c->layer, static_cast<const float*>(node->src[0]->data),
                               static_cast<const float*>(node->src[1]->data), {index, count});
}

void StepGraph::attend_node(ggml_tensor* node, int index, int count, void* call) {
  const KnownBarrier between_nodes;
  const auto* c = static_cast<const LayerCall*>(call);
  c->graph->attention_->attend(c->layer, static_cast<const float*>(node->src[0]->data),
                               static_cast<float*>(node->data), {index, count});
}

void StepGraph::widen_node(ggml_tensor* node, int index, int count, void* matrix) {
  const KnownBarrier between_nodes;
  const auto* m = static_cast<const Matrix*>(matrix);
  char* to = static_cast<char*>(node->data);
  for (const ggml_tensor* part : m->parts) {
    const int64_t n = part->ne[1];
    widen_rows(part->type, part->data, m->columns, n * index / count, n * (index + 1) / count,
               node->type, to);
    to += node->nb[1] * static_cast<size_t>(n);
  }
}

void StepGraph::round_node(ggml_tensor* node, int index, int count, void*) {
  const KnownBarrier between_nodes;
  const int64_t n = ggml_nelements(node), first = n * index / count, last = n * (index + 1) / count;
  round_to_bf16(static_cast<const float*>(node->src[0]->data) + first,
                static_cast<uint16_t*>(node->data) + first, last - first);
}

void StepGraph::split_node(ggml_tensor* node, int, int, void*) {
  const KnownBarrier between_nodes;
  float* high = static_cast<float*>(node->data);
  const int64_t n = node->ne[0];
  split_activation(static_cast<const float*>(node->src[0]->data), n, high, high + n);
}

void StepGraph::tile_node(ggml_tensor* node, int index, int, void* call) {
  const KnownBarrier between_nodes;
  auto* c = static_cast<TileCall*>(call);
  const auto* weights =
      node->src[1] != nullptr ? static_cast<const uint16_t*>(node->src[1]->data) : nullptr;
  if (!c->product->run(index, static_cast<const uint16_t*>(node->src[0]->data), weights,
                       static_cast<float*>(node->data))) {
    c->graph->failed_ = true;
  }
}

void StepGraph::build() {
  ggml_context* c = context_.get();
  const auto input = [&](int n) {
    ggml_tensor* t = ggml_new_tensor_1d(c, GGML_TYPE_I32, n);
    ggml_set_input(t);
    return t;
  };
  tokens_ = input(shape_.rows);
  positions_ = input(shape_.rows);
  if (shape_.wanted > 0 && shape_.wanted < shape_.rows) wanted_ = input(shape_.wanted);
  ggml_tensor* x = ggml_get_rows(c, weights_.embed(), tokens_);
  for (int i = 0; i < model_.n_layers; ++i) x = layer(i, x);
  if (shape_.wanted > 0) {
    x = norm(x, weights_.output_norm());
    logits_ = x = product(weights_.head(), x)[0];
  }
  ggml_set_output(x);
  ggml_build_forward_expand(graph_, x);
}

// x [width, rows] to the same; the last layer keeps the wanted rows only and, where there are none,
// ends at attention.
ggml_tensor* StepGraph::layer(int i, ggml_tensor* x) {
  ggml_context* c = context_.get();
  LayerWeights& w = weights_.layer(i);
  ggml_tensor* seen = attention(i, heads(w, norm(x, w.attn_norm)));
  if (i + 1 == model_.n_layers) {
    if (shape_.wanted == 0) return seen;
    seen = select(seen);
    x = select(x);
  }
  x = ggml_add(c, product(w.out, seen)[0], x);
  return ggml_add(c, feed_forward(w, norm(x, w.ffn_norm)), x);
}

ggml_tensor* StepGraph::select(ggml_tensor* x) {
  return wanted_ == nullptr ? x : ggml_get_rows(context_.get(), x, wanted_);
}

// ggml fuses the two nodes into one pass.
ggml_tensor* StepGraph::norm(ggml_tensor* x, ggml_tensor* weight) {
  return ggml_mul(context_.get(), ggml_rms_norm(context_.get(), x, model_.norm_eps), weight);
}

std::vector<ggml_tensor*> StepGraph::product(Matrix& matrix, ggml_tensor* x) {
  ggml_context* c = context_.get();
  const WeightForm form = weights_.form(matrix, static_cast<int>(x->ne[1]));
  if (form == WeightForm::widened) return {ggml_mul_mat(c, matrix.widened, x)};
  if (form == WeightForm::tiles) return {tile_product(matrix, x, nullptr)};
  if (form == WeightForm::scratch) {
    // It takes x as an input only to come after it: the scratch then lives for its product alone.
    ggml_tensor* wide = ggml_custom_4d(c, weights_.wide_type(), matrix.columns, matrix.rows, 1, 1,
                                       &x, 1, widen_node, GGML_N_TASKS_MAX, &matrix);
    return {weights_.uses_tiles() ? tile_product(matrix, x, wide) : ggml_mul_mat(c, wide, x)};
  }
  std::vector<ggml_tensor*> out;
  if (form == WeightForm::packed_twice) {
    ggml_tensor* halves =
        ggml_custom_4d(c, GGML_TYPE_F32, x->ne[0], 2, 1, 1, &x, 1, split_node, 1, nullptr);
    for (ggml_tensor* weight : matrix.packed) out.push_back(sum_of_halves(weight, halves));
    return out;
  }
  for (ggml_tensor* weight : form == WeightForm::mapped ? matrix.parts : matrix.packed) {
    out.push_back(ggml_mul_mat(c, weight, x));
  }
  return out;
}

// scratch: the weights as plain bf16 rows; null where the matrix keeps them packed.
ggml_tensor* StepGraph::tile_product(Matrix& matrix, ggml_tensor* x, ggml_tensor* scratch) {
  ggml_context* c = context_.get();
  const int64_t n = x->ne[1];
  tiles_.push_back(std::make_unique<TileCall>());
  tiles_.back()->graph = this;
  tiles_.back()->product =
      std::make_unique<Bf16Product>(matrix.columns, matrix.rows, n, cpu_.n_threads(),
                                    scratch == nullptr ? matrix.tiles.get() : nullptr);
  ggml_tensor* rounded = ggml_custom_4d(c, GGML_TYPE_BF16, matrix.columns, n, 1, 1, &x, 1,
                                        round_node, GGML_N_TASKS_MAX, nullptr);
  ggml_tensor* inputs[] = {rounded, scratch};
  return ggml_custom_4d(c, GGML_TYPE_F32, matrix.rows, n, 1, 1, inputs, scratch == nullptr ? 1 : 2,
                        tile_node, GGML_N_TASKS_MAX, tiles_.back().get());
}

// One row in two halves, each multiplied by itself: ggml's code for one row needs no tiles.
ggml_tensor* StepGraph::sum_of_halves(ggml_tensor* weight, ggml_tensor* halves) {
  ggml_context* c = context_.get();
  const int64_t n = weight->ne[0];
  ggml_tensor* high = ggml_mul_mat(c, weight, ggml_view_2d(c, halves, n, 1, halves->nb[1], 0));
  ggml_tensor* low =
      ggml_mul_mat(c, weight, ggml_view_2d(c, halves, n, 1, halves->nb[1], halves->nb[1]));
  return ggml_add(c, high, low);
}

StepGraph::Heads StepGraph::heads(LayerWeights& w, ggml_tensor* x) {
  ggml_context* c = context_.get();
  const int64_t d = model_.head_dim, rows = shape_.rows;
  const std::array<int64_t, 3> n{model_.heads, model_.kv_heads, model_.kv_heads};
  std::vector<ggml_tensor*> parts = product(w.qkv, x);
  std::array<ggml_tensor*, 3> out{};
  if (parts.size() == 1) {
    ggml_tensor* all = w.qkv_bias != nullptr ? ggml_add(c, parts[0], w.qkv_bias) : parts[0];
    if (rows == 1 &&
        w.qk_norm == nullptr) {  // q and k turn together; of one row, every view is contiguous
      const int64_t turning = n[0] + n[1];
      ggml_tensor* turned =
          rope(ggml_view_3d(c, all, d, turning, 1, all->nb[0] * d, all->nb[1], 0));
      return {
          ggml_view_3d(c, turned, d, n[0], 1, turned->nb[1], turned->nb[2], 0),
          ggml_view_3d(c, turned, d, n[1], 1, turned->nb[1], turned->nb[2], turned->nb[1] * n[0]),
          ggml_view_3d(c, all, d, n[2], 1, all->nb[0] * d, all->nb[1], all->nb[0] * d * turning)};
    }
    for (int64_t i = 0, at = 0; i < 3; at += n[i], ++i) {
      out[i] = ggml_view_3d(c, all, d, n[i], rows, all->nb[0] * d, all->nb[1], all->nb[0] * d * at);
    }
    if (rows > 1) out[2] = ggml_cont(c, out[2]);
  } else {
    for (int64_t i = 0, at = 0; i < 3; at += n[i], ++i) {
      ggml_tensor* y = parts[i];
      if (w.qkv_bias != nullptr) {
        y = ggml_add(
            c, y,
            ggml_view_1d(c, w.qkv_bias, d * n[i], static_cast<size_t>(d * at) * sizeof(float)));
      }
      out[i] = ggml_reshape_3d(c, y, d, n[i], rows);
    }
  }
  if (w.qk_norm != nullptr) {
    const size_t row = w.qk_norm->nb[1];
    out[0] = norm(out[0], ggml_view_2d(c, w.qk_norm, d, n[0], row, 0));
    out[1] = norm(out[1], ggml_view_2d(c, w.qk_norm, d, n[1], row, row * n[0]));
  }
  return {rope(out[0]), rope(out[1]), out[2]};
}

ggml_tensor* StepGraph::rope(ggml_tensor* x) {
  const RopeParams& r = model_.rope;
  const int mode = model_.arch->rope_adjacent ? GGML_ROPE_TYPE_NORMAL : GGML_ROPE_TYPE_NEOX;
  return ggml_rope_ext(context_.get(), x, positions_, weights_.rope_freqs(), r.dims, mode,
                       r.original_context, r.theta, r.freq_scale, r.ext_factor, r.attn_factor,
                       r.beta_fast, r.beta_slow);
}

// Two nodes, since every worker must have appended before one attends: attend takes append's result
// as an input.
ggml_tensor* StepGraph::attention(int i, const Heads& h) {
  ggml_context* c = context_.get();
  LayerCall* call = &calls_[static_cast<size_t>(i)];
  ggml_tensor* stored[] = {h.k, h.v};
  ggml_tensor* appended =
      ggml_custom_4d(c, GGML_TYPE_F32, 1, 1, 1, 1, stored, 2, append_node, GGML_N_TASKS_MAX, call);
  ggml_tensor* asked[] = {h.q, appended};
  return ggml_custom_4d(c, GGML_TYPE_F32, int64_t{model_.head_dim} * model_.heads, shape_.rows, 1,
                        1, asked, 2, attend_node, GGML_N_TASKS_MAX, call);
}

ggml_tensor* StepGraph::feed_forward(LayerWeights& w, ggml_tensor* x) {
  ggml_context* c = context_.get();
  const std::vector<ggml_tensor*> parts = product(w.gate_up, x);
  ggml_tensor* y =
      parts.size() == 1 ? ggml_swiglu(c, parts[0]) : ggml_swiglu_split(c, parts[0], parts[1]);
  return product(w.down, y)[0];
}

}  // namespace kvist
