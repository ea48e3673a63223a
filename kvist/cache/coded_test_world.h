// SPDX-License-Identifier: MIT
// A layer of random numbers, coded and read, for the tests of readers.
#pragma once

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include "kvist/cache/coded_reader.h"
#include "kvist/cache/prefix.h"
#include "kvist/core/rng.h"

namespace kvist {

using kernels::Precision;

struct Row {
  std::vector<float> out;  // [heads][d]
  std::vector<uint8_t> t_k, t_v;
  std::vector<float> a_k, a_v;
};

// A layer's numbers and how they are coded.
struct World {
  KvShape shape;
  std::vector<HeadTransform> u;
  std::vector<float> mu_k, sigma_k, mu_v, sigma_v, k, v, q;
  LayerCode code;
  float scale = 0;
  int n_tokens = 0;

  void finish() {
    code.u_k.assign(static_cast<size_t>(shape.kv_heads), &u.front());
    code.u_v.assign(static_cast<size_t>(shape.kv_heads), &u.back());
    code.mu_k = mu_k.data(), code.sigma_k = sigma_k.data();
    code.mu_v = mu_v.data(), code.sigma_v = sigma_v.data();
    scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  }
  int width() const { return shape.kv_heads * shape.head_dim; }

  CodedLayer coded(const ReadPlan& plan, int begin, int end, bool freeze = false) const {
    CodedLayer layer(shape, code, plan, begin);
    for (int at = begin; at < end;) {  // in steps, so that pages are sealed on the way
      const int to = std::min(end, at + 300);
      layer.reserve(to - begin);
      layer.resize(to - begin);
      for (; at < to; ++at) layer.write(at - begin, &k[row(at)], &v[row(at)]);
    }
    if (freeze) layer.freeze();
    return layer;
  }
  size_t row(int token) const { return static_cast<size_t>(token * width()); }
};

inline std::vector<float> gaussians(size_t n, uint64_t seed, float mean = 0, float sd = 1) {
  Rng rng(seed);
  std::vector<float> out(n);
  for (float& x : out) x = mean + sd * static_cast<float>(rng.gaussian());
  return out;
}

// Channels of different spread, queries long enough for attention to be uneven.
inline World make_world(int kv_heads, int group, int d, int n_tokens, int n_rows, uint64_t seed) {
  World w;
  w.shape = {.kv_heads = kv_heads, .heads = kv_heads * group, .head_dim = d};
  w.u.push_back(HeadTransform::hadamard(d, seed, HeadTransform::Kind::key, 0));
  w.u.push_back(HeadTransform::hadamard(d, seed, HeadTransform::Kind::value, 0));
  const size_t width = static_cast<size_t>(kv_heads * d);
  w.mu_k = gaussians(width, seed + 1, 0, 0.3f), w.mu_v = gaussians(width, seed + 2, 0, 0.3f);
  w.sigma_k = gaussians(width, seed + 3), w.sigma_v = gaussians(width, seed + 4);
  for (auto* sigma : {&w.sigma_k, &w.sigma_v})
    for (float& s : *sigma) s = 0.5f + std::abs(s);
  w.k = gaussians(width * static_cast<size_t>(n_tokens), seed + 5);
  w.v = gaussians(width * static_cast<size_t>(n_tokens), seed + 6);
  w.q = gaussians(width * static_cast<size_t>(group * n_rows), seed + 7, 0, 1.7f);
  w.n_tokens = n_tokens;
  w.finish();
  return w;
}

struct Call {
  const CodedLayer* prefix;
  const CodedLayer* suffix;
  int n_rows = 1;
  Precision precision = Precision::exact;
  int n_workers = 1;
};

// The last n_rows tokens of the suffix ask.
inline std::vector<Row> read(const World& w, const ReadPlan& plan, const Call& how,
                             ReadTrace* trace = nullptr) {
  const size_t width = static_cast<size_t>(w.shape.heads * w.shape.head_dim);
  std::vector<Row> rows(static_cast<size_t>(how.n_rows));
  std::vector<float> out(width * rows.size());
  ReadTrace own;
  if (trace == nullptr) trace = &own;
  trace->observe = [&](const RowSchedule& r) {
    Row& to = rows[static_cast<size_t>(r.row)];
    to.t_k.assign(r.key_depths.begin(), r.key_depths.end());
    to.t_v.assign(r.value_depths.begin(), r.value_depths.end());
    to.a_k.assign(r.key_weights.begin(), r.key_weights.end());
    to.a_v.assign(r.value_weights.begin(), r.value_weights.end());
  };
  const SuffixRows suffix{.row = 0,
                          .n_rows = how.n_rows,
                          .first_token = how.suffix->size() - how.n_rows,
                          .coded = how.suffix};
  const AttendCall call{.q = w.q.data(),
                        .out = out.data(),
                        .n_rows = how.n_rows,
                        .logit_scale = w.scale,
                        .suffixes = {&suffix, 1},
                        .precision = how.precision,
                        .trace = trace};
  ReadWorkspace workspace;
  const int n_prefix = how.prefix == nullptr ? 0 : how.prefix->size();
  workspace.reserve(w.shape, n_prefix + how.suffix->size(), how.n_workers);
  std::vector<std::thread> others;
  const auto work = [&](int i) {
    read_coded(how.prefix, w.shape, w.code, plan, call, workspace, {i, how.n_workers});
  };
  for (int i = 1; i < how.n_workers; ++i) others.emplace_back(work, i);
  work(0);
  for (auto& t : others) t.join();
  for (size_t i = 0; i < rows.size(); ++i)
    rows[i].out.assign(out.begin() + static_cast<std::ptrdiff_t>(i * width),
                       out.begin() + static_cast<std::ptrdiff_t>((i + 1) * width));
  return rows;
}

}  // namespace kvist
