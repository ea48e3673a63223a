// SPDX-License-Identifier: MIT
// Scores are kept until everyone who shares them has had them.
#include "kvist/methods/select/scorers.h"

#include <chrono>
#include <string_view>

namespace kvist {

class Scorers::Shared final : public Scorer {
 public:
  Shared(std::unique_ptr<Scorer> inner, std::shared_ptr<double> spared_ms)
      : inner_(std::move(inner)), spared_ms_(std::move(spared_ms)) {}

  void take() { ++takers_; }

  Needs needs() const override { return inner_->needs(); }
  void observe(const LayerInput& layer) override { inner_->observe(layer); }
  void observe_repetition(const LayerInput& layer, const Repetition& repetition) override {
    inner_->observe_repetition(layer, repetition);
  }
  void require_room(const LayerInput& layer, int n_kept) const override {
    inner_->require_room(layer, n_kept);
  }

  Scores score(const LayerInput& layer) override {
    if (takers_ == 1) return inner_->score(layer);
    const auto found = done_.find(layer.layer);
    if (found == done_.end()) return first(layer);
    *spared_ms_ += found->second.ms;
    if (--found->second.left > 0) return found->second.scores;
    Scores scores = std::move(found->second.scores);
    done_.erase(found);
    return scores;
  }

 private:
  struct Done {
    Scores scores;
    int left = 0;  // selectors that have not asked yet
    double ms = 0;
  };

  Scores first(const LayerInput& layer) {
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    Done& done = done_[layer.layer] = {inner_->score(layer), takers_ - 1, 0};
    done.ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    return done.scores;
  }

  std::unique_ptr<Scorer> inner_;
  std::shared_ptr<double> spared_ms_;
  int takers_ = 0;
  std::map<int, Done> done_;  // by the model's layer
};

std::shared_ptr<Scorer> Scorers::of(Make make, const Options& options) {
  std::string text;
  for (const OptionSpec& spec : options.specs()) {
    const std::string_view name = spec.name;
    if (name != kRatioOption.name && name != kKeepOption.name) text += options.text(name) + ",";
  }
  std::weak_ptr<Shared>& known = shared_[{make, text}];
  std::shared_ptr<Shared> shared = known.lock();
  if (!shared) known = shared = std::make_shared<Shared>(make(options), spared_ms_);
  shared->take();
  return shared;
}

}  // namespace kvist
