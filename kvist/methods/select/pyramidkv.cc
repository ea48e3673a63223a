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

class PyramidKv final : public ScoredSelector {
 public:
  PyramidKv(const Options& options, Scorers& scorers)
      : ScoredSelector(scorers.of(make_scorer<SnapKv>, options.passed_to(snapkv)),
                       options.removed()),
        window_(static_cast<int>(options.integer("window_size"))),
        beta_(options.integer("beta")) {}

  Selection select(const LayerInput& layer, bool explain) override {
    if (removed().num == 0) return keep_everything(layer);
    const int n_kept =
        pyramid_budget(layer.n_tokens, removed(), window_, beta_, layer.layer, layer.n_layers);
    if (n_kept >= layer.n_tokens) return keep_everything(layer);
    return keep_best(layer, scores(layer, n_kept), n_kept, explain);
  }

 private:
  int window_;
  int64_t beta_;
};

int64_t kept_of_all(const Options& options, const PromptShape& shape) {
  int64_t sum = 0;
  for (int layer = 0; layer < shape.n_layers; ++layer) {
    const int n_kept = pyramid_budget(shape.n_tokens, options.removed(),
                                      static_cast<int>(options.integer("window_size")),
                                      options.integer("beta"), layer, shape.n_layers);
    sum += int64_t{shape.kv_heads} * std::min(n_kept, shape.n_tokens);
  }
  return sum;
}

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
    .select = make_scored_selector<PyramidKv>,
    .kept = kept_of_all};

}  // namespace kvist
