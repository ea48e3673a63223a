// SPDX-License-Identifier: MIT
// Whole layer calls of ReadKV's reader against our own dense f16 reader: one token, prefix of coded
// pages, all schedules made anew for every call. Each case checks the output first, then times both
// in turn over layers that together exceed the caches, and reports the best of each.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/layers.h"
#include "kvist/cache/coded_reader.h"
#include "kvist/cache/prefix.h"
#include "kvist/core/error.h"
#include "kvist/core/rng.h"
#include "kvist/kernels/targets.h"
#include "kvist/methods/read/schedule.h"

namespace {

using namespace kvist;

constexpr int kRounds = 100;

struct Case {
  int group, kv_heads, head_dim, n_tokens;
  ReadPlan plan;
  int threads = 2;
  int n_layers() const { return n_tokens > 8192 ? 2 : 6; }
  KvShape shape() const {
    return {.kv_heads = kv_heads, .heads = kv_heads * group, .head_dim = head_dim};
  }
};

std::vector<float> gaussians(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> out(n);
  for (float& x : out) x = static_cast<float>(rng.gaussian());
  return out;
}

// Standard normal channels: what the transform makes of a head, roughly.
struct Layers {
  explicit Layers(const Case& c)
      : shape(c.shape()),
        u(HeadTransform::hadamard(c.head_dim, 1, HeadTransform::Kind::key, 0)),
        zeros(static_cast<size_t>(c.kv_heads * c.head_dim), 0.0f),
        ones(zeros.size(), 1.0f) {
    const size_t heads = static_cast<size_t>(c.kv_heads);
    code = {.u_k = {heads, &u},
            .u_v = {heads, &u},
            .mu_k = zeros.data(),
            .sigma_k = ones.data(),
            .mu_v = zeros.data(),
            .sigma_v = ones.data()};
    const size_t width = zeros.size();
    const auto numbers = gaussians(width * static_cast<size_t>(c.n_tokens + c.n_layers() + 7), 1);
    for (int i = 0; i < c.n_layers(); ++i) {
      dense.emplace_back(shape);
      coded.push_back(std::make_unique<CodedLayer>(shape, code, c.plan));
      dense.back().reserve(c.n_tokens);
      dense.back().resize(c.n_tokens);
      coded.back()->expect(c.n_tokens);
      for (int j = 0; j < c.n_tokens; ++j) {
        const float* k = &numbers[width * static_cast<size_t>(i + j)];
        dense.back().write(j, k, k + 7 * width);
        if (j % 512 == 0) coded.back()->reserve(std::min(c.n_tokens, j + 512));
        coded.back()->resize(j + 1);
        coded.back()->write(j, k, k + 7 * width);
      }
      coded.back()->freeze();
    }
    q = gaussians(static_cast<size_t>(shape.heads * c.head_dim), 3);
  }
  KvShape shape;
  HeadTransform u;
  std::vector<float> zeros, ones;
  LayerCode code;
  std::vector<DenseLayer> dense;
  std::vector<std::unique_ptr<CodedLayer>> coded;
  std::vector<float> q;
};

class Bench {
 public:
  explicit Bench(const Case& c) : case_(c), layers_(c), pool_(c.threads) {
    workspace_.reserve(layers_.shape, 1, c.n_tokens, c.threads);
    read_.reserve(layers_.shape, c.n_tokens, c.threads);
    out_.resize(layers_.q.size());
    for (const DenseLayer& layer : layers_.dense) {
      runs_.emplace_back();
      for (int head = 0; head < c.kv_heads; ++head) runs_.back().push_back(layer.run(head));
    }
  }

  AttendCall call(kernels::Precision precision) {
    return {.q = layers_.q.data(),
            .out = out_.data(),
            .n_rows = 1,
            .logit_scale = 1 / std::sqrt(static_cast<float>(case_.head_dim)),
            .suffixes = {&row_, 1},
            .precision = precision};
  }

  void dense(int layer, Worker worker) {
    attend_runs(runs_[static_cast<size_t>(layer)], layers_.shape, call(kernels::Precision::fast),
                workspace_, worker);
  }
  void dense() {
    pool_.run([&](Worker w) { dense(0, w); });
  }

  void coded(int layer, const AttendCall& call, Worker worker) {
    read_coded(layers_.coded[static_cast<size_t>(layer)].get(), layers_.shape, layers_.code,
               case_.plan, call, read_, worker);
  }
  void coded(kernels::Precision precision, ReadTrace* trace = nullptr) {
    AttendCall c = call(precision);
    c.trace = trace;
    pool_.run([&](Worker w) { coded(0, c, w); });
  }

  template <typename Fn>
  double layer_us(const Fn& fn) {
    return kvist::layer_us(pool_, case_.n_layers(), fn);
  }

  // Distance of the fast output from the exact one over the distance of that from dense attention:
  // what sums in bytes lose beside what the code loses.
  double byte_loss() {
    dense();
    const auto whole = out_;
    coded(kernels::Precision::exact);
    const auto exact = out_;
    coded(kernels::Precision::fast);
    double bytes = 0, code = 0;
    for (size_t i = 0; i < out_.size(); ++i) {
      bytes += std::pow(double{out_[i]} - double{exact[i]}, 2);
      code += std::pow(double{exact[i]} - double{whole[i]}, 2);
    }
    return std::sqrt(bytes / code);
  }

  void report(benchmark::State& state) {
    const double loss = byte_loss();
    if (!(loss < 0.3)) return state.SkipWithError(str("bytes lose ", loss).c_str());
    double dense_us = 1e30, coded_us = 1e30, exact_us = 1e30;
    for (int round = 0; round < kRounds; ++round) {
      const auto coded_in = [&](kernels::Precision precision) {
        const AttendCall c = call(precision);
        return layer_us([&](int i, Worker w) { coded(i, c, w); });
      };
      dense_us = std::min(dense_us, layer_us([&](int i, Worker w) { dense(i, w); }));
      coded_us = std::min(coded_us, coded_in(kernels::Precision::fast));
      if (round == 0) exact_us = coded_in(kernels::Precision::exact);
    }
    const double bytes =
        static_cast<double>(layers_.shape.token_bytes()) * static_cast<double>(case_.n_tokens);
    state.counters["dense_us"] = dense_us;
    state.counters["coded_us"] = coded_us;
    state.counters["exact_us"] = exact_us;
    state.counters["speedup"] = dense_us / coded_us;
    state.counters["dense_GB/s"] = bytes / dense_us / 1e3;
    state.counters["byte_loss"] = loss;
    state.counters["held"] = static_cast<double>(layers_.coded[0]->bytes().allocated +
                                                 layers_.coded[0]->bytes().shared) /
                             bytes;
    add_schedule(state, bytes, coded_us);
  }

 private:
  void add_schedule(benchmark::State& state, double dense_bytes, double coded_us) {
    std::vector<float> weights;
    ReadTrace trace;
    trace.observe = [&](const RowSchedule& row) {
      weights.assign(row.value_weights.begin(), row.value_weights.end());
    };
    coded(kernels::Precision::fast, &trace);
    std::vector<uint8_t> depths(weights.size());
    SharedDepths shared;
    shared.reserve(static_cast<int64_t>(weights.size()), 1);
    const std::span<const float> all = weights;
    const auto n = static_cast<int64_t>(weights.size());
    const auto since = [](auto start) {
      return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
          .count();
    };
    // What workers share is timed on one of them.
    double together_us = 1e30, alone_us = 1e30;
    for (int round = 0; round < kRounds; ++round) {
      auto start = std::chrono::steady_clock::now();
      for (size_t at = 0; at < all.size(); at += 2048)
        shared.count(0, all.subspan(at, std::min<size_t>(2048, all.size() - at)));
      double together = since(start);
      start = std::chrono::steady_clock::now();
      shared.cut(all, case_.plan.width, 0, value_budget(case_.plan, n));
      double alone = since(start);
      start = std::chrono::steady_clock::now();
      for (int piece = 0; piece < SharedDepths::n_pieces(all.size()); ++piece)
        shared.split(piece, all, depths);
      together += since(start);
      start = std::chrono::steady_clock::now();
      shared.settle(all, depths);
      alone += since(start);
      together_us = std::min(together_us, together), alone_us = std::min(alone_us, alone);
    }
    state.counters["touched"] = static_cast<double>(trace.lines * 64) / dense_bytes;
    state.counters["choose_share"] = (together_us / case_.threads + alone_us) / coded_us;
  }

  Case case_;
  Layers layers_;
  ThreadPool pool_;
  AttendWorkspace workspace_;
  ReadWorkspace read_;
  std::vector<std::vector<kernels::KvRun>> runs_;  // [layers][kv_heads]
  std::vector<float> out_;
  SuffixRows row_{.row = 0, .n_rows = 1, .first_token = -1};
};

void run(benchmark::State& state, Case c) {
  for (auto _ : state) Bench(c).report(state);
}

void add_all() {
  struct Point {
    int width, keys, values;
  };
  for (const auto& [group, kv_heads, d] : {std::tuple{4, 4, 128}, {7, 4, 128}, {3, 3, 64}})
    for (int n : {8192, 32768})
      for (const Point& p : {Point{8, 2, 2}, {8, 3, 1}, {8, 4, 4}, {4, 2, 2}})
        for (int threads : {2, 1}) {
          const Case c{group,
                       kv_heads,
                       d,
                       n,
                       {.width = p.width, .key_rate = {p.keys, 1}, .value_rate = {p.values, 1}},
                       threads};
          const std::string name = str("read/group:", group, "/d:", d, "/n:", n, "/W:", p.width,
                                       "/K:", p.keys, "/V:", p.values, "/threads:", threads);
          benchmark::RegisterBenchmark(name.c_str(), run, c)
              ->Iterations(1)
              ->Unit(benchmark::kMillisecond);
        }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  kernels::apply_environment();
  add_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
