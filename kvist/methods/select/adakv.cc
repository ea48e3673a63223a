// SPDX-License-Identifier: MIT
// Heads compete for the slots of their layer by any method's score: Ada-KV, arXiv:2407.11550.
#include "kvist/methods/select/adakv.h"

#include <algorithm>
#include <limits>

#include "kvist/core/error.h"
#include "kvist/methods/option_value.h"
#include "kvist/methods/select/budget.h"
#include "kvist/methods/select/by_score.h"
#include "kvist/methods/select/topk.h"

namespace kvist {
namespace {

using Kind = OptionSpec::Kind;
constexpr OptionSpec kOptions[] = {
    kRatioOption,
    kKeepOption,
    {.name = "scorer",
     .kind = Kind::scorer,
     .fallback = "snapkv",
     .unit = "",
     .help = "the method whose score decides; its options may be given here as well"},
    {.name = "alpha_safeguard",
     .kind = Kind::ratio,
     .fallback = "0.2",
     .unit = "",
     .help = "share of the average budget that every head keeps"},
};

std::shared_ptr<Scorer> inner_scorer(const Options& options, Scorers& scorers) {
  const Method& inner = *find_scorer(options.text("scorer"));
  return scorers.of(inner.score, options.passed_to(inner));
}

class AdaKv final : public ScoredSelector {
 public:
  AdaKv(const Options& options, Scorers& scorers)
      : ScoredSelector(inner_scorer(options, scorers), options.removed()),
        safeguard_(options.ratio("alpha_safeguard")) {}

  Selection select(const LayerInput& layer, bool explain) override {
    if (removed().num == 0) return keep_everything(layer);
    const auto n_kept = static_cast<int>(reference_kept_tokens(layer.n_tokens, removed()));
    if (n_kept >= layer.n_tokens) return keep_everything(layer);
    return keep_best_of_all(layer, scores(layer, n_kept), n_kept, safeguard_, explain);
  }

 private:
  Ratio safeguard_;
};

}  // namespace

int safe_tokens(int n_kept, Ratio safeguard) {
  return std::max(static_cast<int>(n_kept * safeguard.value()), safeguard.num > 0 ? 1 : 0);
}

Selection keep_best_of_all(const LayerInput& layer, Scores scores, int n_kept, Ratio safeguard,
                           bool explain) {
  require_numbers(layer, scores);
  const auto n = static_cast<size_t>(layer.n_tokens);
  const int safe = safe_tokens(n_kept, safeguard);
  std::vector<double> flat;
  flat.reserve(scores.size() * n);
  for (const auto& head : scores) {
    const size_t begin = flat.size();
    flat.insert(flat.end(), head.begin(), head.end());
    for (int32_t position : top_positions({head, {}, 0}, safe))
      flat[begin + static_cast<size_t>(position)] = std::numeric_limits<double>::max();
  }
  const auto heads = static_cast<int64_t>(scores.size());
  Selection selection;
  selection.kept.resize(scores.size());
  for (int32_t at : survivors(flat, heads * (layer.n_tokens - n_kept))) {
    const auto i = static_cast<size_t>(at);
    selection.kept[i / n].push_back(static_cast<int32_t>(i % n));
  }
  if (explain) selection.scores = std::move(scores);
  return selection;
}

extern constinit const Method adakv = {
    .name = "adakv",
    .paper = "arXiv:2407.11550",
    .summary = "lets the heads of a layer compete for its slots by another method's score",
    .decides = "entries",
    .options = kOptions,
    .select = make_scored_selector<AdaKv>,
    .kept = kept_of_each_head};

}  // namespace kvist
