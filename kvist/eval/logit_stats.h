// SPDX-License-Identifier: MIT
// How far one run's next-token distributions lie from another's on the same tokens: KL, the share
// of equal favourites, perplexities and their ratio.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvist {

struct Mean {
  double mean = 0, se = 0;  // se: standard error of the mean
};
Mean mean_of(std::span<const double> x);
// Percentile q in [0, 1], by linear interpolation between order statistics; x is not empty.
double percentile(std::vector<double> x, double q);

// Collects one target after another. Sums in double; a run against itself gives exactly 0.
class LogitStats {
 public:
  // base, other [vocab] logits of the two runs before token `target`.
  void add(std::span<const float> base, std::span<const float> other, int32_t target);

  int64_t targets() const { return static_cast<int64_t>(kl_.size()); }
  Mean kl() const { return mean_of(kl_); }  // sum of p_base (log p_base - log p_other), nats
  double kl_percentile(double q) const { return percentile(kl_, q); }
  Mean same_top() const { return mean_of(same_top_); }  // equal favourites, ties to the lower id
  double base_perplexity() const;
  double perplexity() const;                          // of the other run
  Mean log_ratio() const { return mean_of(ratio_); }  // ln(perplexity / base perplexity)

 private:
  std::vector<double> kl_, same_top_, base_nll_, nll_, ratio_;
};

}  // namespace kvist
