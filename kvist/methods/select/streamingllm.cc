// SPDX-License-Identifier: MIT
// Keeps the first tokens and the latest: StreamingLLM, arXiv:2309.17453, as a prefix is cut by it.
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

  // 0 for the tokens after the sinks, as many as have to go; 1 for all others.
  Scores score(const LayerInput& layer, int n_kept) override {
    const int64_t n = layer.n_tokens;
    const int64_t begin = std::min(n_sink_, n), end = std::min(begin + n - n_kept, n);
    std::vector<double> head(static_cast<size_t>(n), 1.0);
    std::fill(head.begin() + begin, head.begin() + end, 0.0);
    return Scores(static_cast<size_t>(layer.kv_heads), head);
  }

 private:
  int64_t n_sink_;
};

}  // namespace

extern constinit const Method streamingllm = {
    .name = "streamingllm",
    .paper = "arXiv:2309.17453",
    .summary = "keeps the first tokens and the most recent, alike in every head",
    .decides = "entries",
    .options = kOptions,
    .select = make_best_by<StreamingLlm>,
    .evict = make_evict_by<StreamingLlm>};

}  // namespace kvist
