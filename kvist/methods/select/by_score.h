// SPDX-License-Identifier: MIT
// What the baselines share: reading a head's rows, checking scores, and the selector that keeps
// each head's best.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "kvist/core/buffer.h"
#include "kvist/core/ratio.h"
#include "kvist/methods/method.h"
#include "kvist/methods/select/scorers.h"

namespace kvist {

inline constexpr OptionSpec kSinkOption{.name = "n_sink",
                                        .kind = OptionSpec::Kind::integer,
                                        .fallback = "4",
                                        .unit = "tokens",
                                        .help = "first tokens that stay"};

// Every token of every head: what a ratio of 0 keeps, without looking.
Selection keep_everything(const LayerInput& layer);

// Rows [0, n_tokens) of one head, [n_tokens][head_dim], on the threads of the layer's pool. Throws
// Error(corrupt) naming layer, head and position of a number that is not finite; `what` is "key" or
// "value".
Buffer<float> read_head(const LayerInput& layer, const HeadRows& from, int head, const char* what);

// Throws as read_head does, for n numbers of one head from row `begin` on.
void require_finite_rows(const LayerInput& layer, int head, int begin, const float* rows, int64_t n,
                         const char* what);

// Rows [begin, end) of one head.
struct HeadChunk {
  int head = 0, begin = 0, end = 0;
  const float* rows = nullptr;  // [end - begin][head_dim]
};

// Calls body with rows [first, n_tokens) of every head in chunks of 256, in any order, on the
// threads of the layer's pool. Throws as read_head does.
void for_each_chunk(const LayerInput& layer, const HeadRows& from, const char* what, int first,
                    const std::function<void(const HeadChunk&)>& body);

// The q rows of the last `window` positions of a KV head's group, [window, group, head_dim].
TensorView<const float, 3> group_rows(const LayerInput& layer, TensorView<const float, 3> q,
                                      int head, int window);

// Rows [begin, end) of q.
TensorView<const float, 3> rows_of(TensorView<const float, 3> q, int begin, int end);

// Throws Error(corrupt) naming layer, query head and position where a row is not finite. Row 0 is
// position `first`.
void require_finite_queries(const LayerInput& layer, TensorView<const float, 3> q, int64_t first);

// Throws Error(corrupt) for a score that is NaN: no order has a place for it.
void require_numbers(const LayerInput& layer, const Scores& scores);

// Puts the last layer.pinned positions above all others, later ones above earlier.
void pin_tail(const LayerInput& layer, Scores* scores);

// The n_kept best of each head by top_positions: the smaller position wins among equals.
Selection keep_best(const LayerInput& layer, Scores scores, int n_kept, bool explain);

// Score of protected positions in a layer: above all others.
double above_all(const Scores& scores);

// A selector that is a score and a cut: the scorer watches and scores, for others too.
class ScoredSelector : public Selector {
 public:
  Needs needs() const override { return removed_.num == 0 ? Needs{} : scorer_->needs(); }
  Observer& watcher() override {
    return removed_.num == 0 ? static_cast<Observer&>(*this) : *scorer_;
  }
  void observe(const LayerInput& layer) override { scorer_->observe(layer); }
  void observe_repetition(const LayerInput& layer, const Repetition& repetition) override {
    scorer_->observe_repetition(layer, repetition);
  }

 protected:
  ScoredSelector(std::shared_ptr<Scorer> scorer, Ratio removed)
      : scorer_(std::move(scorer)), removed_(removed) {}
  // For a budget of n_kept entries a head.
  Scores scores(const LayerInput& layer, int n_kept) {
    scorer_->require_room(layer, n_kept);
    Scores scores = scorer_->score(layer);
    pin_tail(layer, &scores);
    return scores;
  }
  Ratio removed() const { return removed_; }

 private:
  std::shared_ptr<Scorer> scorer_;
  Ratio removed_;
};

// Keeps each head's best by a scorer: the same number in every head and layer.
class BestByScore final : public ScoredSelector {
 public:
  BestByScore(std::shared_ptr<Scorer> scorer, Ratio removed)
      : ScoredSelector(std::move(scorer), removed) {}
  Selection select(const LayerInput& layer, bool explain) override;
};

// Keeps each head's best of the entries that are left.
class EvictByScore final : public Evictor {
 public:
  explicit EvictByScore(std::unique_ptr<Scorer> scorer) : scorer_(std::move(scorer)) {}
  Needs needs() const override { return scorer_->needs(); }
  std::vector<std::vector<int32_t>> stay(const LayerInput& layer, int n_kept) override {
    scorer_->require_room(layer, n_kept);
    return keep_best(layer, scorer_->score(layer), n_kept, false).kept;
  }

 private:
  std::unique_ptr<Scorer> scorer_;
};

// Method::kept of a selector that keeps as many of every head: reference_kept_tokens of it.
int64_t kept_of_each_head(const Options& options, const PromptShape& shape);

// The factories of a method that is a scorer and no more.
template <typename S>
std::unique_ptr<Scorer> make_scorer(const Options& options) {
  return std::make_unique<S>(options);
}
// Of a scorer that looks at nothing but the entries it is given.
template <typename S>
std::unique_ptr<Evictor> make_evict_by(const Options& options) {
  return std::make_unique<EvictByScore>(make_scorer<S>(options));
}
// Of a method with a selector of its own.
template <typename S>
std::unique_ptr<Selector> make_selector(const Options& options, Scorers&) {
  return std::make_unique<S>(options);
}
// Of one whose selector cuts what a scorer says.
template <typename S>
std::unique_ptr<Selector> make_scored_selector(const Options& options, Scorers& scorers) {
  return std::make_unique<S>(options, scorers);
}
template <typename S>
std::unique_ptr<Selector> make_best_by(const Options& options, Scorers& scorers) {
  return std::make_unique<BestByScore>(scorers.of(make_scorer<S>, options), options.removed());
}

}  // namespace kvist
