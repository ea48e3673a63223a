// SPDX-License-Identifier: MIT
// Ranked prefixes through the contract of all prefixes: several layers, suffixes, the ledger, and
// keys expanded under a cap.
#include "kvist/cache/ranked_prefix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kvist/cache/ranked_test_layer.h"
#include "kvist/cache/suffix.h"
#include "kvist/core/error.h"

namespace kvist {
namespace {

using testing::RankedCase;
using testing::RankedTestLayer;

struct Stack {
  std::vector<RankedTestLayer> layers;
  Rope rope;
  std::shared_ptr<const RankedModel> model;
  ThreadPool pool{2};

  Stack(const RankedCase& of, int n_layers) {
    RankBasis basis;
    basis.source.shape = {n_layers, of.kv_heads, of.heads, of.head_dim};
    basis.value_scale = of.value_scale;
    for (int i = 0; i < n_layers; ++i) {
      RankedCase layer = of;
      layer.seed = static_cast<uint64_t>(i + 1);
      layers.emplace_back(layer);
      basis.layers.push_back(layers.back().basis);
    }
    for (int f = 0; f < of.head_dim / 2; ++f)
      rope.frequencies.push_back(std::pow(1e4, -2.0 * f / of.head_dim));
    model = std::make_shared<RankedModel>(std::move(basis));
  }
  RankedPrefix prefix(const RankedPrefix::Storage& storage) {
    RankedPrefix made(layers[0].shape, layers[0].code.n_tokens, model, rope, storage);
    for (RankedTestLayer& layer : layers) made.encode(layer.code, layer.runs, pool);
    return made;
  }
};

std::vector<float> attend(const RankedPrefix& prefix, int layer, SuffixLayer& suffix, int rows,
                          ThreadPool& pool) {
  const KvShape& shape = prefix.shape();
  Rng rng(5);
  std::vector<float> q(static_cast<size_t>(rows * shape.heads * shape.head_dim)), out(q.size());
  for (float& x : q) x = static_cast<float>(rng.gaussian());
  suffix.reserve(rows);
  suffix.resize(rows);
  for (int t = 0; t < rows; ++t) suffix.write(t, &q[static_cast<size_t>(t)], &q[1]);
  const SuffixRows view = suffix.rows(0, rows, 0);
  const AttendCall call{.layer = layer,
                        .q = q.data(),
                        .out = out.data(),
                        .n_rows = rows,
                        .logit_scale = 0.25f,
                        .suffixes = {&view, 1},
                        .precision = kernels::Precision::exact};
  AttendWorkspace workspace;
  prefix.reserve(workspace, rows, rows, pool.n_threads());
  pool.run([&](Worker worker) { prefix.attend(call, workspace, worker); });
  return out;
}

// The same over plain layers that hold what reconstruct() gives.
std::vector<float> attend_dense(const RankedPrefix& prefix, int layer, SuffixLayer& suffix,
                                int rows, ThreadPool& pool) {
  KvShape shape = prefix.shape();
  shape.type = Scalar::f32;
  const int n = prefix.next_position(), d = shape.head_dim;
  std::vector<DenseLayer> layers(static_cast<size_t>(prefix.n_layers()));
  DenseLayer& dense = layers[static_cast<size_t>(layer)];
  dense = DenseLayer(shape);
  dense.reserve(n);
  dense.resize(n);
  std::vector<std::vector<float>> k(static_cast<size_t>(shape.kv_heads)), v(k.size());
  for (size_t h = 0; h < k.size(); ++h)
    prefix.reconstruct(layer, static_cast<int>(h), &k[h], &v[h]);
  for (int t = 0; t < n; ++t) {
    std::vector<float> key, value;
    for (size_t h = 0; h < k.size(); ++h) {
      key.insert(key.end(), k[h].begin() + t * d, k[h].begin() + (t + 1) * d);
      value.insert(value.end(), v[h].begin() + t * d, v[h].begin() + (t + 1) * d);
    }
    dense.write(t, key.data(), value.data());
  }
  std::vector<kernels::KvRun> runs;
  for (int h = 0; h < shape.kv_heads; ++h) runs.push_back(dense.run(h));
  Rng rng(5);
  std::vector<float> q(static_cast<size_t>(rows * shape.heads * d)), out(q.size());
  for (float& x : q) x = static_cast<float>(rng.gaussian());
  const SuffixRows view = suffix.rows(0, rows, 0);
  const AttendCall call{.layer = layer,
                        .q = q.data(),
                        .out = out.data(),
                        .n_rows = rows,
                        .logit_scale = 0.25f,
                        .suffixes = {&view, 1},
                        .precision = kernels::Precision::exact};
  AttendWorkspace workspace;
  workspace.reserve(shape, rows, n + rows, pool.n_threads());
  pool.run([&](Worker worker) { attend_runs(runs, shape, call, workspace, worker); });
  return out;
}

TEST(RankedPrefix, AttendsAsItsReconstructionDoes) {
  for (const int n_tokens : {40, 500}) {
    Stack setup({.n_tokens = n_tokens}, 3);
    const RankedPrefix prefix = setup.prefix({});
    ASSERT_EQ(prefix.n_layers(), 3);
    EXPECT_EQ(prefix.next_position(), n_tokens);
    EXPECT_EQ(prefix.kept(1, 0).size(), static_cast<size_t>(n_tokens));
    std::vector<SuffixLayer> suffix = prefix.new_suffix();
    for (int layer = 0; layer < 3; ++layer) {
      SuffixLayer& own = suffix[static_cast<size_t>(layer)];
      const auto got = attend(prefix, layer, own, 4, setup.pool);
      const auto want = attend_dense(prefix, layer, own, 4, setup.pool);
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-4f) << layer;
    }
  }
}

// Sixty-four tokens or fewer are all exact.
TEST(RankedPrefix, ShortPrefixesKeepTheirBits) {
  Stack setup({.n_tokens = 60}, 1);
  const RankedPrefix prefix = setup.prefix({});
  std::vector<float> k, v, want(60 * 16);
  prefix.reconstruct(0, 1, &k, &v);
  kernels::load_keys(setup.layers[0].runs[1], 0, 60, want.data());
  EXPECT_EQ(k, want);
  kernels::load_values(setup.layers[0].runs[1], 0, 60, want.data());
  EXPECT_EQ(v, want);
}

TEST(RankedPrefix, LedgerCountsSharedThingsOnce) {
  Stack setup({.n_tokens = 500}, 3);
  const RankedPrefix prefix = setup.prefix({});
  const Bytes all = prefix.bytes();
  uint64_t stored = 0;
  for (int layer = 0; layer < 3; ++layer) stored += prefix.layer(layer).bytes().stored();
  EXPECT_EQ(all.stored(), stored + prefix.layer(0).tokens().bytes().stored());
  uint64_t shared = 500 * 8 * 2 * sizeof(float);  // rotations
  for (int layer = 0; layer < 3; ++layer) shared += setup.model->bytes(layer);
  EXPECT_EQ(all.shared, shared);
  EXPECT_GE(setup.model->bytes(0), (64 * 64 + 64) * sizeof(float));
  EXPECT_EQ(prefix.expanded_bytes(), 0u);
}

TEST(RankedPrefix, ExpandsWithinItsCap) {
  Stack setup({.n_tokens = 1000}, 2);
  RankedPrefix prefix = setup.prefix({.skip = true});
  std::vector<SuffixLayer> suffix = prefix.new_suffix();
  const auto want = attend(prefix, 1, suffix[1], 2, setup.pool);
  const uint64_t block = ExpandedKeys::block_bytes(prefix.shape());
  const uint64_t layer = block * static_cast<uint64_t>(prefix.layer(0).n_blocks());
  for (const uint64_t cap : {layer + 3 * block + 1, uint64_t{0}, uint64_t{1} << 40}) {
    prefix.expand(cap, setup.pool);
    const uint64_t most = std::min(cap, 2 * layer);
    EXPECT_LE(prefix.view(0).expanded == nullptr ? 0 : prefix.view(0).expanded->k.size(), most);
    EXPECT_EQ(prefix.view(1).expanded == nullptr ? 0 : prefix.view(1).expanded->n_blocks,
              cap == 0          ? 0
              : cap < 2 * layer ? 3
                                : prefix.layer(1).n_blocks());
    const auto got = attend(prefix, 1, suffix[1], 2, setup.pool);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-3f);
  }
}

TEST(RankedPrefix, RefusesOtherShapesAndWhatIsNotFinite) {
  Stack setup({.n_tokens = 500}, 2);
  KvShape other = setup.layers[0].shape;
  other.head_dim = 8;
  EXPECT_THROW(RankedPrefix(other, 500, setup.model, setup.rope, {}), Error);
  setup.layers[1].code.coefficients[7] = std::numeric_limits<float>::quiet_NaN();
  try {
    setup.prefix({});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("layer 1, token "), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace kvist
