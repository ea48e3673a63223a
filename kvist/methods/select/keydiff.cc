// SPDX-License-Identifier: MIT
// Keeps the keys that point away from the mean direction: KeyDiff, arXiv:2504.15364.
#include <algorithm>
#include <cmath>

#include "kvist/kernels/rows.h"
#include "kvist/methods/select/by_score.h"

namespace kvist {
namespace {

constexpr OptionSpec kOptions[] = {kRatioOption, kKeepOption};

class KeyDiff final : public Scorer {
 public:
  explicit KeyDiff(const Options&) {}
  Needs needs() const override { return {}; }

  Scores score(const LayerInput& layer) override {
    Scores scores;
    for (int head = 0; head < layer.kv_heads; ++head) scores.push_back(score_head(layer, head));
    return scores;
  }

 private:
  // -cosine(key, mean of the unit keys).
  static std::vector<double> score_head(const LayerInput& layer, int head) {
    const int n = layer.n_tokens, d = layer.head_dim;
    const Buffer<float> keys = read_head(layer, *layer.keys, head, "key");
    std::vector<double> norms(static_cast<size_t>(n)), weights, anchor(static_cast<size_t>(d));
    kernels::row_norms(keys.data(), n, d, norms.data());
    for (double norm : norms) weights.push_back(1 / (std::max(norm, 1e-12) * n));
    kernels::weighted_sum(keys.data(), n, d, weights.data(), anchor.data());
    std::vector<double> scores(static_cast<size_t>(n));
    kernels::row_dots(keys.data(), n, d, anchor.data(), scores.data());
    double square = 0;
    for (double x : anchor) square += x * x;
    const double length = std::max(std::sqrt(square), 1e-8);
    for (size_t i = 0; i < scores.size(); ++i)
      scores[i] = -scores[i] / (std::max(norms[i], 1e-8) * length);
    return scores;
  }
};

}  // namespace

extern constinit const Method keydiff = {
    .name = "keydiff",
    .paper = "arXiv:2504.15364",
    .summary = "keeps the keys that point away from the mean direction of their head",
    .decides = "entries",
    .options = kOptions,
    .select = make_best_by<KeyDiff>,
    .kept = kept_of_each_head,
    .score = make_scorer<KeyDiff>,
    .evict = make_evict_by<KeyDiff>};

}  // namespace kvist
