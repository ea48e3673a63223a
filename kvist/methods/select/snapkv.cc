// SPDX-License-Identifier: MIT
// Keeps what the last queries of the prompt attend to: SnapKV, arXiv:2404.14469.
#include "kvist/methods/select/snapkv.h"

#include "kvist/core/error.h"
#include "kvist/kernels/window.h"
#include "kvist/methods/select/by_score.h"

namespace kvist {
namespace {

constexpr OptionSpec kOptions[] = {kRatioOption, kKeepOption, kWindowSizeOption, kKernelSizeOption};

// out[i] = sum of in over |j - i| <= width / 2 that lie in [0, n), divided by width all the same.
std::vector<double> average_pool(const std::vector<double>& in, int width) {
  const int n = static_cast<int>(in.size()), radius = width / 2;
  std::vector<double> out(in.size());
  for (int i = 0; i < n; ++i) {
    double sum = 0;
    for (int j = std::max(0, i - radius); j <= std::min(n - 1, i + radius); ++j)
      sum += in[static_cast<size_t>(j)];
    out[static_cast<size_t>(i)] = sum / width;
  }
  return out;
}

}  // namespace

SnapKv::SnapKv(const Options& options)
    : window_(static_cast<int>(options.integer("window_size"))),
      kernel_(static_cast<int>(options.integer("kernel_size"))) {
  if (kernel_ % 2 == 0) {
    throw Error(
        ErrorKind::invalid_argument,
        str("kernel_size=", kernel_, " is even; an average around a position has an odd width"));
  }
}

void require_window(const LayerInput& layer, int window, int n_kept) {
  if (layer.n_tokens <= window) {
    throw Error(ErrorKind::invalid_argument,
                str("a window of ", window, " tokens does not fit into a prompt of ",
                    layer.n_tokens, "; give a smaller window_size"));
  }
  if (n_kept < window) {
    throw Error(ErrorKind::invalid_argument, str("of ", layer.n_tokens, " tokens ", n_kept,
                                                 " may stay, fewer than the window of ", window,
                                                 "; give a smaller ratio or window_size"));
  }
  if (layer.q.dim(0) < window) {
    throw Error(ErrorKind::invalid_argument,
                str("layer ", layer.layer, ": needs the queries of the last ", window,
                    " positions, found ", layer.q.dim(0)));
  }
}

void SnapKv::require_room(const LayerInput& layer, int n_kept) const {
  require_window(layer, window_, n_kept);
}

Scores SnapKv::score(const LayerInput& layer) {
  require_window(layer, window_, layer.n_tokens);
  const int n = layer.n_tokens, group = layer.heads / layer.kv_heads, before = n - window_;
  Scores scores;
  std::vector<double> means(static_cast<size_t>(group) * static_cast<size_t>(n));
  for (int head = 0; head < layer.kv_heads; ++head) {
    const auto q = group_rows(layer, layer.q, head, window_);
    require_finite_queries(layer, q, before);
    const Buffer<float> keys = read_head(layer, *layer.keys, head, "key");
    kernels::window_attention_per_head(keys.data(), n, layer.head_dim, q, layer.logit_scale,
                                       *layer.pool, means.data());
    std::vector<double> mean(static_cast<size_t>(before), 0.0);
    for (int g = 0; g < group; ++g) {
      const double* one = means.data() + int64_t{g} * n;
      for (size_t i = 0; i < mean.size(); ++i) mean[i] += one[i] / group;
    }
    scores.push_back(average_pool(mean, kernel_));
  }
  const double protect = above_all(scores);
  for (auto& head : scores) head.resize(static_cast<size_t>(n), protect);
  return scores;
}

extern constinit const Method snapkv = {
    .name = "snapkv",
    .paper = "arXiv:2404.14469",
    .summary = "keeps what the last queries of the prompt attend to, and their own tokens",
    .decides = "entries",
    .options = kOptions,
    .select = make_best_by<SnapKv>,
    .kept = kept_of_each_head,
    .score = make_scorer<SnapKv>};

}  // namespace kvist
