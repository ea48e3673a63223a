// SPDX-License-Identifier: MIT
// SnapKV's choice with more tokens for the lower layers: PyramidKV, arXiv:2406.02069.
#include "kvist/methods/select/pyramidkv.h"

#include <algorithm>
#include <cmath>

#include "kvist/methods/select/by_score.h"
#include "kvist/methods/select/snapkv.h"

namespace kvist {
namespace {

constexpr OptionSpec kOptions[] = {
    kRatioOption,
    kKeepOption,
    kWindowSizeOption,
    kKernelSizeOption,
    {.name = "beta",
     .kind = OptionSpec::Kind::integer,
     .fallback = "20",
     .unit = "",
     .help = "steepness: the last layer keeps one beta-th of the average beside the window",
     .least = 1},
};

class PyramidKv final : public Selector {
 public:
  explicit PyramidKv(const Options& options)
      : scorer_(options), removed_(options.removed()), beta_(options.integer("beta")) {}
  Needs needs() const override { return removed_.num == 0 ? Needs{} : scorer_.needs(); }

  Selection select(const LayerInput& layer, bool explain) override {
    if (removed_.num == 0) return keep_everything(layer);
    const int n_kept = pyramid_budget(layer.n_tokens, removed_, scorer_.window(), beta_,
                                      layer.layer, layer.n_layers);
    if (n_kept >= layer.n_tokens) return keep_everything(layer);
    return keep_best(layer, scorer_.score(layer, n_kept), n_kept, explain);
  }

 private:
  SnapKv scorer_;
  Ratio removed_;
  int64_t beta_;
};

}  // namespace

int pyramid_budget(int n, Ratio removed, int window, int64_t beta, int layer, int n_layers) {
  // std::nearbyint rounds halves to even. `mean - window` is not simplified: its rounding decides
  // at the boundaries.
  const double tokens = n, w = window, uniform = tokens * (1 - removed.value());
  const double mean = w + uniform;
  double last = (mean - w) / static_cast<double>(beta);
  double first = (mean - w) * 2 - last;
  if (first >= tokens - w) {
    first = tokens - w;
    last = (mean - w) * 2 - first;
  }
  if (!(tokens >= first && first >= last && last >= w))
    return std::max(1, static_cast<int>(std::nearbyint(uniform)));
  const double step = n_layers > 1 ? (first - last) / (n_layers - 1) : 0;
  return static_cast<int>(std::nearbyint(first - layer * step));
}

extern constinit const Method pyramidkv = {
    .name = "pyramidkv",
    .paper = "arXiv:2406.02069",
    .summary = "SnapKV's score, with more tokens for the lower layers than for the upper",
    .decides = "entries",
    .options = kOptions,
    .select = make_selector<PyramidKv>};

}  // namespace kvist
