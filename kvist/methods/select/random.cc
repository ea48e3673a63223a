// SPDX-License-Identifier: MIT
// Keeps uniformly random tokens: the control that every selector must beat.
#include <algorithm>

#include "kvist/core/error.h"
#include "kvist/core/rng.h"
#include "kvist/methods/select/budget.h"
#include "kvist/methods/select/by_score.h"

namespace kvist {
namespace {

using Kind = OptionSpec::Kind;
constexpr OptionSpec kOptions[] = {
    kRatioOption,
    kKeepOption,
    {.name = "seed",
     .kind = Kind::integer,
     .fallback = "11",
     .unit = "",
     .help = "of the generator, with the prompt's tokens; one stream a layer and head"},
};
constexpr uint64_t kStream = 3;  // apart from the streams of twinkv's controls

class Random final : public Selector {
 public:
  explicit Random(const Options& options)
      : removed_(options.removed()), seed_(static_cast<uint64_t>(options.integer("seed"))) {}
  Needs needs() const override { return {}; }

  Selection select(const LayerInput& layer, bool) override {
    const int64_t keep = kept_tokens(layer.n_tokens, removed_);
    if (keep == 0) {
      throw Error(ErrorKind::invalid_argument, str("random: ", layer.n_tokens, " tokens at ratio ",
                                                   removed_.text(), " leave none"));
    }
    Selection selection;
    for (int head = 0; head < layer.kv_heads; ++head)
      selection.kept.push_back(draw(layer, head, keep));
    return selection;
  }

 private:
  // Selection sampling (Knuth, TAOCP 2, algorithm S): `keep` of n, ascending, every set equally
  // likely; pinned positions first come out of the budget. Prompts draw apart.
  std::vector<int32_t> draw(const LayerInput& layer, int head, int64_t keep) const {
    Rng rng(seed_ ^ layer.document, static_cast<uint32_t>(layer.layer), static_cast<uint32_t>(head),
            kStream);
    std::vector<int32_t> kept;
    kept.reserve(static_cast<size_t>(keep));
    const int64_t pinned = std::min<int64_t>(layer.pinned, keep);
    const int64_t open = layer.n_tokens - pinned;
    int64_t left = keep - pinned;
    for (int64_t position = 0; left > 0; ++position) {
      if (static_cast<int64_t>(rng.below(static_cast<uint64_t>(open - position))) < left) {
        kept.push_back(static_cast<int32_t>(position));
        --left;
      }
    }
    for (int64_t position = open; position < layer.n_tokens; ++position)
      kept.push_back(static_cast<int32_t>(position));
    return kept;
  }

  Ratio removed_;
  uint64_t seed_;
};

int64_t kept_of_all(const Options& options, const PromptShape& shape) {
  return int64_t{shape.n_layers} * shape.kv_heads * kept_tokens(shape.n_tokens, options.removed());
}

}  // namespace

extern constinit const Method random_control = {
    .name = "random",
    .paper = "",
    .summary = "a control, not a method: keeps uniformly random tokens, each head its own",
    .decides = "entries",
    .options = kOptions,
    .select = make_selector<Random>,
    .kept = kept_of_all};

}  // namespace kvist
