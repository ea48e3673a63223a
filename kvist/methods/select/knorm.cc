// SPDX-License-Identifier: MIT
// A control: keeps the keys of smallest norm, arXiv:2406.11430.
#include <cmath>

#include "kvist/kernels/window.h"
#include "kvist/methods/select/by_score.h"

namespace kvist {
namespace {

constexpr OptionSpec kOptions[] = {kRatioOption, kKeepOption};

class KNorm final : public Scorer {
 public:
  explicit KNorm(const Options&) {}
  Needs needs() const override { return {}; }

  Scores score(const LayerInput& layer) override {
    Scores scores;
    std::vector<float> squares(static_cast<size_t>(layer.n_tokens));
    for (int head = 0; head < layer.kv_heads; ++head) {
      const Buffer<float> keys = read_head(layer, *layer.keys, head, "key");
      kernels::energies(keys.data(), layer.n_tokens, layer.head_dim, squares.data());
      std::vector<double>& out = scores.emplace_back();
      for (float square : squares) out.push_back(-std::sqrt(static_cast<double>(square)));
    }
    return scores;
  }
};

}  // namespace

extern constinit const Method knorm = {.name = "knorm",
                                       .paper = "arXiv:2406.11430",
                                       .summary = "a control: keeps the keys of smallest norm",
                                       .decides = "entries",
                                       .options = kOptions,
                                       .select = make_best_by<KNorm>,
                                       .kept = kept_of_each_head,
                                       .score = make_scorer<KNorm>};

}  // namespace kvist
