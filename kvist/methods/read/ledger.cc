// SPDX-License-Identifier: MIT
// One rule a method; every charge in bits, so that all sums are integers.
#include "kvist/methods/read/ledger.h"

#include <algorithm>
#include <numeric>

#include "kvist/core/error.h"

namespace kvist {
namespace {

using Geometry = ModelGeometry;

constexpr int64_t bytes(int64_t n) { return 8 * n; }
int64_t channels(const Geometry& m) { return int64_t{m.kv_heads} * m.head_dim; }
// Means and scales of keys and values, 16 bits each; loaded whole by every call.
int64_t calibration_bits(const Geometry& m) { return bytes(8 * channels(m)); }

// The running mean of the values that SparQ falls back on: kept, and read by every call. Table 8
// prints 50.1 for the nested code on Mistral at 4,096 tokens, which needs it in the capacity too.
int64_t mean_bits(const Geometry& m) { return 16 * channels(m); }

Share share(int64_t num, int64_t den) {
  const int64_t common = std::gcd(num, den);
  return {num / common, den / common};
}

}  // namespace

LedgerRule readkv_rule(int stored_bits, Ratio rate, int64_t table_bytes) {
  LedgerRule rule;
  rule.read = [=](const Geometry& m, int64_t T) {
    return floor_mul(2 * T * channels(m), rate) + calibration_bits(m) + bytes(table_bytes);
  };
  rule.stored = [=](const Geometry& m, int64_t T) {
    return 2 * T * channels(m) * stored_bits + calibration_bits(m);
  };
  rule.shared = bytes(table_bytes);
  return rule;
}

LedgerRule turboquant_rule() {
  constexpr int64_t kBook = 16 * 32;  // float32 centroids
  const auto stored = [](const Geometry& m, int64_t T) {
    return T * (8 * channels(m) + int64_t{16 + 32} * m.kv_heads);
  };
  return {[=](const Geometry& m, int64_t T) { return stored(m, T) + kBook; }, stored, kBook, 0};
}

LedgerRule kivi_rule(int bits) {
  // Dense tails as attention sees them: keys before their flush, values at most 128.
  const auto cost = [=](const Geometry& m, int64_t T) {
    const int64_t dense_k = (T - 1) % 128 + 1, dense_v = std::min<int64_t>(T, 128);
    const int64_t key = m.head_dim * int64_t{bits + 1};
    const int64_t value = m.head_dim * int64_t{bits} + int64_t{32} * ((m.head_dim + 31) / 32);
    const int64_t dense = m.head_dim * int64_t{16} * (dense_k + dense_v);
    return m.kv_heads * ((T - dense_k) * key + (T - dense_v) * value + dense);
  };
  return {cost, cost, 0, 0};
}

LedgerRule lloyd_rule() {
  constexpr int64_t kBook = 4 * 32;
  const auto stored = [](const Geometry& m, int64_t T) {
    return T * (4 * channels(m) + int64_t{16} * m.kv_heads) + calibration_bits(m);
  };
  return {[=](const Geometry& m, int64_t T) { return stored(m, T) + kBook; }, stored, kBook, 0};
}

LedgerRule sparq_rule(int r, int k) {
  LedgerRule rule;
  rule.read = [=](const Geometry& m, int64_t T) {
    const int64_t probe = int64_t{m.kv_heads} * r * 16 * (T - 1);
    const int64_t tokens = (std::min<int64_t>(k, T - 1) + 1) * dense_token_bits(m);
    return probe + tokens + mean_bits(m);
  };
  rule.stored = [](const Geometry& m, int64_t T) { return T * dense_token_bits(m) + mean_bits(m); };
  return rule;
}

LedgerRule nested_rule(int r, int k, int64_t table_bytes) {
  LedgerRule rule = readkv_rule(8, {8, 1}, table_bytes);
  rule.stored = [code = rule.stored](const Geometry& m, int64_t T) {
    return code(m, T) + mean_bits(m);
  };
  rule.read = [=](const Geometry& m, int64_t T) {
    const int64_t probe = int64_t{m.kv_heads} * r * 2 * (T - 1);
    const int64_t tokens = (std::min<int64_t>(k, T - 1) + 1) * dense_token_bits(m) / 2;
    return probe + tokens + mean_bits(m) + calibration_bits(m) + bytes(table_bytes);
  };
  return rule;
}

LedgerRule protect(LedgerRule rule, const ModelGeometry& model) {
  rule.dense_layers = 2 * std::min(2, model.layers / 2);
  return rule;
}

int64_t Share::tenths() const {
  const int64_t whole = num / den, rest = num % den;  // apart, so that nothing leaves 64 bits
  return 1000 * whole + (2000 * rest + den) / (2 * den);
}

Share reads(const LedgerRule& rule, const ModelGeometry& model, int64_t first, int64_t last) {
  KVIST_ASSERT(first >= 1 && first <= last && rule.dense_layers <= model.layers);
  int64_t compressed = 0, dense = 0;
  for (int64_t T = first; T <= last; ++T) {
    compressed += rule.read(model, T);
    dense += T * dense_token_bits(model);
  }
  return share(rule.dense_layers * dense + (model.layers - rule.dense_layers) * compressed,
               model.layers * dense);
}

Share capacity(const LedgerRule& rule, const ModelGeometry& model, int64_t tokens) {
  KVIST_ASSERT(tokens >= 1 && rule.dense_layers <= model.layers);
  const int64_t dense = tokens * dense_token_bits(model);
  const int64_t compressed = (model.layers - rule.dense_layers) * rule.stored(model, tokens);
  return share(rule.dense_layers * dense + compressed + rule.shared, model.layers * dense);
}

double reuse_overhead(int stored, int read, int64_t n, int64_t steps) {
  const auto writes = static_cast<double>((stored - read) * (n + steps));
  const auto passes = static_cast<double>(steps * n) +
                      static_cast<double>(steps) * static_cast<double>(steps - 1) / 2;
  return writes / (read * passes);
}

int64_t steps_to_amortize(int stored, int read, double limit) {
  int64_t steps = 2;  // the overhead falls with the prompt, so none is the worst
  while (reuse_overhead(stored, read, 0, steps) > limit) ++steps;
  return steps;
}

int64_t steps_to_gain(int stored, double rate, int full, int64_t n) {
  for (int64_t steps = 1;; ++steps) {
    const auto passes = static_cast<double>(steps * n + steps * (steps - 1) / 2);
    if ((full - rate) * passes > static_cast<double>((stored - full) * (n + steps))) return steps;
  }
}

double relative_throughput(double reads_share, double capacity_share, double weights_over_memory) {
  return (1 + weights_over_memory) / (reads_share + weights_over_memory * capacity_share);
}

}  // namespace kvist
