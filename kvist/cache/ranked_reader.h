// SPDX-License-Identifier: MIT
// Attention over a layer that VarRate coded (arXiv:2607.15498), without making it dense: keys of 64
// tokens at a time from anchors and coefficients, values in the space of the basis.
#pragma once

#include <cstdint>
#include <memory>

#include "kvist/cache/ranked_keys.h"
#include "kvist/core/thread_pool.h"

namespace kvist {

struct AttendCall;

// What passes over coded layers touched, each the bytes of one layer. Sums since it was made.
struct RankedCounts {
  int64_t rows = 0;    // query rows of a layer
  int64_t passes = 0;  // of up to 16 rows each, over everything below
  int64_t exact_bytes = 0;
  int64_t coded_bytes = 0;     // coefficients, with the scales of their groups
  int64_t coefficients = 0;    // that are stored,
  int64_t asked_bits = 0;      // of all of them that were asked for,
  int64_t budget_bits = 0;     // and that might have been
  int64_t metadata_bytes = 0;  // ranks, orders, indices, bounds
  int64_t basis_bytes = 0;     // shared by all prefixes of a model
  int64_t expanded_bytes = 0;  // keys kept dense beside the codes
  int64_t blocks = 0;          // of 64 tokens and a KV head,
  int64_t skipped = 0;         // and those of them whose keys were not made

  RankedCounts& operator+=(const RankedCounts& more) {
    rows += more.rows, passes += more.passes;
    exact_bytes += more.exact_bytes, coded_bytes += more.coded_bytes;
    coefficients += more.coefficients, asked_bits += more.asked_bits;
    budget_bits += more.budget_bits;
    metadata_bytes += more.metadata_bytes, basis_bytes += more.basis_bytes;
    expanded_bytes += more.expanded_bytes, blocks += more.blocks, skipped += more.skipped;
    return *this;
  }
  // Of a coefficient.
  double bits() const {
    return coefficients == 0 ? 0
                             : static_cast<double>(asked_bits) / static_cast<double>(coefficients);
  }
  int64_t bytes() const {
    return exact_bytes + coded_bytes + metadata_bytes + basis_bytes + expanded_bytes;
  }
};

// Memory of one call after another, sized before the workers start. One call at a time: a barrier
// of the workers lies between two.
class RankedWorkspace {
 public:
  RankedWorkspace();
  ~RankedWorkspace();
  // Before calls of up to n_rows rows.
  void reserve(const RankedSizes& sizes, int n_rows, int n_workers);
  // Forgets a call that was cut short. Not thread-safe.
  void begin();
  uint64_t allocated_bytes() const;

  struct State;
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

// Attention of call.q over the coded layer and the dense suffixes of the call with one softmax. All
// workers make the call with the same arguments; equal bytes for any number of them. Rows go in
// passes of up to 16, each of which makes every key once; alone where a row chooses what it reads.
void read_ranked(const RankedView& view, const AttendCall& call, RankedWorkspace& workspace,
                 Worker worker) noexcept;

}  // namespace kvist
