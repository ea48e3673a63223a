// SPDX-License-Identifier: MIT
// Softmax of both runs in double, token by token.
#include "kvist/eval/logit_stats.h"

#include <algorithm>
#include <cmath>

#include "kvist/core/error.h"

namespace kvist {
namespace {

struct Normalizer {
  int top = 0;
  double log_sum = 0;  // of all exponentials
};

Normalizer normalizer(std::span<const float> logits) {
  const auto most = std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float x : logits) sum += static_cast<double>(std::exp(x - *most));
  return {static_cast<int>(most - logits.begin()), static_cast<double>(*most) + std::log(sum)};
}

}  // namespace

Mean mean_of(std::span<const double> x) {
  const auto n = static_cast<double>(x.size());
  if (x.empty()) return {};
  double sum = 0, squares = 0;
  for (double value : x) sum += value;
  const double mean = sum / n;
  for (double value : x) squares += (value - mean) * (value - mean);
  return {mean, x.size() > 1 ? std::sqrt(squares / n / (n - 1)) : 0};
}

double percentile(std::vector<double> x, double q) {
  KVIST_ASSERT(!x.empty());
  std::sort(x.begin(), x.end());
  const double at = q * static_cast<double>(x.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, x.size() - 1);
  return x[low] + (at - static_cast<double>(low)) * (x[high] - x[low]);
}

void LogitStats::add(std::span<const float> base, std::span<const float> other, int32_t target) {
  KVIST_ASSERT(base.size() == other.size() && static_cast<size_t>(target) < base.size());
  const Normalizer p = normalizer(base), q = normalizer(other);
  double kl = 0;
  for (size_t i = 0; i < base.size(); ++i) {
    const double log_p = static_cast<double>(base[i]) - p.log_sum;
    const double log_q = static_cast<double>(other[i]) - q.log_sum;
    kl += static_cast<double>(std::exp(static_cast<float>(log_p))) * (log_p - log_q);
  }
  const auto at = static_cast<size_t>(target);
  kl_.push_back(kl);
  same_top_.push_back(p.top == q.top ? 1 : 0);
  base_nll_.push_back(p.log_sum - static_cast<double>(base[at]));
  nll_.push_back(q.log_sum - static_cast<double>(other[at]));
  ratio_.push_back(nll_.back() - base_nll_.back());
}

double LogitStats::base_perplexity() const { return std::exp(mean_of(base_nll_).mean); }
double LogitStats::perplexity() const { return std::exp(mean_of(nll_).mean); }

}  // namespace kvist
