// SPDX-License-Identifier: MIT
// Softmax of both runs in double, token by token.
#include "kvist/eval/logit_stats.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kvist/core/error.h"

namespace kvist {
namespace {

struct Normalizer {
  int top = 0;
  double log_sum = 0;  // of all exponentials
};

Normalizer normalizer(std::span<const float> logits) {
  const auto most = std::max_element(logits.begin(), logits.end());
  const auto top = static_cast<double>(*most);
  double sum = 0;
  for (float x : logits) sum += std::exp(static_cast<double>(x) - top);
  return {static_cast<int>(most - logits.begin()), top + std::log(sum)};
}

double sum_of(std::span<const double> x) { return std::accumulate(x.begin(), x.end(), 0.0); }

}  // namespace

Mean mean_of(std::span<const double> x) {
  const auto n = static_cast<double>(x.size());
  if (x.empty()) return {};
  const double mean = sum_of(x) / n;
  double squares = 0;
  for (double value : x) squares += (value - mean) * (value - mean);
  return {mean, x.size() > 1 ? std::sqrt(squares / n / (n - 1)) : 0};
}

Mean rms_of(std::span<const double> x) {
  std::vector<double> squares;
  for (double value : x) squares.push_back(value * value);
  const Mean mean = mean_of(squares);
  const double rms = std::sqrt(mean.mean);
  return {rms, rms > 0 ? 0.5 / rms * mean.se : 0};
}

double correlation(std::span<const double> x, std::span<const double> y) {
  KVIST_ASSERT(x.size() == y.size());
  const double mx = mean_of(x).mean, my = mean_of(y).mean;
  double xx = 0, yy = 0, xy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - mx) * (x[i] - mx);
    yy += (y[i] - my) * (y[i] - my);
    xy += (x[i] - mx) * (y[i] - my);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0;
}

double percentile(std::vector<double> x, double q) {
  KVIST_ASSERT(!x.empty());
  std::sort(x.begin(), x.end());
  const double at = q * static_cast<double>(x.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, x.size() - 1);
  return x[low] + (at - static_cast<double>(low)) * (x[high] - x[low]);
}

TokenDistance distance_between(std::span<const float> base, std::span<const float> other,
                               int32_t target) {
  KVIST_ASSERT(base.size() == other.size() && static_cast<size_t>(target) < base.size());
  const Normalizer p = normalizer(base), q = normalizer(other);
  TokenDistance d;
  for (size_t i = 0; i < base.size(); ++i) {
    const double log_p = static_cast<double>(base[i]) - p.log_sum;
    const double log_q = static_cast<double>(other[i]) - q.log_sum;
    const double probability = std::exp(log_p);
    d.kl += probability * (log_p - log_q);
    d.same_sampled += probability * std::exp(log_q);
    d.base_same_sampled += probability * probability;
  }
  const auto at = static_cast<size_t>(target);
  d.base_nll = p.log_sum - static_cast<double>(base[at]);
  d.nll = q.log_sum - static_cast<double>(other[at]);
  d.dp = std::exp(-d.nll) - std::exp(-d.base_nll);
  d.same_top = p.top == q.top ? 1 : 0;
  return d;
}

void LogitStats::add(const TokenDistance& one) {
  kl_.push_back(one.kl);
  dp_.push_back(one.dp);
  same_top_.push_back(one.same_top);
  same_sampled_.push_back(one.same_sampled);
  base_same_sampled_.push_back(one.base_same_sampled);
  base_nll_.push_back(one.base_nll);
  nll_.push_back(one.nll);
  ratio_.push_back(one.nll - one.base_nll);
}

double LogitStats::base_nll_sum() const { return sum_of(base_nll_); }
double LogitStats::nll_sum() const { return sum_of(nll_); }
double LogitStats::base_perplexity() const { return std::exp(mean_of(base_nll_).mean); }
double LogitStats::perplexity() const { return std::exp(mean_of(nll_).mean); }

}  // namespace kvist
