// SPDX-License-Identifier: MIT
// The parts of TwinKV (arXiv:2608.27128) by themselves, so that each stage can be checked against
// reference arrays.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvist/core/buffer.h"
#include "kvist/core/ratio.h"
#include "kvist/methods/method.h"

namespace kvist::twin {

enum class Score { twin, value, rarity };
enum class Discount { log, inverse, inverse_sqrt, linear, hard };

struct Config {
  Ratio removed{1, 2};
  int64_t sinks = 4, recent = 64;  // protected tokens
  int64_t ell = 32;                // keys within this distance are not counted
  int window = 32;                 // queries that vote on capacity
  int pool = 7;                    // width, odd
  Score score = Score::twin;
  Discount discount = Discount::log;
  bool adapted = true;  // quotas by attention; else uniform
  bool pool_per_query_head = false;
  bool pool_sees_protected = true;
  bool allow_empty = false;
  bool nonfinite_last = false;           // else refused
  std::optional<uint64_t> permute_seed;  // control: counts shuffled among open positions
  std::optional<uint64_t> replace_seed;  // control: matched random replacements

  static Config from(const Options& options);
};

// How the n positions of every head of a layer divide: sinks, open, recent. "Open" positions
// compete for `slots`.
struct Budget {
  int n = 0;
  int kept = 0;                                        // B, a head on average
  int sinks = 0;                                       // the first positions
  int recent = 0;                                      // the last positions
  int slots() const { return kept - sinks - recent; }  // U
  int open() const { return n - sinks - recent; }      // N - P
};
Budget budget(int n, const Config& config);

// The factor of a position with count c, at [c], 0 <= c <= n: log((n + 1) / (c + 1)) or another
// shape.
std::vector<double> discounts(int n, Discount shape);

// The capacity signal of one KV head over its open positions.
//
//   keys  [n][head_dim]
//   q     [window, group, head_dim] of the last positions
//   z     [open], out
void capacity_signal(const float* keys, int head_dim, TensorView<const float, 3> q,
                     float logit_scale, const Budget& budget, const Config& config,
                     ThreadPool& pool, float* z);

// What the method computes from a layer before it decides. Empty where it is not needed.
struct Signals {
  Buffer<float> energies;  // [kv_heads][n] squared norm of the value
  Buffer<int32_t> counts;  // [kv_heads][n] similar far-away keys, after the control's permutation
  Buffer<float> z;         // [kv_heads][open]
};

// Reads keys and values of one head at a time. Throws Error(corrupt) for a number that is not
// finite, unless they rank last.
Signals measure(const LayerInput& layer, const Budget& budget, const Config& config);

// The scores of the open positions of a head, [open].
std::vector<double> open_scores(const Signals& signals, int head, const Budget& budget,
                                const Config& config, std::span<const double> factors);

// What the decision went through, for tests and diagnostics.
struct Trace {
  Budget budget;
  std::vector<int> g, u;                    // [kv_heads]; g is empty for uniform quotas
  std::vector<std::vector<int32_t>> order;  // [kv_heads][open] best first
  Signals signals;
};
Selection select(const LayerInput& layer, const Config& config, bool explain,
                 Trace* trace = nullptr);

}  // namespace kvist::twin
