// SPDX-License-Identifier: MIT
// For tests: a layer of plain arrays, random or written by hand.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "kvist/core/rng.h"
#include "kvist/methods/array_rows.h"
#include "kvist/methods/method.h"
#include "kvist/methods/rope.h"

namespace kvist {

struct TestLayer {
  int n = 0, kv_heads = 1, group = 1, head_dim = 2, rows = 0;
  std::vector<float> k, v;  // [n][kv_heads][head_dim]
  std::vector<float> q;     // [rows][kv_heads * group][head_dim]
  Rope rope;                // over all whole pairs of channels, theta 10000

  TestLayer(int tokens, int n_heads, int group_size, int dim, int query_rows)
      : n(tokens), kv_heads(n_heads), group(group_size), head_dim(dim), rows(query_rows) {
    k.resize(static_cast<size_t>(n * kv_heads * head_dim));
    v.resize(k.size());
    q.resize(static_cast<size_t>(rows * kv_heads * group * head_dim));
  }

  // Gaussian queries and values; keys around a common mean and one of a few directions, so that
  // twins exist.
  static TestLayer random(int n, int kv_heads, int group, int head_dim, int rows, uint64_t seed) {
    TestLayer layer(n, kv_heads, group, head_dim, rows);
    Rng rng(seed);
    std::vector<float> directions(static_cast<size_t>(8 * head_dim));
    const auto draw = [&] { return static_cast<float>(rng.gaussian()); };
    for (float& x : directions) x = draw();
    for (float& x : layer.v) x = draw();
    for (float& x : layer.q) x = draw();
    for (size_t i = 0; i < layer.k.size(); i += static_cast<size_t>(head_dim)) {
      const size_t direction = rng.below(8) * static_cast<size_t>(head_dim);
      for (size_t c = 0; c < static_cast<size_t>(head_dim); ++c) {
        layer.k[i + c] = directions[direction + c] + 0.4f * draw();
      }
    }
    return layer;
  }

  float* key(int position, int head) { return k.data() + (position * kv_heads + head) * head_dim; }
  float* value(int position, int head) {
    return v.data() + (position * kv_heads + head) * head_dim;
  }

  // Shows the layer to `observer` as a session does, in steps of `step` positions. Every position
  // has a query then: rows == n. Repeated tokens have the keys and queries of the first time.
  void show(Observer& observer, ThreadPool& pool, int layer = 0, int step = 40) {
    const Needs needs = observer.needs();
    LayerInput in = input(pool, layer);
    if (needs.every_query) {
      KVIST_ASSERT(rows == n);
      std::vector<float> pre = q;
      for (int t = 0; t < n; ++t) {
        const PairRotation back = PairRotation::at(rope, t).inverse();
        for (int h = 0; h < in.heads; ++h) back.apply(pre.data() + (t * in.heads + h) * head_dim);
      }
      for (int begin = 0; begin < n; begin += step) {
        const int count = std::min(step, n - begin);
        in.n_tokens = begin + count;
        in.q = queries(q, begin, count);
        if (needs.pre_rope) in.q_pre = queries(pre, begin, count);
        observer.observe(in);
      }
      in = input(pool, layer);
    }
    for (int begin = 0; needs.repeat_chunk > 0 && begin < n; begin += needs.repeat_chunk) {
      const int end = std::min(begin + needs.repeat_chunk, n);
      const ArrayRows again(key(begin, 0), kv_heads, head_dim);
      for (int row = begin; row < end; row += step) {
        const int count = std::min(step, end - row);
        observer.observe_repetition(in, {begin, end, row - begin, queries(q, row, count), &again});
      }
    }
  }

  TensorView<const float, 3> queries(const std::vector<float>& from, int begin, int count) const {
    const int64_t width = int64_t{kv_heads} * group * head_dim;
    return {from.data() + begin * width, {count, int64_t{kv_heads} * group, head_dim}};
  }

  // The layer as a selector sees it. It points into this object.
  LayerInput input(ThreadPool& pool, int layer = 0) {
    keys_ = std::make_unique<ArrayRows>(k.data(), kv_heads, head_dim);
    values_ = std::make_unique<ArrayRows>(v.data(), kv_heads, head_dim);
    LayerInput in;
    in.layer = layer;
    in.n_layers = layer + 1;
    in.n_tokens = n;
    in.kv_heads = kv_heads;
    in.heads = kv_heads * group;
    in.head_dim = head_dim;
    in.keys = keys_.get();
    in.values = values_.get();
    in.q = TensorView<const float, 3>(q.data(), {rows, in.heads, head_dim});
    rope.frequencies.clear();
    for (int f = 0; f < head_dim / 2; ++f)
      rope.frequencies.push_back(std::pow(1e4, -2.0 * f / head_dim));
    in.rope = &rope;
    in.logit_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
    in.output_projection = [width = static_cast<size_t>(in.heads * head_dim)] {
      std::vector<float> identity(width * width, 0.0f);
      for (size_t i = 0; i < width; ++i) identity[i * width + i] = 1;
      return identity;
    };
    in.pool = &pool;
    return in;
  }

 private:
  std::unique_ptr<ArrayRows> keys_, values_;
};

}  // namespace kvist
