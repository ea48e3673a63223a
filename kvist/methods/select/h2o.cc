// SPDX-License-Identifier: MIT
// Keeps what all queries of the prompt attended to: H2O, arXiv:2306.14048, as observed attention.
#include <algorithm>
#include <map>

#include "kvist/core/error.h"
#include "kvist/kernels/window.h"
#include "kvist/methods/select/by_score.h"

namespace kvist {
namespace {

constexpr OptionSpec kOptions[] = {kRatioOption, kKeepOption};
constexpr int kTile = 32;  // positions whose attention exists at a time, [kTile * group][n] numbers

// Adds the columns of the causal attention of one head's group, of the step's queries.
void add_columns(const LayerInput& layer, int head, std::vector<double>* sums) {
  const auto rows = static_cast<int>(layer.q.dim(0));
  const int first = layer.n_tokens - rows, group = layer.heads / layer.kv_heads;
  const Buffer<float> keys = read_head(layer, *layer.keys, head, "key");
  const auto q = group_rows(layer, layer.q, head, rows);
  sums->resize(static_cast<size_t>(layer.n_tokens), 0.0);
  std::vector<double> means(static_cast<size_t>(group) * sums->size());
  for (int begin = 0; begin < rows; begin += kTile) {
    const int count = std::min(kTile, rows - begin), n = first + begin + count;
    const auto tile = rows_of(q, begin, begin + count);
    kernels::window_attention_per_head(keys.data(), n, layer.head_dim, tile, layer.logit_scale,
                                       *layer.pool, means.data());
    for (int g = 0; g < group; ++g) {
      const double* mean = means.data() + int64_t{g} * n;
      for (int i = 0; i < n; ++i) (*sums)[static_cast<size_t>(i)] += count * mean[i];
    }
  }
}

class H2o final : public Scorer {
 public:
  explicit H2o(const Options&) {}
  Needs needs() const override { return {.every_query = true}; }

  void observe(const LayerInput& layer) override {
    Seen& seen = seen_[layer.layer];
    const auto rows = static_cast<int>(layer.q.dim(0));
    KVIST_ASSERT(seen.n_tokens + rows == layer.n_tokens);
    require_finite_queries(layer, layer.q, seen.n_tokens);
    seen.sums.resize(static_cast<size_t>(layer.kv_heads));
    for (int head = 0; head < layer.kv_heads; ++head)
      add_columns(layer, head, &seen.sums[static_cast<size_t>(head)]);
    seen.n_tokens = layer.n_tokens;
  }

  // Mean attention that an entry got from the queries that can see it.
  Scores score(const LayerInput& layer) override {
    Seen& seen = seen_[layer.layer];
    const int n = layer.n_tokens, group = layer.heads / layer.kv_heads;
    if (seen.n_tokens != n) {
      throw Error(ErrorKind::invalid_argument,
                  str("h2o, layer ", layer.layer, ": needs the queries of all ", n,
                      " positions, found ", seen.n_tokens));
    }
    Scores scores = seen.sums;
    for (auto& head : scores) {
      for (int i = 0; i < n; ++i) head[static_cast<size_t>(i)] /= double{1} * group * (n - i);
    }
    return scores;
  }

 private:
  struct Seen {
    int n_tokens = 0;
    Scores sums;  // over queries and the group
  };

  std::map<int, Seen> seen_;  // by the model's layer
};

// The published policy for a growing cache: half of what stays are the newest, the other half those
// that got most attention in all, since they came.
class H2oEvictor final : public Evictor {
 public:
  Needs needs() const override { return {.every_query = true}; }

  void observe(const LayerInput& layer) override {
    require_finite_queries(layer, layer.q, layer.n_tokens - layer.q.dim(0));
    Scores& sums = sums_[layer.layer];
    sums.resize(static_cast<size_t>(layer.kv_heads));
    for (int head = 0; head < layer.kv_heads; ++head)
      add_columns(layer, head, &sums[static_cast<size_t>(head)]);
  }

  std::vector<std::vector<int32_t>> stay(const LayerInput& layer, int n_kept) override {
    Scores& sums = sums_[layer.layer];
    Scores scores = sums;
    const double newest = above_all(scores);
    for (auto& head : scores) std::fill(head.end() - n_kept / 2, head.end(), newest);
    auto kept = keep_best(layer, std::move(scores), n_kept, false).kept;
    for (size_t head = 0; head < kept.size(); ++head) {
      std::vector<double> left;
      for (int32_t i : kept[head]) left.push_back(sums[head][static_cast<size_t>(i)]);
      sums[head] = std::move(left);
    }
    return kept;
  }

 private:
  std::map<int, Scores> sums_;  // by the model's layer: over queries and the group
};

std::unique_ptr<Evictor> make_h2o_evictor(const Options&) { return std::make_unique<H2oEvictor>(); }

}  // namespace

extern constinit const Method h2o = {
    .name = "h2o",
    .paper = "arXiv:2306.14048",
    .summary = "keeps what all queries of the prompt attended to on average; no extra protection",
    .decides = "entries",
    .options = kOptions,
    .select = make_best_by<H2o>,
    .kept = kept_of_each_head,
    .score = make_scorer<H2o>,
    .evict = make_h2o_evictor};

}  // namespace kvist
