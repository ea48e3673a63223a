// SPDX-License-Identifier: MIT
// What coding one layer under VarRate costs, of the shape of the embedded model (3 of 9 heads of
// width 64, 30 such layers): all of it, and its larger stages.
#include <benchmark/benchmark.h>

#include <cmath>
#include <memory>
#include <vector>

#include "kvist/core/rng.h"
#include "kvist/core/thread_pool.h"
#include "kvist/methods/array_rows.h"
#include "kvist/methods/rank/anchors.h"
#include "kvist/methods/rank/encode_layer.h"
#include "kvist/methods/rank/salience.h"

namespace kvist {
namespace {

constexpr int kHeads = 3, kGroup = 3, kDim = 64, kWidth = 2 * kHeads * kDim, kWindow = 64;

// Keys and values of a decaying spectrum, a basis of unit vectors.
struct Layer {
  explicit Layer(int tokens) : n(tokens) {
    Rng rng(3);
    const auto size = static_cast<size_t>(n) * kHeads * kDim;
    for (auto* x : {&k, &v}) {
      x->resize(size);
      for (size_t i = 0; i < size; ++i)
        (*x)[i] =
            static_cast<float>(rng.gaussian() / std::sqrt(1.0 + static_cast<double>(i % kDim)));
    }
    q.resize(static_cast<size_t>(kWindow) * kHeads * kGroup * kDim);
    for (float& x : q) x = static_cast<float>(rng.gaussian());
    for (int f = 0; f < kDim / 2; ++f) rope.frequencies.push_back(std::pow(1e5, -2.0 * f / kDim));
    keys = std::make_unique<ArrayRows>(k.data(), kHeads, kDim);
    values = std::make_unique<ArrayRows>(v.data(), kHeads, kDim);
    input.n_tokens = n;
    input.kv_heads = kHeads;
    input.heads = kHeads * kGroup;
    input.head_dim = kDim;
    input.keys = keys.get();
    input.values = values.get();
    input.q = {q.data(), {kWindow, kHeads * kGroup, kDim}};
    input.logit_scale = 0.125f;
    input.pool = &pool;
    basis.n_rows = basis.width = kWidth;
    basis.rows.resize(size_t{kWidth} * kWidth);
    for (size_t j = 0; j < kWidth; ++j) basis.rows[j * kWidth + j] = 1;
  }

  int n;
  std::vector<float> k, v, q;
  std::unique_ptr<ArrayRows> keys, values;
  Rope rope;
  ThreadPool pool{2};
  LayerInput input;
  RankBasisLayer basis;
};

RankPlan plan_of(bool energy, int stride) {
  RankPlan plan;
  plan.stride = stride;
  plan.allocation = energy ? RankPlan::Allocation::energy : RankPlan::Allocation::salience;
  return plan;
}

void encode(benchmark::State& state) {
  Layer layer(static_cast<int>(state.range(0)));
  const RotationTable rotation(layer.rope, layer.n);
  const RankPlan plan = plan_of(state.range(2) != 0, static_cast<int>(state.range(1)));
  for (auto _ : state)
    benchmark::DoNotOptimize(encode_layer(layer.input, layer.basis, plan, rotation, layer.pool));
}
BENCHMARK(encode)
    ->ArgNames({"tokens", "stride", "energy"})
    ->ArgsProduct({{2048, 8192}, {16, 64}, {0, 1}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

void joint(benchmark::State& state) {
  Layer layer(static_cast<int>(state.range(0)));
  const RotationTable rotation(layer.rope, layer.n);
  for (auto _ : state) benchmark::DoNotOptimize(joint_rows(layer.input, rotation, 1));
}
BENCHMARK(joint)->Arg(2048)->Arg(8192)->UseRealTime()->Unit(benchmark::kMillisecond);

void search(benchmark::State& state) {
  Layer layer(static_cast<int>(state.range(0)));
  const RotationTable rotation(layer.rope, layer.n);
  const Buffer<float> z = joint_rows(layer.input, rotation, 1);
  const AnchorSets sets = anchor_sets(layer.n, 16, kWindow);
  for (auto _ : state)
    benchmark::DoNotOptimize(nearest_anchors(z.data(), kWidth, sets, 4, false, layer.pool));
}
BENCHMARK(search)->Arg(2048)->Arg(8192)->UseRealTime()->Unit(benchmark::kMillisecond);

void window(benchmark::State& state) {
  Layer layer(static_cast<int>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(window_means(layer.input, RankPlan{}));
}
BENCHMARK(window)->Arg(2048)->Arg(8192)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvist

BENCHMARK_MAIN();
