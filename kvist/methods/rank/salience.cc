// SPDX-License-Identifier: MIT
#include "kvist/methods/rank/salience.h"

#include <algorithm>
#include <cmath>

#include "kvist/core/error.h"
#include "kvist/core/rng.h"
#include "kvist/kernels/similar.h"
#include "kvist/kernels/window.h"
#include "kvist/methods/select/by_score.h"
#include "kvist/methods/select/fisher.h"
#include "kvist/methods/select/twinkv.h"

namespace kvist {
namespace {

using Kind = RankPlan::Salience;

constexpr uint64_t kShuffleStream = 3, kRandomStream = 4;
constexpr int kPool = 5;

void require_queries(const LayerInput& layer, int window) {
  if (layer.q.dim(0) >= window) return;
  throw Error(ErrorKind::invalid_argument,
              str("varrate, layer ", layer.layer, ": needs the queries of the last ", window,
                  " positions, found ", layer.q.dim(0)));
}

// Means over five neighbours; beyond the ends: 0, and divided by five all the same.
std::vector<double> pooled(const std::vector<double>& s) {
  const auto n = static_cast<int64_t>(s.size());
  std::vector<double> out;
  for (int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (int64_t j = std::max<int64_t>(0, i - kPool / 2); j <= std::min(n - 1, i + kPool / 2); ++j)
      sum += s[static_cast<size_t>(j)];
    out.push_back(sum / kPool);
  }
  return out;
}

// Brings x to [0, 1]: all 1 where it does not differ.
void stretch(std::vector<double>& x) {
  if (x.empty()) return;
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  const double least = *low, range = *high - *low;
  for (double& v : x) v = range > 0 ? (v - least) / range : 1;
}

// Of `scores` those at coded positions, stretched; 1 for coded positions past their end.
std::vector<double> over_coded(const std::vector<double>& scores, std::span<const int32_t> coded) {
  std::vector<double> out;
  for (const int32_t t : coded) {
    if (static_cast<size_t>(t) < scores.size()) out.push_back(scores[static_cast<size_t>(t)]);
  }
  stretch(out);
  out.resize(coded.size(), 1);
  return out;
}

std::vector<double> window_salience(const LayerInput& layer, const RankPlan& plan,
                                    std::span<const int32_t> coded) {
  if (layer.n_tokens <= plan.scoring_window) return std::vector<double>(coded.size(), 1);
  return over_coded(pooled(window_means(layer, plan)), coded);
}

// Value energy times rarity of the key among far-away keys, each head's share over the coded
// tokens, the mean over heads.
std::vector<double> twin_salience(const LayerInput& layer, std::span<const int32_t> coded) {
  constexpr int kNearby = 32;  // keys within this distance are not counted, as in TwinKV
  const int n = layer.n_tokens;
  std::vector<double> sum(coded.size(), 0), share(coded.size());
  std::vector<int32_t> counts(static_cast<size_t>(n));
  std::vector<float> energies(static_cast<size_t>(n));
  const std::vector<double> factor = twin::discounts(n, twin::Discount::log);
  for (int head = 0; head < layer.kv_heads; ++head) {
    const Buffer<float> keys = read_head(layer, *layer.keys, head, "key");
    kernels::count_similar(keys.data(), n, layer.head_dim, std::min(kNearby, n), *layer.pool,
                           counts.data());
    const Buffer<float> values = read_head(layer, *layer.values, head, "value");
    kernels::energies(values.data(), n, layer.head_dim, energies.data());
    double total = 0;
    for (size_t i = 0; i < coded.size(); ++i) {
      const auto t = static_cast<size_t>(coded[i]);
      share[i] = static_cast<double>(energies[t]) * factor[static_cast<size_t>(counts[t])];
      total += share[i];
    }
    for (size_t i = 0; i < coded.size(); ++i) sum[i] += total > 0 ? share[i] / total : 0;
  }
  for (double& s : sum) s /= layer.kv_heads;
  stretch(sum);
  return sum;
}

// How far each token's value moves the layer's output under the window's queries.
std::vector<double> fisher_salience(const LayerInput& layer, const RankPlan& plan,
                                    std::span<const int32_t> coded) {
  require_queries(layer, std::min(plan.scoring_window, layer.n_tokens));
  if (layer.n_tokens <= plan.scoring_window) return std::vector<double>(coded.size(), 1);
  std::vector<double> sum(static_cast<size_t>(layer.n_tokens), 0);
  for (const std::vector<double>& head : fisher_signal(layer, plan.scoring_window))
    for (size_t t = 0; t < sum.size(); ++t) sum[t] += head[t];
  return over_coded(sum, coded);
}

std::vector<double> position_salience(int n_tokens, std::span<const int32_t> coded) {
  std::vector<double> out;
  for (const int32_t t : coded)
    out.push_back(std::max(std::exp(-t / 64.0), std::exp(-(n_tokens - 1 - t) / (n_tokens / 8.0))));
  return out;
}

Rng control(const LayerInput& layer, const RankPlan& plan, uint64_t stream) {
  return Rng(plan.seed, static_cast<uint32_t>(layer.layer), 0, stream);
}

std::vector<double> measured(const LayerInput& layer, const RankPlan& plan,
                             std::span<const int32_t> coded,
                             std::span<const double> residual_energy) {
  std::vector<double> out;
  switch (plan.salience) {
    case Kind::window:
      return window_salience(layer, plan, coded);
    case Kind::twin:
      return twin_salience(layer, coded);
    case Kind::mix: {
      out = window_salience(layer, plan, coded);
      const std::vector<double> twin = twin_salience(layer, coded);
      for (size_t i = 0; i < out.size(); ++i)
        out[i] = (1 - plan.mix_twin) * out[i] + plan.mix_twin * twin[i];
      return out;
    }
    case Kind::fisher:
      return fisher_salience(layer, plan, coded);
    case Kind::norm:
      KVIST_ASSERT(residual_energy.size() == coded.size());
      out.assign(residual_energy.begin(), residual_energy.end());
      stretch(out);
      return out;
    case Kind::flat:
      return std::vector<double>(coded.size(), 1);
    case Kind::random: {
      Rng rng = control(layer, plan, kRandomStream);
      for (size_t i = 0; i < coded.size(); ++i)
        out.push_back(static_cast<double>(rng.next() >> 40) * 0x1p-24);
      return out;
    }
    case Kind::shuffle: {
      out = window_salience(layer, plan, coded);
      Rng rng = control(layer, plan, kShuffleStream);
      shuffle(std::span<double>(out), rng);
      return out;
    }
    case Kind::position:
      return position_salience(layer.n_tokens, coded);
    case Kind::oracle:
      for (const int32_t t : coded)
        out.push_back(t >= plan.gold_begin && t < plan.gold_end ? 1 : 0);
      return out;
  }
  return out;
}

}  // namespace

std::vector<double> window_means(const LayerInput& layer, const RankPlan& plan) {
  const int n = layer.n_tokens, window = plan.scoring_window;
  require_queries(layer, window);
  KVIST_ASSERT(window < n);
  const int group = layer.heads / layer.kv_heads;
  std::vector<double> mean(static_cast<size_t>(n - window), 0);
  std::vector<double> of_heads(static_cast<size_t>(group) * static_cast<size_t>(n));
  for (int head = 0; head < layer.kv_heads; ++head) {
    const auto q = group_rows(layer, layer.q, head, window);
    require_finite_queries(layer, q, n - window);
    const Buffer<float> keys = read_head(layer, *layer.keys, head, "key");
    kernels::window_attention_per_head(
        keys.data(), n, layer.head_dim, q, layer.logit_scale, *layer.pool, of_heads.data(),
        plan.bf16_scores ? kernels::Weights::bf16 : kernels::Weights::f32);
    for (int g = 0; g < group; ++g)
      for (size_t t = 0; t < mean.size(); ++t)
        mean[t] += of_heads[static_cast<size_t>(g) * static_cast<size_t>(n) + t];
  }
  for (double& m : mean) m /= layer.heads;
  return mean;
}

std::vector<double> salience(const LayerInput& layer, const RankPlan& plan,
                             std::span<const int32_t> coded,
                             std::span<const double> residual_energy) {
  std::vector<double> out = measured(layer, plan, coded, residual_energy);
  if (plan.salience_power != 1)
    for (double& s : out) s = std::pow(s, plan.salience_power);
  return out;
}

std::vector<uint32_t> quantized_salience(std::span<const double> salience) {
  std::vector<uint32_t> q;
  for (const double s : salience) q.push_back(static_cast<uint32_t>(std::nearbyint(s * 0x1p24)));
  return q;
}

}  // namespace kvist
