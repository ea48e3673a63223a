// SPDX-License-Identifier: MIT
// Cooperative attention over prefix and suffixes against double precision, and the same bytes for
// any number of workers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kvist/cache/ragged.h"
#include "kvist/core/error.h"
#include "kvist/core/rng.h"

namespace kvist {
namespace {

std::vector<float> gaussians(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> out(n);
  for (float& x : out) x = static_cast<float>(rng.gaussian());
  return out;
}

DenseLayer make_layer(const KvShape& shape, int n, uint64_t seed) {
  DenseLayer layer(shape);
  layer.reserve(n);
  layer.resize(n);
  const size_t width = static_cast<size_t>(shape.kv_heads * shape.head_dim);
  const auto k = gaussians(width * static_cast<size_t>(n), seed);
  const auto v = gaussians(width * static_cast<size_t>(n), seed + 1);
  for (int t = 0; t < n; ++t)
    layer.write(t, k.data() + static_cast<size_t>(t) * width,
                v.data() + static_cast<size_t>(t) * width);
  return layer;
}

// Ascending positions, each kept with probability keep / 8.
std::vector<std::vector<int32_t>> draw_kept(const KvShape& shape, int n, uint64_t keep,
                                            uint64_t seed) {
  Rng rng(seed);
  std::vector<std::vector<int32_t>> kept(static_cast<size_t>(shape.kv_heads));
  for (auto& head : kept)
    for (int32_t t = 0; t < n; ++t)
      if (rng.below(8) < keep) head.push_back(t);
  return kept;
}

// One call over layer 0 of a prefix, and the numbers it reads, in rows.
struct Case {
  KvShape shape;
  std::unique_ptr<PlainPrefix> prefix;
  std::vector<DenseLayer> stores;
  std::vector<SuffixRows> suffixes;
  int n_rows = 0;
  std::vector<float> q;

  void add_sequence(int first_token, int n) {
    suffixes.push_back({.row = n_rows, .n_rows = n, .first_token = first_token});
    n_rows += n;
  }
  void fill(uint64_t seed) {
    for (auto& s : suffixes)
      stores.push_back(make_layer(shape, s.first_token + s.n_rows, seed += 2));
    for (size_t i = 0; i < suffixes.size(); ++i) suffixes[i].store = &stores[i];
    q = gaussians(static_cast<size_t>(n_rows * shape.heads * shape.head_dim), seed + 7);
  }
  int longest() const {
    int suffix = 0;
    for (const auto& s : suffixes) suffix = std::max(suffix, s.first_token + s.n_rows);
    return prefix->longest_head() + suffix;
  }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape.head_dim)); }
};

std::vector<float> attend(const Case& c, int n_workers, kernels::Precision precision,
                          int n_calls = 1) {
  AttendWorkspace workspace;
  workspace.reserve(c.shape, c.n_rows, c.longest(), n_workers);
  ThreadPool pool(n_workers);
  std::vector<float> out;
  for (int i = 0; i < n_calls; ++i) {
    out.assign(c.q.size(), -1.0f);
    const AttendCall call{.layer = 0,
                          .q = c.q.data(),
                          .out = out.data(),
                          .n_rows = c.n_rows,
                          .logit_scale = c.scale(),
                          .suffixes = c.suffixes,
                          .precision = precision};
    pool.run([&](Worker worker) { c.prefix->attend(call, workspace, worker); });
  }
  return out;
}

// What row `row` of query head `head` should be: softmax over the head's prefix and its own suffix.
std::vector<double> reference(const Case& c, int row, int head) {
  const int d = c.shape.head_dim, kv_head = head / c.shape.group();
  std::vector<float> k, v;
  c.prefix->reconstruct(0, kv_head, &k, &v);
  for (const auto& s : c.suffixes) {
    if (row < s.row || row >= s.row + s.n_rows) continue;
    const int n = s.first_token + row - s.row + 1;
    std::vector<float> more(static_cast<size_t>(n * d));
    kernels::load_keys(s.store->run(kv_head), 0, n, more.data());
    k.insert(k.end(), more.begin(), more.end());
    kernels::load_values(s.store->run(kv_head), 0, n, more.data());
    v.insert(v.end(), more.begin(), more.end());
  }
  const float* q = &c.q[static_cast<size_t>((row * c.shape.heads + head) * d)];
  std::vector<double> logits, out(static_cast<size_t>(d));
  double top = -1e300, l = 0;
  for (size_t at = 0; at < k.size(); at += static_cast<size_t>(d)) {
    double x = 0;
    for (int i = 0; i < d; ++i)
      x += double{q[i] * c.scale()} * double{k[at + static_cast<size_t>(i)]};
    logits.push_back(x);
    top = std::max(top, x);
  }
  for (size_t t = 0; t < logits.size(); ++t) {
    const double p = std::exp(logits[t] - top);
    l += p;
    for (int i = 0; i < d; ++i)
      out[static_cast<size_t>(i)] +=
          p * double{v[t * static_cast<size_t>(d) + static_cast<size_t>(i)]};
  }
  for (double& x : out) x /= l;
  return out;
}

// K, V ~ N(0, 1) and logits of size ~ sqrt(d) / sqrt(d): fp32 sums stay within 2e-5 of |v| <= 6;
// bf16 products within 2^-7 of it by the bound in attend_test.cc, and in the mean much closer.
void expect_close(const Case& c, const std::string& where) {
  for (auto precision : {kernels::Precision::exact, kernels::Precision::fast}) {
    const auto out = attend(c, 2, precision);
    const double allowed = precision == kernels::Precision::exact ? 2e-5 : 0.05;
    const int step = std::max(1, c.n_rows / 40);
    for (int row = 0; row < c.n_rows; row += step)
      for (int head = 0; head < c.shape.heads; ++head) {
        const auto want = reference(c, row, head);
        for (int i = 0; i < c.shape.head_dim; ++i)
          ASSERT_NEAR(
              double{out[static_cast<size_t>((row * c.shape.heads + head) * c.shape.head_dim + i)]},
              want[static_cast<size_t>(i)], allowed)
              << where << " row " << row << " head " << head << " channel " << i;
      }
  }
}

std::vector<Case> make_cases() {
  std::vector<Case> cases;
  uint64_t seed = 100;
  const auto add = [&](KvShape shape, int n_prefix, uint64_t keep,
                       const std::vector<std::pair<int, int>>& sequences) {
    Case c{.shape = shape, .prefix = nullptr, .stores = {}, .suffixes = {}, .n_rows = 0, .q = {}};
    seed += 50;
    std::vector<DenseLayer> layers;
    layers.push_back(make_layer(shape, n_prefix, seed));
    c.prefix = std::make_unique<PlainPrefix>(shape, std::move(layers), n_prefix);
    if (keep < 8) {
      auto kept = draw_kept(shape, n_prefix, keep, seed + 3);
      if (keep == 2) kept[0].clear();
      c.prefix->select(0, kept);
    }
    for (const auto& [first, n] : sequences) c.add_sequence(first, n);
    c.fill(seed + 5);
    cases.push_back(std::move(c));
  };
  const KvShape small{.kv_heads = 3, .heads = 9, .head_dim = 64, .type = Scalar::f16};
  const KvShape odd{.kv_heads = 2, .heads = 2, .head_dim = 5, .type = Scalar::f32};
  const KvShape seven{.kv_heads = 1, .heads = 7, .head_dim = 80, .type = Scalar::bf16};
  add(small, 0, 8, {{0, 1}});
  add(small, 1300, 8, {{0, 1}});
  add(small, 1300, 4, {{17, 1}});
  add(small, 1300, 2, {{600, 1}});  // an empty head, a suffix of two parts
  add(small, 700, 4, {{3, 1}, {0, 1}, {40, 1}, {9, 1}, {1, 1}});  // many rows, one prefix
  add(small, 1100, 2, {{0, 30}, {5, 1}, {530, 2}});
  add(small, 0, 8, {{0, 130}});    // prefill, tiles cut into parts
  add(small, 0, 8, {{0, 400}});    // prefill, whole tiles
  add(small, 0, 8, {{700, 330}});  // a later chunk
  add(small, 600, 4, {{0, 200}, {100, 150}});
  add(odd, 577, 3, {{0, 3}, {70, 1}});
  add(odd, 0, 8, {{1000, 250}});
  add(seven, 530, 5, {{63, 2}});
  add(seven, 64, 8, {{0, 100}});
  return cases;
}

TEST(AttendRuns, IsDenseAttentionOverTheReconstruction) {
  const auto cases = make_cases();
  for (size_t i = 0; i < cases.size(); ++i) expect_close(cases[i], str("case ", i));
}

TEST(AttendRuns, GivesTheSameBytesForAnyNumberOfWorkersAndCall) {
  const auto cases = make_cases();
  for (size_t i = 0; i < cases.size(); ++i)
    for (auto precision : {kernels::Precision::exact, kernels::Precision::fast}) {
      const auto one = attend(cases[i], 1, precision);
      for (int workers : {2, 5})
        ASSERT_EQ(one, attend(cases[i], workers, precision, 4)) << "case " << i << " " << workers;
    }
}

TEST(AttendRuns, ASequenceIsTheSameAloneAndBesideAnother) {
  const KvShape shape{.kv_heads = 2, .heads = 4, .head_dim = 64, .type = Scalar::f16};
  std::vector<DenseLayer> layers;
  layers.push_back(make_layer(shape, 900, 1));
  Case both{.shape = shape, .prefix = nullptr, .stores = {}, .suffixes = {}, .n_rows = 0, .q = {}};
  both.prefix = std::make_unique<PlainPrefix>(shape, std::move(layers), 900);
  both.prefix->select(0, draw_kept(shape, 900, 4, 2));
  both.add_sequence(10, 1);
  both.add_sequence(3, 1);
  both.fill(3);
  const auto together = attend(both, 2, kernels::Precision::fast);
  both.suffixes.pop_back();
  both.n_rows = 1;
  const size_t row = static_cast<size_t>(shape.heads * shape.head_dim);
  both.q.resize(row);
  const auto alone = attend(both, 2, kernels::Precision::fast);
  EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin()));
}

}  // namespace
}  // namespace kvist
