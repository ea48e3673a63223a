// SPDX-License-Identifier: MIT
// Reading, checking and cutting, as the baselines share them.
#include "kvist/methods/select/by_score.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kvist/core/error.h"
#include "kvist/kernels/window.h"
#include "kvist/methods/select/budget.h"
#include "kvist/methods/select/topk.h"

namespace kvist {
namespace {

constexpr int kChunk = 256;  // rows that a thread reads at a time

[[noreturn]] void refuse(const LayerInput& layer, const char* head_kind, int64_t head,
                         int64_t position, const char* what, double found) {
  throw Error(ErrorKind::corrupt,
              str("layer ", layer.layer, ", ", head_kind, " ", head, ", position ", position,
                  ": the ", what, " holds ", found, "; expected finite numbers"));
}

}  // namespace

Selection keep_everything(const LayerInput& layer) {
  std::vector<int32_t> all(static_cast<size_t>(layer.n_tokens));
  std::iota(all.begin(), all.end(), 0);
  Selection selection;
  selection.kept.assign(static_cast<size_t>(layer.kv_heads), all);
  return selection;
}

void require_finite_rows(const LayerInput& layer, int head, int begin, const float* rows, int64_t n,
                         const char* what) {
  int64_t where = 0;
  if (!kernels::find_nonfinite(rows, n, &where)) return;
  refuse(layer, "head", head, begin + where / layer.head_dim, what,
         static_cast<double>(rows[where]));
}

Buffer<float> read_head(const LayerInput& layer, const HeadRows& from, int head, const char* what) {
  const int n = layer.n_tokens, d = layer.head_dim;
  Buffer<float> rows(static_cast<size_t>(n) * static_cast<size_t>(d));
  layer.pool->parallel_for((n + kChunk - 1) / kChunk, [&](int64_t chunk) {
    const int begin = static_cast<int>(chunk) * kChunk;
    from.read(head, begin, std::min(begin + kChunk, n), rows.data() + int64_t{begin} * d);
  });
  require_finite_rows(layer, head, 0, rows.data(), int64_t{n} * d, what);
  return rows;
}

void for_each_chunk(const LayerInput& layer, const HeadRows& from, const char* what, int first,
                    const std::function<void(const HeadChunk&)>& body) {
  const int d = layer.head_dim;
  const int64_t chunks = (layer.n_tokens - first + kChunk - 1) / kChunk;
  layer.pool->parallel_for(layer.kv_heads * chunks, [&](int64_t item) {
    const auto head = static_cast<int>(item / chunks);
    const int begin = first + static_cast<int>(item % chunks) * kChunk;
    const int end = std::min(begin + kChunk, layer.n_tokens);
    std::vector<float> rows(static_cast<size_t>(kChunk) * static_cast<size_t>(d));
    from.read(head, begin, end, rows.data());
    require_finite_rows(layer, head, begin, rows.data(), int64_t{end - begin} * d, what);
    body({head, begin, end, rows.data()});
  });
}

TensorView<const float, 3> group_rows(const LayerInput& layer, TensorView<const float, 3> q,
                                      int head, int window) {
  const int group = layer.heads / layer.kv_heads;
  const float* data = q.data() + (q.dim(0) - window) * q.stride(0) + head * group * q.stride(1);
  return {data, {window, group, layer.head_dim}, {q.stride(0), q.stride(1), q.stride(2)}};
}

TensorView<const float, 3> rows_of(TensorView<const float, 3> q, int begin, int end) {
  return {q.data() + begin * q.stride(0),
          {end - begin, q.dim(1), q.dim(2)},
          {q.stride(0), q.stride(1), q.stride(2)}};
}

void require_finite_queries(const LayerInput& layer, TensorView<const float, 3> q, int64_t first) {
  for (int64_t t = 0; t < q.dim(0); ++t) {
    for (int64_t h = 0; h < q.dim(1); ++h) {
      int64_t where = 0;
      if (!kernels::find_nonfinite(&q(t, h, 0), q.dim(2), &where)) continue;
      refuse(layer, "query head", h, first + t, "query", static_cast<double>(q(t, h, where)));
    }
  }
}

void require_numbers(const LayerInput& layer, const Scores& scores) {
  for (size_t head = 0; head < scores.size(); ++head) {
    for (size_t i = 0; i < scores[head].size(); ++i) {
      if (!std::isnan(scores[head][i])) continue;
      refuse(layer, "head", static_cast<int64_t>(head), static_cast<int64_t>(i), "score",
             scores[head][i]);
    }
  }
}

Selection keep_best(const LayerInput& layer, Scores scores, int n_kept, bool explain) {
  require_numbers(layer, scores);
  Selection selection;
  selection.kept.resize(scores.size());
  layer.pool->parallel_for(static_cast<int64_t>(scores.size()), [&](int64_t head) {
    const auto h = static_cast<size_t>(head);
    selection.kept[h] = top_positions({scores[h], {}, 0}, n_kept);
  });
  if (explain) selection.scores = std::move(scores);
  return selection;
}

double above_all(const Scores& scores) {
  double most = -std::numeric_limits<double>::infinity();
  for (const auto& head : scores) {
    for (double score : head) most = std::max(most, score);
  }
  return most + 1;
}

void pin_tail(const LayerInput& layer, Scores* scores) {
  if (layer.pinned == 0) return;
  const double top = above_all(*scores);
  for (auto& head : *scores) {
    for (int i = 0; i < layer.pinned; ++i)
      head[head.size() - 1 - static_cast<size_t>(i)] = top + layer.pinned - i;
  }
}

int64_t kept_of_each_head(const Options& options, const PromptShape& shape) {
  return int64_t{shape.n_layers} * shape.kv_heads *
         reference_kept_tokens(shape.n_tokens, options.removed());
}

Selection BestByScore::select(const LayerInput& layer, bool explain) {
  if (removed().num == 0) return keep_everything(layer);
  const auto n_kept = static_cast<int>(reference_kept_tokens(layer.n_tokens, removed()));
  if (n_kept >= layer.n_tokens) return keep_everything(layer);
  return keep_best(layer, scores(layer, n_kept), n_kept, explain);
}

}  // namespace kvist
