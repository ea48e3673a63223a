// SPDX-License-Identifier: MIT
#include "kvist/methods/rank/anchors.h"

#include <algorithm>
#include <bit>

#include "kvist/core/error.h"
#include "kvist/kernels/nearest.h"
#include "kvist/kernels/ranked.h"
#include "kvist/methods/select/by_score.h"

namespace kvist {
namespace {

constexpr int kChunk = 128;  // rows that a thread reads at a time

}  // namespace

int64_t exact_count(int64_t n_tokens, int64_t stride, int64_t window) {
  if (n_tokens <= window) return n_tokens;
  return window + (n_tokens - window + stride - 1) / stride;
}

AnchorSets anchor_sets(int n_tokens, int stride, int window) {
  AnchorSets sets;
  for (int t = 0; t < n_tokens; ++t) {
    const bool anchor = t % stride == 0;
    if (anchor) sets.anchors.push_back(t);
    (anchor || t >= n_tokens - window ? sets.exact : sets.coded).push_back(t);
  }
  return sets;
}

AnchorSets no_anchors(int n_tokens, int window) {
  AnchorSets sets = anchor_sets(n_tokens, n_tokens, window);
  sets.anchors.clear();
  return sets;
}

Buffer<float> joint_rows(const LayerInput& layer, const RotationTable& rotation,
                         double value_scale) {
  Buffer<float> z;
  joint_rows(layer, rotation, value_scale, &z);
  return z;
}

void joint_rows(const LayerInput& layer, const RotationTable& rotation, double value_scale,
                Buffer<float>* out_rows) {
  const int n = layer.n_tokens, d = layer.head_dim, half = layer.kv_heads * d;
  KVIST_ASSERT(rotation.n_positions() >= n);
  const auto scale = static_cast<float>(value_scale);
  const size_t size = static_cast<size_t>(n) * static_cast<size_t>(half) * 2;
  if (out_rows->size() != size) *out_rows = Buffer<float>(size);
  Buffer<float>& z = *out_rows;
  layer.pool->parallel_for((n + kChunk - 1) / kChunk, [&](int64_t chunk) {
    const int begin = static_cast<int>(chunk) * kChunk, end = std::min(begin + kChunk, n);
    std::vector<float> rows(static_cast<size_t>(end - begin) * static_cast<size_t>(d));
    for (int head = 0; head < layer.kv_heads; ++head) {
      float* out = z.data() + int64_t{begin} * 2 * half + head * d;
      layer.keys->read(head, begin, end, rows.data());
      require_finite_rows(layer, head, begin, rows.data(), std::ssize(rows), "key");
      const float* turns[kChunk];
      for (int t = begin; t < end; ++t) {
        std::copy_n(rows.data() + int64_t{t - begin} * d, d, out + int64_t{t - begin} * 2 * half);
        turns[t - begin] = rotation.row(t);
      }
      kernels::turn_rows(out, 2 * half, end - begin, 1, d, turns,
                         {rotation.n_frequencies(), rotation.adjacent(), true});
      layer.values->read(head, begin, end, rows.data());
      require_finite_rows(layer, head, begin, rows.data(), std::ssize(rows), "value");
      for (int t = begin; t < end; ++t) {
        const float* value = rows.data() + int64_t{t - begin} * d;
        float* to = out + half + int64_t{t - begin} * 2 * half;
        for (int c = 0; c < d; ++c) to[c] = scale * value[c];
      }
    }
  });
}

std::vector<uint16_t> nearest_anchors(const float* z, int width, const AnchorSets& sets, int count,
                                      bool causal, ThreadPool& pool) {
  constexpr size_t kMost = 65536;
  if (sets.anchors.size() > kMost) {
    throw Error(ErrorKind::unsupported, str(sets.anchors.size(), " anchors; at most ", kMost,
                                            " have a 16-bit index: use a wider stride"));
  }
  std::vector<uint16_t> out(sets.coded.size() * static_cast<size_t>(count));
  kernels::nearest_rows(z, width, sets.anchors, sets.coded, count, causal, pool, out.data());
  return out;
}

void anchor_mean(const float* z, int width, const AnchorSets& sets,
                 std::span<const uint16_t> neighbours, float* mean) {
  if (neighbours.empty()) {
    std::fill_n(mean, width, 0.0f);
    return;
  }
  const auto row = [&](size_t i) {
    return z + static_cast<int64_t>(sets.anchors[neighbours[i]]) * width;
  };
  std::copy_n(row(0), width, mean);
  for (size_t i = 1; i < neighbours.size(); ++i) {
    const float* x = row(i);
    for (int c = 0; c < width; ++c) mean[c] += x[c];
  }
  const auto n = static_cast<float>(neighbours.size());
  if (std::has_single_bit(neighbours.size())) {
    for (int c = 0; c < width; ++c) mean[c] *= 1 / n;
  } else {
    for (int c = 0; c < width; ++c) mean[c] /= n;
  }
}

}  // namespace kvist
