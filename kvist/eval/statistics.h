// SPDX-License-Identifier: MIT
// Whether one method is better than another on the same rows: exact sign test, paired bootstrap.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvist/core/rng.h"

namespace kvist {

// Of times that were measured; a 0 is none.
struct Spread {
  double median = 0, least = 0, most = 0;
};
Spread spread_of(std::vector<double> values);

// Two-sided, ties dropped beforehand: min(1, 2 sum_{i <= min(w, l)} C(n, i) / 2^n); 1 where n is 0.
double sign_test(int wins, int losses);

// Indexes for resampling: SplitMix64 from the seed itself, and the high half of a product.
class ResampleIndexes {
 public:
  explicit ResampleIndexes(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    const uint64_t out = splitmix(state_);
    state_ += 0x9E3779B97F4A7C15ull;
    return out;
  }
  size_t below(size_t n) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<size_t>(static_cast<Wide>(next()) * n >> 64);
  }

 private:
  uint64_t state_;
};

// The mean over cells of the cell means, and what resampled units make of it.
struct Interval {
  double mean = 0;
  double low = 0, high = 0;  // percentiles 2.5 and 97.5, linear interpolation
  int not_above_zero = 0;    // replicates <= 0
  int replicates = 0;
  uint64_t seed = 0;
  int units = 0;
  // "better", "worse" where the interval excludes 0, else "tie".
  const char* verdict() const { return low > 0 ? "better" : high < 0 ? "worse" : "tie"; }
};

// A unit is what was drawn together, a context with all its questions: the mean over its rows'
// differences. Each cell is resampled by itself, at its own size; cells in their order inside each
// replicate. No cell is empty.
Interval paired_bootstrap(std::span<const std::vector<double>> cells, int replicates,
                          uint64_t seed);

// The same for cells whose units come from strata, each resampled at its own size in its order; all
// units of a cell weigh alike. No stratum is empty.
using Strata = std::vector<std::vector<double>>;
Interval stratified_bootstrap(std::span<const Strata> cells, int replicates, uint64_t seed);

// A ratio of sums, as of perplexities: exp(sum of nll_a - nll_b / sum of targets) - 1, with units
// of (nll_a, nll_b, targets).
struct NllUnit {
  double nll_a = 0, nll_b = 0;
  double targets = 0;
};
Interval bootstrap_perplexity_change(std::span<const NllUnit> units, int replicates, uint64_t seed);

}  // namespace kvist
