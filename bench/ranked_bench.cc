// SPDX-License-Identifier: MIT
// Whole layer calls of VarRate's reader against our own dense f16 reader: one token, prefix coded
// at kappa 0.2. Each case checks the output against attention over the reconstruction first, then
// times all in turn over layers that together exceed the caches, and reports the best of each.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "bench/layers.h"
#include "kvist/cache/coded_reader.h"
#include "kvist/cache/prefix.h"
#include "kvist/cache/ranked_reader.h"
#include "kvist/core/error.h"
#include "kvist/core/rng.h"

namespace {

using namespace kvist;

constexpr int kRounds = 9;

struct Case {
  int group, kv_heads, head_dim, n_tokens;
  CoefficientFormat format;
  int rows = 1;
  int threads = 2;
  int n_layers() const { return n_tokens > 4096 ? 4 : 8; }
  int width() const { return 2 * kv_heads * head_dim; }
  KvShape shape() const {
    return {.kv_heads = kv_heads, .heads = kv_heads * group, .head_dim = head_dim};
  }
};

// Ranks from 16 to the width, many small and a few large, kappa = 1/5 in all; any anchors.
RankedCode random_code(const Case& c, Rng& rng) {
  RankedCode code;
  code.n_tokens = c.n_tokens;
  for (int t = 0; t < c.n_tokens; ++t) {
    if (t % 16 == 0) code.anchors.push_back(t);
    (t % 16 == 0 || t >= c.n_tokens - 64 ? code.exact : code.coded).push_back(t);
  }
  code.n_neighbours = 4;
  const int64_t n = std::ssize(code.coded);
  int64_t left = (int64_t{c.n_tokens} / 5 - std::ssize(code.exact)) * c.width() - 16 * n;
  std::vector<double> weight(static_cast<size_t>(n));
  double sum = 0;
  for (double& x : weight) sum += x = -std::log(1 - rng.uniform());
  code.offset.push_back(0);
  for (const double x : weight) {
    const int rank = 16 + static_cast<int>(static_cast<double>(left) * x / sum);
    code.rank.push_back(static_cast<uint16_t>(std::min(c.width(), rank)));
    code.offset.push_back(code.offset.back() + code.rank.back());
    for (int i = 0; i < 4; ++i)
      code.neighbours.push_back(static_cast<uint16_t>(rng.below(code.anchors.size())));
  }
  code.coefficients.resize(code.offset.back());
  for (float& x : code.coefficients) x = static_cast<float>(rng.gaussian());
  return code;
}

struct Layers {
  explicit Layers(const Case& c) : shape(c.shape()), rotations(rope(c), c.n_tokens) {
    Rng rng(1);
    basis.width = basis.n_rows = c.width();
    basis.eigenvalues.assign(static_cast<size_t>(c.width()), 1.0f);
    basis.rows.resize(static_cast<size_t>(c.width() * c.width()));
    for (float& x : basis.rows)  // as long as orthonormal rows; speed does not ask for more
      x = static_cast<float>(rng.gaussian() / std::sqrt(c.width()));
    sigma = row_sigmas(basis.eigenvalues);
    tiles = key_tiles_of(basis, shape);
    std::vector<float> numbers(static_cast<size_t>(c.width()));
    ThreadPool pool(c.threads);
    for (int i = 0; i < c.n_layers(); ++i) {
      DenseLayer& layer = dense.emplace_back(shape);
      layer.reserve(c.n_tokens);
      layer.resize(c.n_tokens);
      for (int t = 0; t < c.n_tokens; ++t) {
        for (float& x : numbers) x = static_cast<float>(rng.gaussian());
        layer.write(t, numbers.data(), numbers.data() + c.width() / 2);
      }
      std::vector<kernels::KvRun> runs;
      for (int head = 0; head < shape.kv_heads; ++head) runs.push_back(layer.run(head));
      const RankedCode code = random_code(c, rng);
      if (tokens == nullptr) tokens = std::make_shared<RankedTokens>(code);
      coded.push_back(
          std::make_unique<RankedLayer>(shape, tokens, runs, code, c.format, sigma.data(), pool));
      coded.back()->keep_key_norms(measure_residuals(view(i), pool));
      expanded.push_back(expand_keys(view(i), UINT64_MAX, pool));
    }
    q.resize(static_cast<size_t>(c.rows * shape.heads * shape.head_dim));
    for (float& x : q) x = static_cast<float>(rng.gaussian());
  }
  static Rope rope(const Case& c) {
    Rope rope;
    for (int f = 0; f < c.head_dim / 2; ++f)
      rope.frequencies.push_back(std::pow(1e5, -2.0 * f / c.head_dim));
    rope.adjacent = true;
    return rope;
  }
  RankedView view(int i) const {
    return {.layer = coded[static_cast<size_t>(i)].get(),
            .basis = &basis,
            .sigma = sigma.data(),
            .rotations = &rotations,
            .key_tiles = tiles.data()};
  }
  KvShape shape;
  RotationTable rotations;
  RankBasisLayer basis;
  std::vector<float> sigma;
  Buffer<std::byte> tiles;
  std::shared_ptr<const RankedTokens> tokens;
  std::vector<DenseLayer> dense;
  std::vector<std::unique_ptr<RankedLayer>> coded;
  std::vector<ExpandedKeys> expanded;
  std::vector<float> q;
};

enum class Way { plain, skip, expanded };

class Bench {
 public:
  explicit Bench(const Case& c) : case_(c), layers_(c), pool_(c.threads) {
    workspace_.reserve(layers_.shape, c.rows, c.n_tokens, c.threads);
    RankedSizes sizes;
    for (int i = 0; i < c.n_layers(); ++i) sizes.cover(layers_.view(i));
    ranked_.reserve(sizes, c.rows, c.threads);
    out_.resize(layers_.q.size());
  }

  AttendCall call(kernels::Precision precision) {
    return {.q = layers_.q.data(),
            .out = out_.data(),
            .n_rows = case_.rows,
            .logit_scale = 1 / std::sqrt(static_cast<float>(case_.head_dim)),
            .suffixes = {&row_, 1},
            .precision = precision};
  }

  void dense(const DenseLayer& layer, const KvShape& shape, kernels::Precision precision) {
    std::vector<kernels::KvRun> runs;
    for (int head = 0; head < case_.kv_heads; ++head) runs.push_back(layer.run(head));
    pool_.run([&](Worker w) { attend_runs(runs, shape, call(precision), workspace_, w); });
  }

  RankedView view(int layer, Way way) const {
    RankedView view = layers_.view(layer);
    view.skip = way == Way::skip;
    if (way == Way::expanded) view.expanded = &layers_.expanded[static_cast<size_t>(layer)];
    return view;
  }
  void ranked(int layer, Way way, kernels::Precision precision, ReadTrace* trace = nullptr) {
    AttendCall c = call(precision);
    c.trace = trace;
    pool_.run([&](Worker w) { read_ranked(view(layer, way), c, ranked_, w); });
  }

  template <typename Fn>
  double layer_us(const Fn& fn) {
    return kvist::layer_us(pool_, case_.n_layers(), fn);
  }

  // Of the compressed read from attention over what mode A gives.
  double distance(Way way, kernels::Precision precision) {
    KvShape shape = layers_.shape;
    shape.type = Scalar::f32;
    DenseLayer whole(shape);
    whole.reserve(case_.n_tokens);
    whole.resize(case_.n_tokens);
    std::vector<std::vector<float>> k(static_cast<size_t>(case_.kv_heads)), v(k.size());
    for (size_t h = 0; h < k.size(); ++h)
      reconstruct_ranked(layers_.view(0), static_cast<int>(h), &k[h], &v[h]);
    const int d = case_.head_dim;
    for (int t = 0; t < case_.n_tokens; ++t) {
      std::vector<float> key, value;
      for (size_t h = 0; h < k.size(); ++h) {
        key.insert(key.end(), k[h].begin() + t * d, k[h].begin() + (t + 1) * d);
        value.insert(value.end(), v[h].begin() + t * d, v[h].begin() + (t + 1) * d);
      }
      whole.write(t, key.data(), value.data());
    }
    dense(whole, shape, kernels::Precision::exact);
    const auto want = out_;
    ranked(0, way, precision);
    double error = 0, norm = 0;
    for (size_t i = 0; i < out_.size(); ++i) {
      error += std::pow(double{out_[i]} - double{want[i]}, 2);
      norm += std::pow(double{want[i]}, 2);
    }
    return std::sqrt(error / norm);
  }

  void report(benchmark::State& state) {
    using kernels::Precision;
    double loss = 0;
    for (const auto& [way, precision, most] : {std::tuple{Way::plain, Precision::exact, 1e-4},
                                               {Way::skip, Precision::exact, 1e-4},
                                               {Way::plain, Precision::fast, 2e-3},
                                               {Way::skip, Precision::fast, 2e-3},
                                               {Way::expanded, Precision::exact, 1e-3}}) {
      const double far = distance(way, precision);
      if (!(far < most)) return state.SkipWithError(str("far from mode A: ", far).c_str());
      if (way == Way::plain) loss = far;
    }
    std::vector<std::vector<kernels::KvRun>> runs;
    for (const DenseLayer& layer : layers_.dense) {
      runs.emplace_back();
      for (int head = 0; head < case_.kv_heads; ++head) runs.back().push_back(layer.run(head));
    }
    const AttendCall fast = call(Precision::fast);
    double dense_us = 1e30, us[3] = {1e30, 1e30, 1e30};
    for (int round = 0; round < kRounds; ++round) {
      dense_us =
          std::min(dense_us, layer_us([&](int i, Worker w) {
                     attend_runs(runs[static_cast<size_t>(i)], layers_.shape, fast, workspace_, w);
                   }));
      for (const Way way : {Way::plain, Way::skip, Way::expanded}) {
        double& best = us[static_cast<int>(way)];
        best = std::min(
            best, layer_us([&](int i, Worker w) { read_ranked(view(i, way), fast, ranked_, w); }));
      }
    }
    ReadTrace trace;
    ranked(0, Way::plain, Precision::fast, &trace);
    const double whole = double{static_cast<float>(layers_.shape.token_bytes())} * case_.n_tokens;
    state.counters["distance"] = loss;
    state.counters["dense_us"] = dense_us;
    state.counters["ranked_us"] = us[0];
    state.counters["slower"] = us[0] / dense_us;
    state.counters["skip_slower"] = us[1] / dense_us;
    state.counters["expanded_slower"] = us[2] / dense_us;
    state.counters["stored"] = static_cast<double>(layers_.coded[0]->bytes().stored()) / whole;
    state.counters["touched"] = static_cast<double>(trace.ranked.bytes()) / whole;
    for ([[maybe_unused]] auto one : state) ranked(0, Way::plain, Precision::fast);
  }

 private:
  Case case_;
  Layers layers_;
  ThreadPool pool_;
  AttendWorkspace workspace_;
  RankedWorkspace ranked_;
  std::vector<float> out_;
  SuffixRows row_{.row = 0, .n_rows = 1};
};

void add(const std::string& name, Case c) {
  benchmark::RegisterBenchmark(name.c_str(), [c](benchmark::State& state) {
    Bench(c).report(state);
  })->Iterations(1);
}

}  // namespace

int main(int argc, char** argv) {
  add("smollm2/8k", {3, 3, 64, 8192, {}});
  add("smollm2/8k/4bit", {3, 3, 64, 8192, {4}});
  add("smollm2/8k/tree", {3, 3, 64, 8192, {8, RankPlan::Code::sigma}});
  add("smollm2/2k", {3, 3, 64, 2048, {}});
  add("group7/8k", {7, 2, 64, 8192, {}});
  add("smollm2/8k/one_thread", {3, 3, 64, 8192, {}, 1, 1});
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
