// SPDX-License-Identifier: MIT
// What TwinKV construction asks of one KV head: counts, window attention, energies; times beside
// the shares that explain them.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kvist/core/half.h"
#include "kvist/core/rng.h"
#include "kvist/core/thread_pool.h"
#include "kvist/kernels/similar.h"
#include "kvist/kernels/similar_internal.h"
#include "kvist/kernels/window.h"

namespace kvist {
namespace {

// Keys as a model makes them: a shared mean, a word's own direction (words by Zipf's law), a topic
// that changes every 256 tokens, noise; rotated by position; as bf16. [n][d]
std::vector<float> synthetic_keys(int n, int d) {
  constexpr int kWords = 4000;
  Rng rng(42);
  const auto normals = [&](int count) {
    std::vector<double> x(static_cast<size_t>(count));
    for (double& v : x) v = rng.gaussian();
    return x;
  };
  std::vector<double> scale = normals(d), mean = normals(d), words = normals(kWords * d), topic,
                      cumulative;
  for (double& s : scale) s = std::exp(0.9 * s);
  for (int w = 0; w < kWords; ++w)
    cumulative.push_back((w ? cumulative.back() : 0) + 1.0 / (w + 2));
  std::vector<float> keys(static_cast<size_t>(n) * static_cast<size_t>(d));
  for (int t = 0; t < n; ++t) {
    if (t % 256 == 0) topic = normals(d);
    const auto word =
        std::lower_bound(cumulative.begin(), cumulative.end(), rng.uniform() * cumulative.back()) -
        cumulative.begin();
    std::vector<double> x;
    for (int k = 0; k < d; ++k) {
      const auto at = static_cast<size_t>(k);
      x.push_back(scale[at] * (0.5 * mean[at] + words[static_cast<size_t>(word * d + k)] +
                               0.5 * topic[at] + 0.4 * rng.gaussian()));
    }
    for (int f = 0; f < d / 2; ++f) {
      const double angle = t * std::pow(1e5, -2.0 * f / d), c = std::cos(angle),
                   s = std::sin(angle);
      const double a = x[static_cast<size_t>(f)], b = x[static_cast<size_t>(f + d / 2)];
      float* key = keys.data() + static_cast<int64_t>(t) * d;
      key[f] = to_float(to_bf16(static_cast<float>(a * c - b * s)));
      key[f + d / 2] = to_float(to_bf16(static_cast<float>(b * c + a * s)));
    }
  }
  return keys;
}

// KVIST_BENCH_KEYS=file:heads reads a real head instead: float32 [tokens][heads][d], head 0.
std::vector<float> bench_keys(int n, int d) {
  const char* given = std::getenv("KVIST_BENCH_KEYS");
  if (given == nullptr) return synthetic_keys(n, d);
  const std::string name(given);
  const size_t colon = name.rfind(':');
  const int64_t heads = std::stoi(name.substr(colon + 1));
  std::ifstream file(name.substr(0, colon), std::ios::binary);
  std::vector<float> all(static_cast<size_t>(n * heads * d)), keys;
  file.read(reinterpret_cast<char*>(all.data()), static_cast<std::streamsize>(all.size() * 4));
  for (int64_t t = 0; t < n; ++t)
    keys.insert(keys.end(), &all[static_cast<size_t>(t * heads * d)],
                &all[static_cast<size_t>(t * heads * d)] + d);
  return keys;
}

const std::vector<float>& keys_of(int n, int d) {
  static std::map<std::pair<int, int>, std::vector<float>> made;
  auto& keys = made[{n, d}];
  if (keys.empty()) keys = bench_keys(n, d);
  return keys;
}

template <typename Function>
void count(benchmark::State& state, const Function& function) {
  const int n = static_cast<int>(state.range(0)), d = static_cast<int>(state.range(1));
  ThreadPool pool(static_cast<int>(state.range(2)));
  const std::vector<float>& keys = keys_of(n, d);
  std::vector<int32_t> counts(static_cast<size_t>(n));
  kernels::CountStats stats;
  for (auto _ : state) function(keys.data(), n, d, 32, pool, counts.data(), &stats);
  state.counters["rejected"] =
      static_cast<double>(stats.rejected) / static_cast<double>(stats.tiles);
  state.counters["borderline"] = static_cast<double>(stats.borderline) / (0.5 * n * n);
  state.counters["zero_counts"] =
      static_cast<double>(std::count(counts.begin(), counts.end(), 0)) / n;
}

void Count(benchmark::State& state) { count(state, kernels::count_similar); }
// As on a CPU without AMX.
void CountFixed(benchmark::State& state) { count(state, kernels::internal::count_similar_fixed); }

void Window(benchmark::State& state) {
  const int n = static_cast<int>(state.range(0)), d = static_cast<int>(state.range(1));
  ThreadPool pool(static_cast<int>(state.range(2)));
  const std::vector<float>& keys = keys_of(n, d);
  std::vector<float> abar(static_cast<size_t>(n));
  const TensorView<const float, 3> q(keys.data(), {32, 3, d});
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  for (auto _ : state) kernels::window_attention(keys.data(), n, d, q, scale, pool, abar.data());
}

void Energies(benchmark::State& state) {
  const int n = static_cast<int>(state.range(0)), d = static_cast<int>(state.range(1));
  const std::vector<float>& keys = keys_of(n, d);
  std::vector<float> out(static_cast<size_t>(n));
  for (auto _ : state) {
    kernels::energies(keys.data(), n, d, out.data());
    int64_t where = 0;
    benchmark::DoNotOptimize(
        kernels::find_nonfinite(keys.data(), static_cast<int64_t>(n) * d, &where));
  }
}

void shapes(benchmark::internal::Benchmark* b) {
  for (int d : {64, 128}) {
    for (int n : {2048, 8192}) {
      for (int threads : {1, 2}) b->Args({n, d, threads});
    }
  }
  b->ArgNames({"n", "d", "threads"})->Unit(benchmark::kMillisecond)->UseRealTime();
}
BENCHMARK(Count)->Apply(shapes);
BENCHMARK(CountFixed)->Apply(shapes);
BENCHMARK(Window)->Apply(shapes);
BENCHMARK(Energies)
    ->ArgNames({"n", "d"})
    ->Args({2048, 64})
    ->Args({8192, 64})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvist

BENCHMARK_MAIN();
