// SPDX-License-Identifier: MIT
// Keeps what the model needs to repeat the document: KVzip, arXiv:2505.23416.
#include "kvist/methods/select/kvzip.h"

#include <algorithm>

#include "kvist/core/error.h"
#include "kvist/kernels/window.h"
#include "kvist/methods/select/by_score.h"
#include "kvist/methods/select/topk.h"

namespace kvist {
namespace {

using Kind = OptionSpec::Kind;
constexpr OptionSpec kOptions[] = {
    kRatioOption,
    kKeepOption,
    {.name = "layerwise",
     .kind = Kind::boolean,
     .fallback = "false",
     .unit = "",
     .help = "every layer keeps as much; else all layers compete"},
    kSinkOption,
    {.name = "chunk_size",
     .kind = Kind::integer,
     .fallback = "2048",
     .unit = "tokens",
     .help = "tokens that are repeated at a time",
     .least = 1,
     .most = 1 << 20},
};
constexpr int kTile = 128;  // rows of a call: all read the keys that the last of them sees

class KvZip final : public ScoredSelector {
 public:
  KvZip(const Options& options, Scorers& scorers)
      : ScoredSelector(scorers.of(make_scorer<KvZipScorer>, options), options.removed()),
        layerwise_(options.boolean("layerwise")) {}

  Selection select(const LayerInput& layer, bool explain) override {
    if (removed().num == 0) return keep_everything(layer);
    Scores all = scores(layer, layer.n_tokens);
    Selection selection;
    if (explain) selection.scores = all;
    const Scores* only = &all;
    keep_across_layers({only, 1}, kvzip_pruned(int64_t{layer.kv_heads} * layer.n_tokens, removed()),
                       {&selection, 1});
    if (!layerwise_) layers_.push_back(std::move(all));
    return selection;
  }

  void settle(std::span<Selection> selections) override {
    if (layers_.empty()) return;
    int64_t entries = 0;
    for (const Scores& layer : layers_) {
      for (const auto& head : layer) entries += static_cast<int64_t>(head.size());
    }
    keep_across_layers(layers_, kvzip_pruned(entries, removed()), selections);
    layers_.clear();
  }

 private:
  bool layerwise_;
  std::vector<Scores> layers_;  // that compete
};

int64_t kept_of_all(const Options& options, const PromptShape& shape) {
  const int64_t parts = options.boolean("layerwise") ? shape.n_layers : 1;
  const int64_t entries = shape.entries() / parts;
  return parts * (entries - kvzip_pruned(entries, options.removed()));
}

}  // namespace

KvZipScorer::KvZipScorer(const Options& options)
    : chunk_(static_cast<int>(options.integer("chunk_size"))), n_sink_(options.integer("n_sink")) {}

// Every row of the input attends to the sinks before the chunk, the chunk, and the input up to
// itself.
void KvZipScorer::observe_repetition(const LayerInput& layer, const Repetition& r) {
  const int d = layer.head_dim, chunk = r.end - r.begin;
  const auto rows = static_cast<int>(r.q.dim(0));
  const auto sinks = static_cast<int>(std::min<int64_t>(n_sink_, r.begin));
  require_finite_queries(layer, r.q, layer.n_tokens + r.first_row);
  Scores& most = most_[layer.layer];
  most.resize(static_cast<size_t>(layer.kv_heads));
  const int n_keys = sinks + chunk + r.first_row + rows;
  std::vector<float> keys(static_cast<size_t>(n_keys) * static_cast<size_t>(d));
  std::vector<float> top(static_cast<size_t>(n_keys));
  for (int head = 0; head < layer.kv_heads; ++head) {
    std::vector<double>& best = most[static_cast<size_t>(head)];
    best.resize(static_cast<size_t>(layer.n_tokens), 0.0);
    layer.keys->read(head, 0, sinks, keys.data());
    layer.keys->read(head, r.begin, r.end, keys.data() + int64_t{sinks} * d);
    r.input_keys->read(head, 0, r.first_row + rows, keys.data() + int64_t{sinks + chunk} * d);
    const auto q = group_rows(layer, r.q, head, rows);
    for (int begin = 0; begin < rows; begin += kTile) {
      const int count = std::min(kTile, rows - begin);
      const auto tile = rows_of(q, begin, begin + count);
      kernels::window_attention_most(keys.data(), sinks + chunk + r.first_row + begin + count, d,
                                     tile, layer.logit_scale, *layer.pool, top.data());
      for (int i = 0; i < chunk; ++i) {
        double& entry = best[static_cast<size_t>(r.begin + i)];
        entry = std::max(entry, static_cast<double>(top[static_cast<size_t>(sinks + i)]));
      }
    }
  }
}

Scores KvZipScorer::score(const LayerInput& layer) {
  const auto found = most_.find(layer.layer);
  if (found == most_.end()) {
    throw Error(ErrorKind::invalid_argument,
                str("kvzip, layer ", layer.layer,
                    ": needs a second pass of the document through the model, which arrays alone "
                    "do not allow"));
  }
  for (int head = 0; head < layer.kv_heads; ++head) read_head(layer, *layer.keys, head, "key");
  Scores scores = std::move(found->second);
  most_.erase(found);
  const double protect = above_all(scores);
  for (auto& head : scores) {
    std::fill_n(head.begin(), std::min<int64_t>(n_sink_, layer.n_tokens), protect);
  }
  return scores;
}

int64_t kvzip_pruned(int64_t entries, Ratio removed) {
  return static_cast<int64_t>(static_cast<double>(entries) * removed.value());
}

void keep_across_layers(std::span<const Scores> layers, int64_t n_pruned,
                        std::span<Selection> selections) {
  KVIST_ASSERT(layers.size() == selections.size());
  std::vector<double> flat;
  for (const Scores& layer : layers) {
    for (const auto& head : layer) flat.insert(flat.end(), head.begin(), head.end());
  }
  const std::vector<int32_t> kept = survivors(flat, n_pruned);
  auto next = kept.begin();
  int64_t begin = 0;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    selections[layer].kept.assign(layers[layer].size(), {});
    for (size_t head = 0; head < layers[layer].size(); ++head) {
      const int64_t end = begin + static_cast<int64_t>(layers[layer][head].size());
      for (; next != kept.end() && *next < end; ++next)
        selections[layer].kept[head].push_back(static_cast<int32_t>(*next - begin));
      begin = end;
    }
  }
}

extern constinit const Method kvzip = {
    .name = "kvzip",
    .paper = "arXiv:2505.23416",
    .summary = "keeps what the model attends to when it repeats the document; a second pass",
    .decides = "entries",
    .options = kOptions,
    .select = make_scored_selector<KvZip>,
    .kept = kept_of_all,
    .score = make_scorer<KvZipScorer>};

}  // namespace kvist
