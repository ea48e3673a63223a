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
// Square root of the mean of squares; its error is that of the mean of squares over twice itself.
Mean rms_of(std::span<const double> x);
// Of two lists of equal length; 0 where one does not vary.
double correlation(std::span<const double> x, std::span<const double> y);
// Percentile q in [0, 1], by linear interpolation between order statistics; x is not empty.
double percentile(std::vector<double> x, double q);

// Two distributions before one token.
struct TokenDistance {
  double kl = 0;                 // sum of p (log p - log q), p the base; nats
  double base_nll = 0, nll = 0;  // of the token that came
  double dp = 0;                 // its probability, minus that in the base
  double same_top = 0;           // 1 where the favourites are one token, ties to the lower id
  double same_sampled = 0;       // chance that one draw of each is the same token
  double base_same_sampled = 0;  // of two draws from the base: what same_sampled can reach
};
// base, other [vocab] logits. In double throughout; a run against itself gives a KL of exactly 0.
TokenDistance distance_between(std::span<const float> base, std::span<const float> other,
                               int32_t target);

// Collects one target after another.
class LogitStats {
 public:
  void add(const TokenDistance& one);
  void add(std::span<const float> base, std::span<const float> other, int32_t target) {
    add(distance_between(base, other, target));
  }

  int64_t targets() const { return static_cast<int64_t>(kl_.size()); }
  Mean kl() const { return mean_of(kl_); }
  double kl_percentile(double q) const { return percentile(kl_, q); }
  std::span<const double> kl_values() const { return kl_; }  // in the order they were added
  Mean dp() const { return mean_of(dp_); }
  Mean dp_rms() const { return rms_of(dp_); }
  double dp_percentile(double q) const { return percentile(dp_, q); }
  // A share s of N has the error sqrt(s (1 - s) / (N - 1)).
  Mean same_top() const { return mean_of(same_top_); }
  double same_sampled() const { return mean_of(same_sampled_).mean; }
  double base_same_sampled() const { return mean_of(base_same_sampled_).mean; }
  double base_perplexity() const;
  double perplexity() const;                          // of the other run
  Mean log_ratio() const { return mean_of(ratio_); }  // ln(perplexity / base perplexity)
  double nll_correlation() const { return correlation(base_nll_, nll_); }
  double base_nll_sum() const;
  double nll_sum() const;

 private:
  std::vector<double> kl_, dp_, same_top_, same_sampled_, base_same_sampled_, base_nll_, nll_,
      ratio_;
};

}  // namespace kvist
