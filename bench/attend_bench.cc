// SPDX-License-Identifier: MIT
// Attention of our readers against ggml_flash_attn_ext with f16 K/V and the same shapes, all as
// nodes on one ggml thread pool. Each case checks the outputs first, then times all contenders in
// turn and reports the best of each and the ratios.
#include <benchmark/benchmark.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvist/cache/ragged.h"
#include "kvist/core/error.h"
#include "kvist/core/rng.h"

namespace {

using namespace kvist;

constexpr int kThreads = 2;
constexpr int kRounds = 15;

struct Shape {
  int group, kv_heads, head_dim, n_tokens;
  int n_rows;    // 1: decode; more: a causal chunk at the end of the tokens
  int n_layers;  // each with K/V of its own, so that no layer finds its tokens in a near cache
  KvShape kv() const {
    return {
        .kv_heads = kv_heads, .heads = kv_heads * group, .head_dim = head_dim, .type = Scalar::f16};
  }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(head_dim)); }
  size_t q_size() const { return static_cast<size_t>(n_rows * kv_heads * group * head_dim); }
};

std::vector<float> gaussians(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> out(n);
  for (float& x : out) x = static_cast<float>(rng.gaussian());
  return out;
}

// One ggml graph, computed by a pool that lives as long as the bench.
class Graph {
 public:
  explicit Graph(size_t bytes) : ctx_(ggml_init({bytes, nullptr, false})) {
    graph_ = ggml_new_graph(ctx_);
  }
  ~Graph() { ggml_free(ctx_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ggml_context* ctx() { return ctx_; }
  void add(ggml_tensor* node) {
    ggml_build_forward_expand(graph_, node);
    outputs.push_back(node);
  }
  double compute_us() {
    static ggml_threadpool* pool = [] {
      ggml_threadpool_params params = ggml_threadpool_params_default(kThreads);
      return ggml_threadpool_new(&params);
    }();
    ggml_cplan plan = ggml_graph_plan(graph_, kThreads, pool);
    work_.resize(plan.work_size + 64);
    plan.work_data = work_.data();
    const auto start = std::chrono::steady_clock::now();
    ggml_graph_compute(graph_, &plan);
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
        .count();
  }
  std::vector<ggml_tensor*> outputs;

 private:
  ggml_context* ctx_;
  ggml_cgraph* graph_;
  std::vector<uint8_t> work_;
};

struct Data {
  std::vector<float> q;                  // [rows][heads][head_dim]
  std::vector<std::vector<float>> k, v;  // [layers] of [tokens][kv_heads][head_dim]
  explicit Data(const Shape& s) : q(gaussians(s.q_size(), 1)) {
    const size_t n = static_cast<size_t>(s.n_tokens * s.kv_heads * s.head_dim);
    for (int i = 0; i < s.n_layers; ++i) {
      k.push_back(gaussians(n, 10 + static_cast<uint64_t>(i)));
      v.push_back(gaussians(n, 50 + static_cast<uint64_t>(i)));
    }
  }
};

std::unique_ptr<Graph> flash_graph(const Shape& s, const Data& data) {
  const size_t kv = static_cast<size_t>(s.n_tokens * s.kv_heads * s.head_dim);
  const size_t mask_size = static_cast<size_t>(s.n_tokens) * static_cast<size_t>(s.n_rows);
  auto graph = std::make_unique<Graph>(static_cast<size_t>(s.n_layers) * (4 * kv + 4 * s.q_size()) +
                                       2 * mask_size + 4 * s.q_size() + (size_t{4} << 20));
  ggml_context* c = graph->ctx();
  const int64_t heads = s.kv_heads * s.group;
  ggml_tensor* q = ggml_new_tensor_3d(c, GGML_TYPE_F32, s.head_dim, s.n_rows, heads);
  float* to = static_cast<float*>(q->data);
  for (int64_t h = 0; h < heads; ++h)
    for (int i = 0; i < s.n_rows; ++i)
      to = std::copy_n(&data.q[static_cast<size_t>((i * heads + h) * s.head_dim)], s.head_dim, to);
  ggml_tensor* mask = nullptr;
  if (s.n_rows > 1) {
    mask = ggml_new_tensor_2d(c, GGML_TYPE_F16, s.n_tokens, s.n_rows);
    auto* m = static_cast<ggml_fp16_t*>(mask->data);
    for (int i = 0; i < s.n_rows; ++i)
      for (int t = 0; t < s.n_tokens; ++t)
        *m++ = ggml_fp32_to_fp16(t <= s.n_tokens - s.n_rows + i ? 0.0f : -INFINITY);
  }
  for (int layer = 0; layer < s.n_layers; ++layer) {
    ggml_tensor* k = ggml_new_tensor_3d(c, GGML_TYPE_F16, s.head_dim, s.n_tokens, s.kv_heads);
    ggml_tensor* v = ggml_new_tensor_3d(c, GGML_TYPE_F16, s.head_dim, s.n_tokens, s.kv_heads);
    for (int h = 0; h < s.kv_heads; ++h)
      for (int t = 0; t < s.n_tokens; ++t) {
        const size_t from = static_cast<size_t>((t * s.kv_heads + h) * s.head_dim);
        const size_t at = static_cast<size_t>((h * s.n_tokens + t) * s.head_dim);
        ggml_fp32_to_fp16_row(&data.k[layer][from], static_cast<ggml_fp16_t*>(k->data) + at,
                              s.head_dim);
        ggml_fp32_to_fp16_row(&data.v[layer][from], static_cast<ggml_fp16_t*>(v->data) + at,
                              s.head_dim);
      }
    ggml_tensor* out = ggml_flash_attn_ext(c, q, k, v, mask, s.scale(), 0, 0);
    graph->add(out);
  }
  return graph;
}

// Our readers as custom nodes, one a layer: decode reads a prefix, a chunk reads the store that it
// was just appended to.
struct Ours {
  struct Node {
    Ours* owner;
    AttendCall call;
    SuffixRows suffix;
  };
  Shape shape;
  std::unique_ptr<PlainPrefix> prefix;
  std::vector<DenseLayer> stores;
  AttendWorkspace workspace;
  std::vector<Node> nodes;
  std::unique_ptr<Graph> graph;

  static void run(ggml_tensor* out, int ith, int nth, void* user) {
    auto& node = *static_cast<Node*>(user);
    AttendCall call = node.call;
    call.out = static_cast<float*>(out->data);
    node.owner->prefix->attend(call, node.owner->workspace, {ith, nth});
  }
};

DenseLayer store_all(const Shape& s, const std::vector<float>& k, const std::vector<float>& v) {
  DenseLayer layer(s.kv());
  layer.reserve(s.n_tokens);
  layer.resize(s.n_tokens);
  const size_t width = static_cast<size_t>(s.kv_heads * s.head_dim);
  for (int t = 0; t < s.n_tokens; ++t)
    layer.write(t, &k[static_cast<size_t>(t) * width], &v[static_cast<size_t>(t) * width]);
  return layer;
}

// ratio: share of the tokens removed at random, as a method would leave them.
std::unique_ptr<Ours> our_graph(const Shape& s, const Data& data, double ratio,
                                kernels::Precision precision) {
  auto ours = std::make_unique<Ours>();
  ours->shape = s;
  std::vector<DenseLayer> layers;
  for (int i = 0; i < s.n_layers; ++i) {
    layers.push_back(store_all(s, data.k[static_cast<size_t>(i)], data.v[static_cast<size_t>(i)]));
    if (s.n_rows > 1) {
      ours->stores.push_back(std::move(layers.back()));
      layers.back() = DenseLayer(s.kv());
    }
  }
  ours->prefix =
      std::make_unique<PlainPrefix>(s.kv(), std::move(layers), s.n_rows > 1 ? 0 : s.n_tokens);
  Rng rng(99);
  for (int i = 0; i < s.n_layers && ratio > 0; ++i) {
    std::vector<std::vector<int32_t>> kept(static_cast<size_t>(s.kv_heads));
    for (auto& head : kept)
      for (int32_t t = 0; t < s.n_tokens; ++t)
        if (rng.uniform() >= ratio) head.push_back(t);
    ours->prefix->select(i, kept);
  }
  ours->workspace.reserve(s.kv(), s.n_rows, s.n_tokens, kThreads);
  ours->graph =
      std::make_unique<Graph>(static_cast<size_t>(s.n_layers) * 4 * s.q_size() + (size_t{1} << 20));
  ours->nodes.resize(static_cast<size_t>(s.n_layers));
  for (int i = 0; i < s.n_layers; ++i) {
    auto& node = ours->nodes[static_cast<size_t>(i)];
    node.owner = ours.get();
    node.call = {.layer = i,
                 .q = data.q.data(),
                 .out = nullptr,
                 .n_rows = s.n_rows,
                 .logit_scale = s.scale(),
                 .suffixes = {},
                 .precision = precision};
    if (s.n_rows > 1) {
      node.suffix = {&ours->stores[static_cast<size_t>(i)], 0, s.n_rows, s.n_tokens - s.n_rows};
      node.call.suffixes = {&node.suffix, 1};
    }
    ours->graph->add(ggml_custom_4d(ours->graph->ctx(), GGML_TYPE_F32, s.head_dim,
                                    s.group * s.kv_heads, s.n_rows, 1, nullptr, 0, Ours::run,
                                    kThreads, &node));
  }
  return ours;
}

// Root mean square of a - b over that of b.
double relative_error(Graph& a, Graph& b) {
  double error = 0, size = 0;
  for (size_t i = 0; i < a.outputs.size(); ++i) {
    const float* x = static_cast<const float*>(a.outputs[i]->data);
    const float* y = static_cast<const float*>(b.outputs[i]->data);
    for (int64_t j = 0; j < ggml_nelements(a.outputs[i]); ++j) {
      error += std::pow(double{x[j]} - double{y[j]}, 2);
      size += std::pow(double{y[j]}, 2);
    }
  }
  return std::sqrt(error / size);
}

bool check(benchmark::State& state, Graph& ours, Graph& theirs, double bound) {
  ours.compute_us();
  theirs.compute_us();
  const double error = relative_error(ours, theirs);
  if (error < bound) return true;
  state.SkipWithError(str("outputs differ by ", error, ", bound ", bound).c_str());
  return false;
}

std::vector<double> best_us(std::span<Graph* const> graphs, int layers) {
  std::vector<double> best(graphs.size(), 1e30);
  for (int round = 0; round < kRounds; ++round)
    for (size_t i = 0; i < graphs.size(); ++i)
      best[i] = std::min(best[i], graphs[i]->compute_us() / layers);
  return best;
}

// ggml sums values in f16: an error of about 1e-4 * sqrt(tokens) of an output that is a mean of
// that many.
void decode(benchmark::State& state, Shape s) {
  const Data data(s);
  auto flash = flash_graph(s, data);
  auto dense = our_graph(s, data, 0, kernels::Precision::fast);
  auto half = our_graph(s, data, 0.5, kernels::Precision::fast);
  auto quarter = our_graph(s, data, 0.75, kernels::Precision::fast);
  for (auto _ : state) {
    if (!check(state, *dense->graph, *flash, 2.5e-4 * std::sqrt(s.n_tokens))) return;
    Graph* const all[] = {flash.get(), dense->graph.get(), half->graph.get(), quarter->graph.get()};
    const auto us = best_us(all, s.n_layers);
    state.counters["ggml_us"] = us[0];
    state.counters["dense_us"] = us[1];
    state.counters["dense_GB/s"] =
        static_cast<double>(s.kv().token_bytes()) * s.n_tokens / us[1] / 1e3;
    state.counters["ggml/dense"] = us[0] / us[1];
    state.counters["dense/r0.5"] = us[1] / us[2];
    state.counters["dense/r0.75"] = us[1] / us[3];
  }
}

void prefill(benchmark::State& state, Shape s) {
  const Data data(s);
  auto flash = flash_graph(s, data);
  auto fast = our_graph(s, data, 0, kernels::Precision::fast);
  auto exact = our_graph(s, data, 0, kernels::Precision::exact);
  for (auto _ : state) {
    if (!check(state, *exact->graph, *flash, 2e-3)) return;
    if (!check(state, *fast->graph, *flash, 8e-3)) return;
    Graph* const all[] = {flash.get(), fast->graph.get(), exact->graph.get()};
    const auto us = best_us(all, s.n_layers);
    const double products =
        4.0 * s.group * s.kv_heads * s.head_dim * s.n_rows * (s.n_tokens - s.n_rows / 2.0);
    state.counters["ggml_us"] = us[0];
    state.counters["bf16_us"] = us[1];
    state.counters["bf16_GFLOP/s"] = products / us[1] / 1e3;
    state.counters["f32_GFLOP/s"] = products / us[2] / 1e3;
    state.counters["ggml/bf16"] = us[0] / us[1];
    state.counters["ggml/f32"] = us[0] / us[2];
  }
}

void add_all() {
  for (const auto& [group, kv_heads] : {std::pair{3, 3}, {4, 4}, {7, 2}})
    for (int d : {64, 128})
      for (int n : {2048, 8192, 32768}) {
        const Shape s{group, kv_heads, d, n, 1, n > 8192 ? 2 : 6};
        benchmark::RegisterBenchmark(str("decode/group:", group, "/d:", d, "/n:", n).c_str(),
                                     decode, s)
            ->Iterations(1)
            ->Unit(benchmark::kMillisecond);
      }
  for (int d : {64, 128})
    for (int n : {2048, 8192}) {
      const Shape s{3, 3, d, n, 512, 1};
      benchmark::RegisterBenchmark(str("prefill/group:3/d:", d, "/n:", n).c_str(), prefill, s)
          ->Iterations(1)
          ->Unit(benchmark::kMillisecond);
    }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  add_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
