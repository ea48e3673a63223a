// SPDX-License-Identifier: MIT
// The search for nearest anchors in one layer of VarRate, against brute force in fp32 as one would
// first write it. The results are compared before anything is timed.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "kvist/core/rng.h"
#include "kvist/core/thread_pool.h"
#include "kvist/kernels/nearest.h"

namespace kvist {
namespace {

constexpr int kStride = 16, kNear = 4, kThreads = 2;

struct Rows {
  std::vector<float> z;
  int width = 0;
  std::vector<int32_t> anchors, coded;
};

// Rows around 200 centres, of decaying spread over the coordinates.
Rows make(int n, int width) {
  Rng rng(7);
  Rows r;
  r.width = width;
  const auto d = static_cast<size_t>(width);
  std::vector<float> centres(200 * d);
  for (size_t i = 0; i < centres.size(); ++i)
    centres[i] = static_cast<float>(rng.gaussian() * 20 / (1 + static_cast<double>(i % d)));
  r.z.resize(static_cast<size_t>(n) * d);
  for (int t = 0; t < n; ++t) {
    const size_t centre = rng.below(200) * d;
    for (size_t c = 0; c < d; ++c)
      r.z[static_cast<size_t>(t) * d + c] =
          centres[centre + c] + static_cast<float>(rng.gaussian());
    (t % kStride == 0 ? r.anchors : r.coded).push_back(t);
  }
  return r;
}

// Sums of squared differences, every anchor against every token, the four best kept; the tokens
// divided among the same threads.
std::vector<uint16_t> brute(const Rows& r, ThreadPool& pool) {
  std::vector<uint16_t> out(r.coded.size() * kNear);
  pool.parallel_for(static_cast<int64_t>(r.coded.size()), [&](int64_t i) {
    const float* x = r.z.data() + static_cast<int64_t>(r.coded[static_cast<size_t>(i)]) * r.width;
    std::vector<std::pair<float, uint16_t>> found;
    for (size_t j = 0; j < r.anchors.size(); ++j) {
      const float* a = r.z.data() + static_cast<int64_t>(r.anchors[j]) * r.width;
      float sum = 0;
      for (int c = 0; c < r.width; ++c) sum += (x[c] - a[c]) * (x[c] - a[c]);
      found.emplace_back(sum, static_cast<uint16_t>(j));
    }
    std::partial_sort(found.begin(), found.begin() + kNear, found.end());
    for (size_t k = 0; k < kNear; ++k) out[static_cast<size_t>(i) * kNear + k] = found[k].second;
  });
  return out;
}

std::vector<uint16_t> blocked(const Rows& r, ThreadPool& pool, kernels::NearestStats* stats) {
  std::vector<uint16_t> out(r.coded.size() * kNear);
  kernels::nearest_rows(r.z.data(), r.width, r.anchors, r.coded, kNear, false, pool, out.data(),
                        stats);
  return out;
}

double operations(const Rows& r) {
  return 2.0 * static_cast<double>(r.coded.size()) * static_cast<double>(r.anchors.size()) *
         r.width;
}

void search(benchmark::State& state) {
  const Rows r = make(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
  ThreadPool pool(kThreads);
  kernels::NearestStats stats;
  const auto mine = blocked(r, pool, &stats);
  if (state.range(2) == 1) {
    // fp32 may swap neighbours whose distances differ by less than its rounding.
    const auto plain = brute(r, pool);
    size_t differ = 0;
    for (size_t i = 0; i < plain.size(); ++i) differ += plain[i] != mine[i];
    if (differ * 1000 > plain.size()) std::abort();
    for (auto _ : state) benchmark::DoNotOptimize(brute(r, pool));
  } else {
    for (auto _ : state) benchmark::DoNotOptimize(blocked(r, pool, &stats));
    state.counters["fp64_share"] =
        static_cast<double>(stats.direct) / static_cast<double>(r.coded.size() * kNear);
  }
  state.counters["GFLOP/s"] =
      benchmark::Counter(operations(r) / 1e9, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(search)
    ->ArgNames({"tokens", "width", "brute"})
    ->Args({2048, 384, 1})
    ->Args({2048, 384, 0})
    ->Args({8192, 384, 1})
    ->Args({8192, 384, 0})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvist

BENCHMARK_MAIN();
