// SPDX-License-Identifier: MIT
// Sums of binomial coefficients in logarithms; replicates one after another.
#include "kvist/eval/statistics.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "kvist/core/error.h"
#include "kvist/eval/logit_stats.h"

namespace kvist {
namespace {

Interval resample(double original, int units, int replicates, uint64_t seed,
                  const std::function<double(ResampleIndexes&)>& draw) {
  KVIST_ASSERT(replicates > 0);
  ResampleIndexes indexes(seed);
  std::vector<double> drawn;
  Interval out{.mean = original, .replicates = replicates, .seed = seed, .units = units};
  for (int r = 0; r < replicates; ++r) {
    drawn.push_back(draw(indexes));
    out.not_above_zero += drawn.back() <= 0;
  }
  out.low = percentile(drawn, 0.025);
  out.high = percentile(drawn, 0.975);
  return out;
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  std::erase(values, 0.0);
  if (values.empty()) return {};
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  const double low = *least, high = *most;
  return {percentile(std::move(values), 0.5), low, high};
}

double sign_test(int wins, int losses) {
  const int n = wins + losses, k = std::min(wins, losses);
  if (n == 0) return 1;
  // ln of C(n, i) / 2^n, each from the one before it.
  double log_term = -n * std::log(2.0), sum = 0;
  for (int i = 0; i <= k; ++i) {
    sum += std::exp(log_term);
    log_term += std::log(static_cast<double>(n - i)) - std::log(static_cast<double>(i + 1));
  }
  return std::min(1.0, 2 * sum);
}

Interval paired_bootstrap(std::span<const std::vector<double>> cells, int replicates,
                          uint64_t seed) {
  std::vector<Strata> all;
  for (const auto& cell : cells) all.push_back({cell});
  return stratified_bootstrap(all, replicates, seed);
}

Interval stratified_bootstrap(std::span<const Strata> cells, int replicates, uint64_t seed) {
  KVIST_ASSERT(!cells.empty());
  const auto n_cells = static_cast<double>(cells.size());
  double original = 0;
  std::vector<double> sizes;
  int units = 0;
  for (const Strata& cell : cells) {
    double sum = 0;
    size_t n = 0;
    for (const auto& stratum : cell) {
      KVIST_ASSERT(!stratum.empty());
      for (double value : stratum) sum += value;
      n += stratum.size();
    }
    KVIST_ASSERT(n > 0);
    sizes.push_back(static_cast<double>(n));
    original += sum / sizes.back() / n_cells;
    units += static_cast<int>(n);
  }
  return resample(original, units, replicates, seed, [&](ResampleIndexes& indexes) {
    double sum = 0;
    for (size_t c = 0; c < cells.size(); ++c) {
      double one = 0;
      for (const auto& stratum : cells[c])
        for (size_t i = 0; i < stratum.size(); ++i) one += stratum[indexes.below(stratum.size())];
      sum += one / sizes[c];
    }
    return sum / n_cells;
  });
}

Interval bootstrap_perplexity_change(std::span<const NllUnit> units, int replicates,
                                     uint64_t seed) {
  KVIST_ASSERT(!units.empty());
  const auto change = [](double difference, double targets) {
    return std::expm1(difference / targets);
  };
  double difference = 0, targets = 0;
  for (const NllUnit& unit : units) {
    difference += unit.nll_a - unit.nll_b;
    targets += unit.targets;
  }
  return resample(change(difference, targets), static_cast<int>(units.size()), replicates, seed,
                  [&](ResampleIndexes& indexes) {
                    double d = 0, n = 0;
                    for (size_t i = 0; i < units.size(); ++i) {
                      const NllUnit& unit = units[indexes.below(units.size())];
                      d += unit.nll_a - unit.nll_b;
                      n += unit.targets;
                    }
                    return change(d, n);
                  });
}

}  // namespace kvist
