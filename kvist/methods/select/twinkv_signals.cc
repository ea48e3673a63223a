// SPDX-License-Identifier: MIT
// What TwinKV measures: similar far-away keys, value energies, and what the last queries look at.
#include <algorithm>
#include <array>
#include <cmath>

#include "kvist/core/error.h"
#include "kvist/kernels/similar.h"
#include "kvist/kernels/window.h"
#include "kvist/methods/select/twinkv.h"
#include "kvist/methods/select/twinkv_controls.h"

namespace kvist::twin {
namespace {

constexpr int kChunk = 128;  // rows that one thread reads at a time

[[noreturn]] void refuse(const LayerInput& layer, const char* head_kind, int head, int64_t position,
                         const char* what, float found) {
  throw Error(
      ErrorKind::corrupt,
      str("layer ", layer.layer, ", ", head_kind, " ", head, ", position ", position, ": the ",
          what, " holds ", found, "; expected finite numbers (nonfinite=last ranks them last)"));
}

// Calls body(begin, end, worker) for all chunks of [0, n).
template <typename Body>
void for_chunks(int n, ThreadPool& pool, const Body& body) {
  pool.run([&](Worker worker) {
    for (int64_t begin = int64_t{kChunk} * worker.index; begin < n;
         begin += int64_t{kChunk} * worker.count) {
      body(static_cast<int>(begin), static_cast<int>(std::min<int64_t>(begin + kChunk, n)), worker);
    }
  });
}

// The first number that is not finite of each chunk: [chunks], -1 where there is none.
struct Strays {
  explicit Strays(int n) : at(static_cast<size_t>((n + kChunk - 1) / kChunk), -1) {}
  // Looks at rows [begin, ...) of one chunk.
  void look(int begin, const float* rows, int64_t size, int head_dim) {
    int64_t where = 0;
    if (!kernels::find_nonfinite(rows, size, &where)) return;
    at[static_cast<size_t>(begin / kChunk)] = int64_t{begin} * head_dim + where;
  }
  int64_t first() const {  // -1: none
    for (int64_t where : at) {
      if (where >= 0) return where;
    }
    return -1;
  }
  std::vector<int64_t> at;
};

// Reads one head's keys into out; true where all are finite. Otherwise throws, or clears the rows
// that are not: a zero key is similar to nothing.
bool read_keys(const LayerInput& layer, int head, const Config& config, float* out) {
  const int d = layer.head_dim;
  Strays strays(layer.n_tokens);
  for_chunks(layer.n_tokens, *layer.pool, [&](int begin, int end, Worker) {
    float* rows = out + int64_t{begin} * d;
    layer.keys->read(head, begin, end, rows);
    strays.look(begin, rows, int64_t{end - begin} * d, d);
  });
  const int64_t first = strays.first();
  if (first < 0) return true;
  if (!config.nonfinite_last) refuse(layer, "head", head, first / d, "key", out[first]);
  for (int64_t row = 0; row < layer.n_tokens; ++row) {
    int64_t where = 0;
    if (kernels::find_nonfinite(out + row * d, d, &where)) std::fill_n(out + row * d, d, 0.0f);
  }
  return false;
}

void read_energies(const LayerInput& layer, int head, const Config& config, float* out) {
  const int d = layer.head_dim;
  const int64_t chunk_size = int64_t{kChunk} * d;
  Buffer<float> rows(static_cast<size_t>(chunk_size * layer.pool->n_threads()));
  Strays strays(layer.n_tokens);
  for_chunks(layer.n_tokens, *layer.pool, [&](int begin, int end, Worker worker) {
    float* chunk = rows.data() + chunk_size * worker.index;
    layer.values->read(head, begin, end, chunk);
    strays.look(begin, chunk, int64_t{end - begin} * d, d);
    kernels::energies(chunk, end - begin, d, out + begin);
  });
  const int64_t first = strays.first();
  if (first < 0 || config.nonfinite_last) return;
  const auto position = static_cast<int>(first / d);
  layer.values->read(head, position, position + 1, rows.data());
  refuse(layer, "head", head, position, "value", rows[static_cast<size_t>(first % d)]);
}

// Counts of one head, [n], shuffled where the control asks for it.
void count_keys(const LayerInput& layer, int head, const Budget& budget, const Config& config,
                const float* keys, int32_t* counts) {
  const int ell = static_cast<int>(std::min<int64_t>(config.ell, layer.n_tokens));
  kernels::count_similar(keys, layer.n_tokens, layer.head_dim, ell, *layer.pool, counts);
  if (!config.permute_seed) return;
  permute_counts({counts + budget.sinks, static_cast<size_t>(budget.open())}, *config.permute_seed,
                 static_cast<uint32_t>(layer.layer), static_cast<uint32_t>(head));
}

// The last window queries of a KV head's group.
TensorView<const float, 3> group_queries(const LayerInput& layer, int head, int window) {
  const auto& q = layer.q;
  const int group = layer.heads / layer.kv_heads;
  const float* data = q.data() + (q.dim(0) - window) * q.stride(0) + head * group * q.stride(1);
  return {data, {window, group, layer.head_dim}, {q.stride(0), q.stride(1), q.stride(2)}};
}

// True where all are finite; otherwise throws unless they rank last.
bool check_queries(const LayerInput& layer, int head, TensorView<const float, 3> q,
                   const Config& config) {
  for (int64_t t = 0; t < q.dim(0); ++t) {
    for (int64_t g = 0; g < q.dim(1); ++g) {
      int64_t where = 0;
      if (!kernels::find_nonfinite(&q(t, g, 0), q.dim(2), &where)) continue;
      if (config.nonfinite_last) return false;
      refuse(layer, "query head", head * static_cast<int>(q.dim(1)) + static_cast<int>(g),
             layer.n_tokens - q.dim(0) + t, "query", q(t, g, where));
    }
  }
  return true;
}

void require_queries(const LayerInput& layer, int window) {
  if (layer.q.dim(0) >= window && layer.q.dim(1) == layer.heads && layer.q.dim(2) == layer.head_dim)
    return;
  throw Error(ErrorKind::invalid_argument,
              str("twinkv, layer ", layer.layer, ": needs the queries of the last ", window,
                  " positions, [", window, ", ", layer.heads, ", ", layer.head_dim, "], found [",
                  layer.q.dim(0), ", ", layer.q.dim(1), ", ", layer.q.dim(2), "]"));
}

}  // namespace

void capacity_signal(const float* keys, int head_dim, TensorView<const float, 3> q,
                     float logit_scale, const Budget& budget, const Config& config,
                     ThreadPool& pool, float* z) {
  const int n = budget.n, group = static_cast<int>(q.dim(1)), radius = config.pool / 2;
  // The pool runs over [begin, begin + width) of the prefix; z is its part over the open positions.
  const int begin = config.pool_sees_protected ? 0 : budget.sinks;
  const int width = config.pool_sees_protected ? n : budget.open();
  const int skip = budget.sinks - begin;
  if (!config.pool_per_query_head) {
    Buffer<float> mean(static_cast<size_t>(n)), pooled(static_cast<size_t>(width));
    kernels::window_attention(keys, n, head_dim, q, logit_scale, pool, mean.data());
    kernels::max_pool(mean.data() + begin, width, radius, pooled.data());
    std::copy_n(pooled.data() + skip, budget.open(), z);
    return;
  }
  Buffer<double> means(static_cast<size_t>(group) * static_cast<size_t>(n));
  Buffer<double> pooled(static_cast<size_t>(width)), sum(static_cast<size_t>(budget.open()));
  kernels::window_attention_per_head(keys, n, head_dim, q, logit_scale, pool, means.data());
  for (int g = 0; g < group; ++g) {
    kernels::max_pool(means.data() + int64_t{g} * n + begin, width, radius, pooled.data());
    for (int i = 0; i < budget.open(); ++i) sum.data()[i] += pooled.data()[skip + i];
  }
  for (int i = 0; i < budget.open(); ++i) z[i] = static_cast<float>(sum.data()[i] / group);
}

Signals measure(const LayerInput& layer, const Budget& budget, const Config& config) {
  const int n = layer.n_tokens, window = std::min(config.window, n);
  const auto heads = static_cast<size_t>(layer.kv_heads);
  Signals signals;
  signals.energies = Buffer<float>(heads * static_cast<size_t>(n));
  if (config.score != Score::value)
    signals.counts = Buffer<int32_t>(heads * static_cast<size_t>(n));
  if (config.adapted) {
    require_queries(layer, window);
    signals.z = Buffer<float>(heads * static_cast<size_t>(budget.open()));
  }
  Buffer<float> keys(static_cast<size_t>(n) * static_cast<size_t>(layer.head_dim));  // of one head
  for (int head = 0; head < layer.kv_heads; ++head) {
    bool finite = read_keys(layer, head, config, keys.data());
    if (!signals.counts.empty()) {
      count_keys(layer, head, budget, config, keys.data(),
                 signals.counts.data() + int64_t{head} * n);
    }
    if (!signals.z.empty()) {
      const auto q = group_queries(layer, head, window);
      finite &= check_queries(layer, head, q, config);
      // One key or query that is not finite makes every weight of a softmax NaN, and NaN counts as
      // 0.
      if (finite) {
        capacity_signal(keys.data(), layer.head_dim, q, layer.logit_scale, budget, config,
                        *layer.pool, signals.z.data() + int64_t{head} * budget.open());
      }
    }
    read_energies(layer, head, config, signals.energies.data() + int64_t{head} * n);
  }
  return signals;
}

}  // namespace kvist::twin
