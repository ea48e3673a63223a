// SPDX-License-Identifier: MIT
// Keeps the tokens whose values move the layer's output most under the last queries: a Fisher-style
// signal, after one that VarRate (arXiv:2607.15498, A.18) describes in words.
#include "kvist/methods/select/fisher.h"

#include <algorithm>
#include <cmath>

#include "kvist/core/error.h"
#include "kvist/kernels/rows.h"
#include "kvist/methods/select/by_score.h"
#include "kvist/methods/select/snapkv.h"

namespace kvist {
namespace {

constexpr OptionSpec kOptions[] = {kRatioOption, kKeepOption, kWindowSizeOption};

// W_h^T W_h of every query head, W_h the columns of the output projection that read it: [d][d]
// each.
std::vector<std::vector<double>> grams(const LayerInput& layer) {
  if (!layer.output_projection) {
    throw Error(ErrorKind::invalid_argument,
                str("fisher, layer ", layer.layer,
                    ": needs the output projection of a model, and there is none here"));
  }
  const std::vector<float> w = layer.output_projection();
  const auto d = static_cast<size_t>(layer.head_dim),
             columns = static_cast<size_t>(layer.heads) * d;
  std::vector<std::vector<double>> all(static_cast<size_t>(layer.heads));
  layer.pool->parallel_for(layer.heads, [&](int64_t head) {
    std::vector<double>& gram = all[static_cast<size_t>(head)];
    gram.assign(d * d, 0.0);
    for (size_t row = 0; row < w.size(); row += columns) {
      const float* from = w.data() + row + static_cast<size_t>(head) * d;
      for (size_t i = 0; i < d; ++i) {
        const auto x = static_cast<double>(from[i]);
        for (size_t j = 0; j < d; ++j) gram[i * d + j] += x * static_cast<double>(from[j]);
      }
    }
  });
  return all;
}

// gram x, [d].
std::vector<double> times(const std::vector<double>& gram, const double* x, size_t d) {
  std::vector<double> out(d, 0.0);
  for (size_t i = 0; i < d; ++i)
    for (size_t j = 0; j < d; ++j) out[i] += gram[i * d + j] * x[j];
  return out;
}

double dot(const std::vector<double>& a, const double* b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// v^T gram v of every row, [n].
std::vector<double> squares(const std::vector<double>& gram, const float* rows, int n, int d,
                            ThreadPool& pool) {
  constexpr int kPart = 256;
  std::vector<double> out(static_cast<size_t>(n), 0.0);
  pool.parallel_for((n + kPart - 1) / kPart, [&](int64_t part) {
    const int begin = static_cast<int>(part) * kPart, count = std::min(kPart, n - begin);
    const float* from = rows + int64_t{begin} * d;
    std::vector<double> products(static_cast<size_t>(count));
    for (int i = 0; i < d; ++i) {
      kernels::row_dots(from, count, d, gram.data() + int64_t{i} * d, products.data());
      for (int t = 0; t < count; ++t)
        out[static_cast<size_t>(begin + t)] +=
            static_cast<double>(from[t * d + i]) * products[static_cast<size_t>(t)];
    }
  });
  return out;
}

// softmax(scale q . k) over the first `seen` keys, [seen].
std::vector<double> attention(const float* q, const float* keys, int seen, int d, double scale) {
  std::vector<double> weights(static_cast<size_t>(seen));
  const std::vector<double> query(q, q + d);
  kernels::row_dots(keys, seen, d, query.data(), weights.data());
  const double top = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(scale * (weight - top));
  for (double& weight : weights) weight /= sum;
  return weights;
}

class Fisher final : public Scorer {
 public:
  explicit Fisher(const Options& options)
      : window_(static_cast<int>(options.integer("window_size"))) {}
  Needs needs() const override { return {.window_queries = window_}; }

  void require_room(const LayerInput& layer, int n_kept) const override {
    require_window(layer, window_, n_kept);
  }
  Scores score(const LayerInput& layer) override {
    require_window(layer, window_, layer.n_tokens);
    Scores scores = fisher_signal(layer, window_);
    const double protect = above_all(scores);
    for (auto& head : scores) std::fill(head.end() - window_, head.end(), protect);
    return scores;
  }

 private:
  int window_;
};

}  // namespace

Scores fisher_signal(const LayerInput& layer, int window) {
  const auto all_grams = grams(layer);
  const int n = layer.n_tokens, d = layer.head_dim, group = layer.heads / layer.kv_heads;
  const auto size = static_cast<size_t>(n);
  Scores scores;
  for (int head = 0; head < layer.kv_heads; ++head) {
    const auto q = group_rows(layer, layer.q, head, window);
    require_finite_queries(layer, q, n - window);
    const Buffer<float> keys = read_head(layer, *layer.keys, head, "key");
    const Buffer<float> values = read_head(layer, *layer.values, head, "value");
    std::vector<double>& sum = scores.emplace_back(size, 0.0);
    for (int g = 0; g < group; ++g) {
      const std::vector<double>& gram = all_grams[static_cast<size_t>(head * group + g)];
      const std::vector<double> length = squares(gram, values.data(), n, d, *layer.pool);
      std::vector<std::vector<double>> parts(static_cast<size_t>(window));
      layer.pool->parallel_for(window, [&](int64_t row) {
        const int seen = n - window + static_cast<int>(row) + 1;
        std::vector<double> a =
            attention(&q(row, g, 0), keys.data(), seen, d, static_cast<double>(layer.logit_scale));
        std::vector<double> out(static_cast<size_t>(d)), across(static_cast<size_t>(seen));
        kernels::weighted_sum(values.data(), seen, d, a.data(), out.data());
        const std::vector<double> gram_out = times(gram, out.data(), out.size());
        kernels::row_dots(values.data(), seen, d, gram_out.data(), across.data());
        const double own = dot(gram_out, out.data());
        for (size_t t = 0; t < a.size(); ++t)
          a[t] *= a[t] * std::max(0.0, length[t] - 2 * across[t] + own);
        parts[static_cast<size_t>(row)] = std::move(a);
      });
      for (const auto& part : parts)
        for (size_t t = 0; t < part.size(); ++t) sum[t] += part[t];
    }
  }
  return scores;
}

extern constinit const Method fisher = {
    .name = "fisher",
    .paper = "arXiv:2607.15498",
    .summary =
        "keeps the values that move the output most under the last queries; experimental, the "
        "paper gives no formula",
    .decides = "entries",
    .options = kOptions,
    .select = make_best_by<Fisher>,
    .kept = kept_of_each_head,
    .score = make_scorer<Fisher>};

}  // namespace kvist
