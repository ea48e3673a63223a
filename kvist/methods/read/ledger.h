// SPDX-License-Identifier: MIT
// The logical ledger of ReadKV's tables (arXiv:2610.11245, its appendix on cost accounting): what a
// method reads per attention call and keeps, beside a cache of 16-bit numbers, in exact fractions.
#pragma once

#include <cstdint>
#include <functional>

#include "kvist/core/ratio.h"

namespace kvist {

struct ModelGeometry {
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
};

// 16-bit keys and values of one token of one layer.
inline int64_t dense_token_bits(const ModelGeometry& m) {
  return int64_t{2} * m.kv_heads * m.head_dim * 16;
}

// What one compressed layer costs with T tokens, the current one included, in bits.
struct LedgerRule {
  std::function<int64_t(const ModelGeometry&, int64_t T)> read;    // per attention call
  std::function<int64_t(const ModelGeometry&, int64_t T)> stored;  // without what layers share
  int64_t shared = 0;                                              // bits, once for the model
  int dense_layers = 0;                                            // as protect() says
};

// Bytes charged for the decoder's tables: two of 511 float32 as the paper's figures need it, and
// what kvist loads: 510 float32 and 8 gains.
inline constexpr int64_t kPaperTableBytes = 4088;
inline constexpr int64_t kNativeTableBytes = 2072;

// ReadKV keeping `stored_bits` of each number and reading `rate` on average; rate = stored_bits is
// the full reader.
LedgerRule readkv_rule(int stored_bits, Ratio rate, int64_t table_bytes = kPaperTableBytes);
// 4-bit rotated keys with a norm, 4-bit values with scale and minimum.
LedgerRule turboquant_rule();
// Groups of 32; the newest up to 128 tokens dense. bits: 2 or 4.
LedgerRule kivi_rule(int bits);
// Two-bit codes of Lloyd with a norm for keys, under ReadKV's transforms and calibration.
LedgerRule lloyd_rule();
// Dense cache: r channels of all past tokens, then the k best tokens, the current one and the mean.
LedgerRule sparq_rule(int r, int k);
// The same choice on ReadKV's 8-bit code: channels at depth 2, tokens at depth 8.
LedgerRule nested_rule(int r, int k, int64_t table_bytes = kPaperTableBytes);
// The rule with the first and last two layers dense; one each, or none, in models of few layers.
LedgerRule protect(LedgerRule rule, const ModelGeometry& model);

// A share of the uncompressed cache.
struct Share {
  int64_t num = 0, den = 1;  // in lowest terms
  double percent() const { return 100.0 * static_cast<double>(num) / static_cast<double>(den); }
  int64_t tenths() const;  // of a percent, half up: as the tables print it
};

// Bits read over the calls at T = first .. last tokens. O(last - first).
Share reads(const LedgerRule& rule, const ModelGeometry& model, int64_t first, int64_t last);
Share capacity(const LedgerRule& rule, const ModelGeometry& model, int64_t tokens);

// The payload-only model of cache reuse. Extra writes over reads where `stored` bits are kept of
// which `read` are read as often as from a code of `read` bits: n tokens of prompt, `steps` steps.
double reuse_overhead(int stored, int read, int64_t n, int64_t steps);
// The first step count from which the overhead is at most `limit` for every prompt, and from which
// a code of `stored` bits read at `rate` moves less than one of `full` bits read whole.
int64_t steps_to_amortize(int stored, int read, double limit);
int64_t steps_to_gain(int stored, double rate, int full, int64_t n);
// Tokens per second relative to the uncompressed cache where memory for caches is full:
// (1 + w) / (reads + w capacity), w the bytes of weights over those of cache memory.
double relative_throughput(double reads_share, double capacity_share, double weights_over_memory);

}  // namespace kvist
