// SPDX-License-Identifier: MIT
// Keeps the first tokens and the latest: StreamingLLM, arXiv:2309.17453, as a prefix is cut by it.
#include <algorithm>
#include <numeric>

#include "kvist/methods/select/budget.h"
#include "kvist/methods/select/by_score.h"

namespace kvist {
namespace {

constexpr OptionSpec kOptions[] = {
    kRatioOption,
    kKeepOption,
    kSinkOption,
};

class StreamingLlm final : public Scorer {
 public:
  explicit StreamingLlm(const Options& options) : n_sink_(options.integer("n_sink")) {}
  Needs needs() const override { return {}; }

  // For a cache that grows: the later the better, and sinks above all.
  Scores score(const LayerInput& layer) override {
    std::vector<double> head(static_cast<size_t>(layer.n_tokens));
    std::iota(head.begin(), head.end(), 0.0);
    std::fill_n(head.begin(), std::min<int64_t>(n_sink_, layer.n_tokens),
                static_cast<double>(layer.n_tokens));
    return Scores(static_cast<size_t>(layer.kv_heads), head);
  }

 private:
  int64_t n_sink_;
};

// The same sets for a prompt, by scores that know the budget, as the reference has them.
class StreamingSelector final : public Selector {
 public:
  explicit StreamingSelector(const Options& options)
      : removed_(options.removed()), n_sink_(options.integer("n_sink")) {}
  Needs needs() const override { return {}; }

  // 0 for the tokens after the sinks, as many as have to go; 1 for all others.
  Selection select(const LayerInput& layer, bool explain) override {
    const int64_t n = layer.n_tokens;
    const int64_t n_kept = removed_.num == 0 ? n : reference_kept_tokens(n, removed_);
    if (n_kept >= n) return keep_everything(layer);
    const int64_t begin = std::min(n_sink_, n), end = std::min(begin + n - n_kept, n);
    std::vector<double> head(static_cast<size_t>(n), 1.0);
    std::fill(head.begin() + begin, head.begin() + end, 0.0);
    Scores scores(static_cast<size_t>(layer.kv_heads), head);
    pin_tail(layer, &scores);
    return keep_best(layer, std::move(scores), static_cast<int>(n_kept), explain);
  }

 private:
  Ratio removed_;
  int64_t n_sink_;
};

}  // namespace

extern constinit const Method streamingllm = {
    .name = "streamingllm",
    .paper = "arXiv:2309.17453",
    .summary = "keeps the first tokens and the most recent, alike in every head",
    .decides = "entries",
    .options = kOptions,
    .select = make_selector<StreamingSelector>,
    .kept = kept_of_each_head,
    .evict = make_evict_by<StreamingLlm>};

}  // namespace kvist
