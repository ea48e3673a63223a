// SPDX-License-Identifier: MIT
// ReadKV's two-stage reader (arXiv:2610.11245) over coded layers: for every query row, how deep
// each key channel is read, the logits, how deep each value is read, the output.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "kvist/cache/coded_layer.h"
#include "kvist/cache/dense.h"
#include "kvist/cache/ranked_reader.h"
#include "kvist/core/thread_pool.h"
#include "kvist/methods/read/plan.h"

namespace kvist {

struct AttendCall;

// What a row sees of one head. Heads of a selected prefix hold different numbers of tokens.
struct RowHead {
  int n_tokens = 0;     // T
  int first_value = 0;  // values [first_value, first_value + n_values) are allocated,
  int n_values = 0;     // the others are dense
  int item = 0;         // where its values begin among all of the row
};

// The schedules of one query row; views that die with the observer's call.
struct RowSchedule {
  int layer = 0;
  int row = 0;
  std::span<const RowHead> heads;         // [kv_heads]
  std::span<const float> key_weights;     // [kv_heads][head_dim]
  std::span<const uint8_t> key_depths;    // [kv_heads][head_dim]
  std::span<const float> value_weights;   // [sum n_values], one head after another
  std::span<const uint8_t> value_depths;  // [sum n_values]
};

// What was read, summed over rows.
struct ReadCounts {
  int64_t rows = 0;
  int64_t numbers = 0;     // keys and values there were, 2 d sum T a row, over heads
  int64_t key_bits = 0;    // payload read: T sum t^K of every head
  int64_t value_bits = 0;  // d sum t^V; where tokens are paired, an odd tail counts twice
  int64_t key_budget = 0;  // the bits that the plan allowed
  int64_t value_budget = 0;
  int64_t dense_bytes = 0;  // 16-bit rows of sinks and recent tokens
  int64_t lines = 0;        // of 64 bytes: key planes, value planes, open key blocks
  int64_t key_lines = 0;    // of these, without the value planes
  RankedCounts ranked;      // of ranked layers instead

  ReadCounts& operator+=(const ReadCounts& more) {
    rows += more.rows, numbers += more.numbers;
    key_bits += more.key_bits, value_bits += more.value_bits;
    key_budget += more.key_budget, value_budget += more.value_budget;
    dense_bytes += more.dense_bytes, lines += more.lines, key_lines += more.key_lines;
    ranked += more.ranked;
    return *this;
  }
  double bits_per_number() const { return share(key_bits + value_bits, numbers); }
  double budget_per_number() const { return share(key_budget + value_budget, numbers); }
  double bits_per_key() const { return share(2 * key_bits, numbers); }
  double bits_per_value() const { return share(2 * value_bits, numbers); }
  // Bytes of the lines touched, beside those that f16 would touch.
  double touched_share() const { return share(64 * lines + dense_bytes, 2 * numbers); }

 private:
  static double share(int64_t part, int64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  }
};

// What the rows of a call read. Written by one worker; sums over all rows since it was made.
struct ReadTrace : ReadCounts {
  std::function<void(const RowSchedule&)> observe;  // called for every row where set
};

// Memory of one call after another, sized before the workers start. One call at a time: a barrier
// of the workers lies between two.
class ReadWorkspace {
 public:
  ReadWorkspace();
  ~ReadWorkspace();
  // Before calls over at most n_tokens tokens, prefix and suffix together.
  void reserve(const KvShape& shape, int n_tokens, int n_workers);
  // Forgets a call that was cut short. Not thread-safe.
  void begin();
  uint64_t allocated_bytes() const;

  struct State;
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

// Attention of call.q over a coded prefix and the coded suffixes of the call, each row with
// schedules of its own. `prefix`: none, one layer, or behind a selector a layer of one head for
// every KV head; the key budget is of each head then. All workers make the call with the same
// arguments and go through its stages together; equal bytes for any number of workers. Every layer
// has the code of `code`, and was written with this plan.
void read_coded(std::span<const CodedLayer> prefix, const KvShape& shape, const LayerCode& code,
                const ReadPlan& plan, const AttendCall& call, ReadWorkspace& workspace,
                Worker worker) noexcept;

// Over one layer, or none (null).
inline void read_coded(const CodedLayer* prefix, const KvShape& shape, const LayerCode& code,
                       const ReadPlan& plan, const AttendCall& call, ReadWorkspace& workspace,
                       Worker worker) noexcept {
  read_coded(std::span(prefix, prefix == nullptr ? 0 : 1), shape, code, plan, call, workspace,
             worker);
}

}  // namespace kvist
