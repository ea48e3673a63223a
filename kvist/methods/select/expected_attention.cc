// SPDX-License-Identifier: MIT
// Keeps what future queries are expected to attend to, if they are Gaussian like those of the
// prompt: Expected Attention, arXiv:2510.00636.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <span>

#include "kvist/core/error.h"
#include "kvist/kernels/moments.h"
#include "kvist/kernels/rows.h"
#include "kvist/methods/rope.h"
#include "kvist/methods/select/by_score.h"

namespace kvist {
namespace {

using Kind = OptionSpec::Kind;
constexpr OptionSpec kOptions[] = {
    kRatioOption,
    kKeepOption,
    {.name = "n_future_positions",
     .kind = Kind::integer,
     .fallback = "512",
     .unit = "tokens",
     .help = "positions after the prompt over which the rotation is averaged",
     .least = 1,
     .most = 1 << 20},
    {.name = "n_sink",
     .kind = Kind::integer,
     .fallback = "4",
     .unit = "tokens",
     .help = "first tokens that stay and that the statistics leave out"},
    {.name = "use_covariance",
     .kind = Kind::boolean,
     .fallback = "true",
     .unit = "",
     .help = "the spread of the queries counts, not only their mean"},
    {.name = "use_vnorm",
     .kind = Kind::boolean,
     .fallback = "true",
     .unit = "",
     .help = "expected attention times the norm of the value"},
    {.name = "epsilon",
     .kind = Kind::ratio,
     .fallback = "0",
     .unit = "",
     .help = "added to the expected attention before the norm multiplies it"},
};

// Moments of one query head before RoPE, about a shift near the mean.
struct Moments {
  std::vector<float> shift;
  std::vector<double> first, second;  // [d], [d][d] of which the upper triangle counts
};

// mean and covariance of future queries, as the logits use them: scaled, in fp32.
struct Gaussian {
  std::vector<float> linear;
  std::optional<kernels::QuadraticForm> quadratic;
};

class ExpectedAttention final : public Scorer {
 public:
  explicit ExpectedAttention(const Options& options)
      : n_future_(options.integer("n_future_positions")),
        n_sink_(options.integer("n_sink")),
        covariance_(options.boolean("use_covariance")),
        vnorm_(options.boolean("use_vnorm")),
        epsilon_(options.ratio("epsilon").value()) {}
  Needs needs() const override { return {.every_query = true, .pre_rope = true}; }
  void observe(const LayerInput& layer) override;
  Scores score(const LayerInput& layer) override;

 private:
  struct Seen {
    int64_t n_tokens = 0;
    std::vector<Moments> heads;
  };
  Gaussian future(const Moments& moments, int64_t count, const PairRotation& rotation,
                  float logit_scale) const;
  std::vector<Gaussian> future_queries(const LayerInput& layer, const Seen& seen,
                                       int64_t count) const;

  int64_t n_future_, n_sink_;
  bool covariance_, vnorm_;
  double epsilon_;
  std::map<int, Seen> seen_;  // by the model's layer
};

void ExpectedAttention::observe(const LayerInput& layer) {
  Seen& seen = seen_[layer.layer];
  const auto& q = layer.q_pre;
  KVIST_ASSERT(seen.n_tokens + q.dim(0) == layer.n_tokens);
  const auto d = static_cast<size_t>(layer.head_dim);
  const int64_t first = seen.n_tokens, skip = std::max<int64_t>(0, n_sink_ - first);
  const auto rows = static_cast<int>(q.dim(0) - skip);
  seen.n_tokens = layer.n_tokens;
  if (rows <= 0) return;
  seen.heads.resize(static_cast<size_t>(layer.heads));
  layer.pool->parallel_for(layer.heads, [&](int64_t head) {
    Moments& m = seen.heads[static_cast<size_t>(head)];
    const float* x = &q(skip, head, 0);
    if (m.shift.empty()) {  // the mean of the first rows
      m.first.assign(d, 0.0);
      m.second.assign(covariance_ ? d * d : 0, 0.0);
      m.shift.assign(d, 0.0f);
      std::vector<double> sum(d, 0.0);
      kernels::add_moments(x, rows, q.stride(0), layer.head_dim, m.shift.data(), sum.data(),
                           nullptr);
      for (size_t c = 0; c < d; ++c) m.shift[c] = static_cast<float>(sum[c] / rows);
    }
    kernels::add_moments(x, rows, q.stride(0), layer.head_dim, m.shift.data(), m.first.data(),
                         covariance_ ? m.second.data() : nullptr);
  });
  // A sum holds what any of its terms was that is not finite.
  for (const Moments& m : seen.heads)
    for (const double sum : m.first)
      if (!std::isfinite(sum)) return require_finite_queries(layer, q, first);
}

// R mean and R covariance R^T, with R the mean rotation of the future positions.
Gaussian ExpectedAttention::future(const Moments& m, int64_t count, const PairRotation& rotation,
                                   float logit_scale) const {
  const size_t d = m.first.size();
  const double scale = static_cast<double>(logit_scale);
  std::vector<double> mean(d), centred(d), covariance(m.second);
  for (size_t c = 0; c < d; ++c) {
    centred[c] = m.first[c] / static_cast<double>(count);
    mean[c] = centred[c] + static_cast<double>(m.shift[c]);
  }
  rotation.apply(mean.data());
  Gaussian gaussian;
  for (double x : mean) gaussian.linear.push_back(static_cast<float>(x * scale));
  if (!covariance_) return gaussian;
  for (size_t i = 0; i < d; ++i) {
    for (size_t j = i; j < d; ++j) {
      double& c = covariance[i * d + j];
      c = c / static_cast<double>(count) - centred[i] * centred[j];
      covariance[j * d + i] = c;
    }
  }
  for (size_t i = 0; i < d; ++i) rotation.apply(covariance.data() + i * d);
  for (size_t j = 0; j < d; ++j) rotation.apply(covariance.data() + j, static_cast<int64_t>(d));
  std::vector<float> scaled;
  for (double x : covariance) scaled.push_back(static_cast<float>(x * scale * scale));
  gaussian.quadratic.emplace(scaled.data(), static_cast<int>(d));
  return gaussian;
}

// Of every query head, from `count` positions seen.
std::vector<Gaussian> ExpectedAttention::future_queries(const LayerInput& layer, const Seen& seen,
                                                        int64_t count) const {
  const PairRotation rotation = PairRotation::mean(*layer.rope, layer.n_tokens, n_future_);
  std::vector<Gaussian> queries(static_cast<size_t>(layer.heads));
  layer.pool->parallel_for(layer.heads, [&](int64_t head) {
    const auto h = static_cast<size_t>(head);
    queries[h] = future(seen.heads[h], count, rotation, layer.logit_scale);
  });
  return queries;
}

void softmax(std::span<double> z) {
  const double top = *std::max_element(z.begin(), z.end());
  double sum = 0;
  for (double& x : z) sum += x = std::exp(x - top);
  for (double& x : z) x /= sum;
}

Scores ExpectedAttention::score(const LayerInput& layer) {
  Seen& seen = seen_[layer.layer];
  const int n = layer.n_tokens;
  if (seen.n_tokens != n) {
    throw Error(ErrorKind::invalid_argument,
                str("expected_attention, layer ", layer.layer, ": needs the queries of all ", n,
                    " positions before RoPE, found ", seen.n_tokens));
  }
  if (layer.rope == nullptr) {
    throw Error(ErrorKind::invalid_argument,
                str("expected_attention, layer ", layer.layer,
                    ": needs the model's RoPE: frequencies, or theta"));
  }
  const auto n_sink = static_cast<int>(std::min<int64_t>(n_sink_, n));
  const int counted = n - n_sink, group = layer.heads / layer.kv_heads;
  Scores scores(static_cast<size_t>(layer.kv_heads));
  if (counted > 0) {
    const std::vector<Gaussian> queries = future_queries(layer, seen, counted);
    std::vector<std::vector<double>> z(queries.size());
    for (auto& head : z) head.resize(static_cast<size_t>(counted));
    for_each_chunk(layer, *layer.keys, "key", n_sink, [&](const HeadChunk& keys) {
      for (int head = keys.head * group; head < (keys.head + 1) * group; ++head) {
        const auto h = static_cast<size_t>(head);
        kernels::expected_logits(
            keys.rows, keys.end - keys.begin, layer.head_dim, queries[h].linear.data(),
            covariance_ ? &*queries[h].quadratic : nullptr, z[h].data() + (keys.begin - n_sink));
      }
    });
    layer.pool->parallel_for(layer.heads, [&](int64_t h) { softmax(z[static_cast<size_t>(h)]); });
    layer.pool->parallel_for(layer.kv_heads, [&](int64_t kv) {
      std::vector<double>& mean = scores[static_cast<size_t>(kv)];
      mean.resize(static_cast<size_t>(counted));
      for (int64_t h = kv * group; h < (kv + 1) * group; ++h)
        for (size_t i = 0; i < mean.size(); ++i) mean[i] += z[static_cast<size_t>(h)][i] / group;
    });
    if (vnorm_) {
      for_each_chunk(layer, *layer.values, "value", n_sink, [&](const HeadChunk& values) {
        std::vector<double> norms(static_cast<size_t>(values.end - values.begin));
        kernels::row_norms(values.rows, values.end - values.begin, layer.head_dim, norms.data());
        double* out = scores[static_cast<size_t>(values.head)].data() + (values.begin - n_sink);
        for (size_t i = 0; i < norms.size(); ++i) out[i] = (out[i] + epsilon_) * norms[i];
      });
    }
  }
  const double protect = counted > 0 ? above_all(scores) : 1;
  for (auto& head : scores) head.insert(head.begin(), static_cast<size_t>(n_sink), protect);
  return scores;
}

}  // namespace

extern constinit const Method expected_attention = {
    .name = "expected_attention",
    .paper = "arXiv:2510.00636",
    .summary = "keeps what queries like those of the prompt would attend to at future positions",
    .decides = "entries",
    .options = kOptions,
    .select = make_best_by<ExpectedAttention>,
    .kept = kept_of_each_head,
    .score = make_scorer<ExpectedAttention>};

}  // namespace kvist
