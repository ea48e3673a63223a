// SPDX-License-Identifier: MIT
// Coded prefixes: layer by layer from dense ones, what they hold, protected layers, suffixes, and
// their oracle.
#include "kvist/cache/coded_prefix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kvist/cache/suffix.h"
#include "kvist/core/error.h"
#include "kvist/core/rng.h"
#include "kvist/kernels/tree_code.h"

namespace kvist {
namespace {

struct Store {
  KvShape shape{.kv_heads = 2, .heads = 6, .head_dim = 64};
  int n_layers, n_tokens;
  std::vector<DenseLayer> layers;
  std::shared_ptr<const CodedModel> model;
  std::vector<float> k, v;  // [tokens][kv_heads][d], of every layer

  Store(int layers_, int tokens, float odd = 0) : n_layers(layers_), n_tokens(tokens) {
    Rng rng(1);
    const size_t width = 128;
    for (auto* x : {&k, &v}) {
      x->resize(width * static_cast<size_t>(tokens));
      for (float& y : *x) y = to_float(to_f16(static_cast<float>(rng.gaussian())));
    }
    if (odd != 0) k[300] = odd;
    ReadCalibration calibration;
    calibration.source.shape = {n_layers, shape.kv_heads, shape.heads, shape.head_dim};
    for (int l = 0; l < n_layers; ++l) {
      calibration.layers.push_back({.mu_k = std::vector<float>(width, 0.0f),
                                    .sigma_k = std::vector<float>(width, 1.0f),
                                    .mu_v = std::vector<float>(width, 0.0f),
                                    .sigma_v = std::vector<float>(width, 1.0f),
                                    .m2q = {},
                                    .klt = {}});
      layers.emplace_back(shape);
      layers.back().reserve(tokens);
      layers.back().resize(tokens);
      for (int j = 0; j < tokens; ++j)
        layers.back().write(j, &k[width * static_cast<size_t>(j)],
                            &v[width * static_cast<size_t>(j)]);
    }
    model = std::make_shared<CodedModel>(std::move(calibration));
  }
  CodedPrefix prefix(const ReadPlan& plan, int encoded) {
    CodedPrefix made(shape, std::move(layers), n_tokens, model, plan);
    ThreadPool pool(2);
    for (int l = 0; l < encoded; ++l) made.encode(l, pool);
    return made;
  }
};

TEST(CodedPrefix, HoldsWhatItSaysAndNoMore) {
  for (const auto& [width, most] : {std::pair{8, 0.52}, {4, 0.27}}) {
    Store setup(1, 8300);  // 108 tokens are not a page
    const uint64_t dense = setup.layers[0].bytes().payload;
    const CodedPrefix prefix = setup.prefix({.width = width}, 1);
    const Bytes bytes = prefix.bytes();
    EXPECT_EQ(bytes.payload, dense * static_cast<uint64_t>(width) / 16);
    EXPECT_LE(static_cast<double>(bytes.allocated + bytes.shared),
              most * static_cast<double>(dense));
  }
}

TEST(CodedPrefix, ReconstructsToTheCodesDistortion) {
  for (int width : {8, 4, 2}) {
    Store setup(1, 700);
    const CodedPrefix prefix = setup.prefix({.width = width, .sinks = 2}, 1);
    for (int head = 0; head < 2; ++head) {
      std::vector<float> k, v;
      prefix.reconstruct(0, head, &k, &v);
      double error = 0;
      for (int j = 0; j < 700; ++j)
        for (int c = 0; c < 64; ++c) {
          const size_t at = static_cast<size_t>((j * 2 + head) * 64 + c);
          const double e = double{k[static_cast<size_t>(j * 64 + c)]} - double{setup.k[at]};
          if (j < 2)
            EXPECT_NEAR(e, 0, 4e-3);
          else
            error += e * e;
        }
      EXPECT_NEAR(error / (698 * 64) / kernels::tree_distortion(width), 1, 0.1) << width;
      EXPECT_EQ(prefix.kept(0, head).size(), 700u);
    }
  }
}

// One call over the whole prefix and suffix tokens, on two workers.
std::vector<float> attend(const CodedPrefix& prefix, const Store& setup, int layer,
                          const SuffixRows& rows) {
  const size_t width = static_cast<size_t>(setup.shape.heads * setup.shape.head_dim);
  std::vector<float> q(width * static_cast<size_t>(rows.n_rows)), out(q.size());
  Rng rng(5);
  for (float& x : q) x = static_cast<float>(rng.gaussian());
  const AttendCall call{.layer = layer,
                        .q = q.data(),
                        .out = out.data(),
                        .n_rows = rows.n_rows,
                        .logit_scale = 0.125f,
                        .suffixes = {&rows, 1}};
  AttendWorkspace workspace;
  prefix.reserve(workspace, rows.n_rows, 16, 2);
  ThreadPool pool(2);
  pool.run([&](Worker worker) { prefix.attend(call, workspace, worker); });
  return out;
}

TEST(CodedPrefix, ProtectedLayersStayDenseAndSuffixesFollow) {
  Store setup(5, 600);
  const CodedPrefix prefix =
      setup.prefix({.key_rate = {8, 1}, .value_rate = {8, 1}, .protect = 1}, 5);
  std::vector<std::vector<float>> out;
  std::vector<SuffixLayer> suffix = prefix.new_suffix();
  for (int l = 0; l < 5; ++l) {
    EXPECT_EQ(prefix.is_coded(l), l != 0 && l != 4);
    SuffixLayer& layer = suffix[static_cast<size_t>(l)];
    EXPECT_EQ(layer.coded() != nullptr, prefix.is_coded(l));
    layer.reserve(3);
    layer.resize(3);
    for (int j = 0; j < 3; ++j)
      layer.write(j, &setup.k[static_cast<size_t>(j * 128)], &setup.v[1280]);
    out.push_back(attend(prefix, setup, l, layer.rows(0, 3, 0)));
  }
  EXPECT_EQ(out[0], out[4]);
  EXPECT_EQ(out[1], out[2]);
  for (size_t i = 0; i < out[0].size(); ++i)  // eight bits are close to dense
    ASSERT_NEAR(out[0][i], out[1][i], 0.02f);
  EXPECT_NE(out[0], out[1]);
}

TEST(CodedPrefix, RecentTokensAreExact) {
  Store setup(1, 40);
  CodedPrefix dense = Store(1, 40).prefix({}, 0);
  const CodedPrefix coded =
      setup.prefix({.key_rate = {0, 1}, .value_rate = {0, 1}, .sinks = 8, .recent = 35}, 1);
  std::vector<SuffixLayer> a = dense.new_suffix(), b = coded.new_suffix();
  for (auto* s : {&a, &b}) {
    s->front().reserve(1);
    s->front().resize(1);
    s->front().write(0, setup.k.data(), setup.v.data());
  }
  const auto want = attend(dense, setup, 0, a[0].rows(0, 1, 0));
  const auto got = attend(coded, setup, 0, b[0].rows(0, 1, 0));
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-3f);
}

TEST(CodedPrefix, RefusesWhatItCannotCode) {
  Store setup(1, 600, std::numeric_limits<float>::infinity());
  const PlainPrefix plain(setup.shape, std::move(setup.layers), 600);
  ThreadPool pool(2);
  try {
    require_finite(plain, 0, pool);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::corrupt);
    EXPECT_NE(std::string(e.what()).find("layer 0, head "), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("holds inf"), std::string::npos) << e.what();
  }

  Store other(2, 10);
  EXPECT_THROW(CodedPrefix(setup.shape, std::move(other.layers), 10, setup.model, {}), Error);
  Store third(1, 10);
  EXPECT_THROW(CodedPrefix(setup.shape, std::move(third.layers), 10, setup.model,
                           {.width = 4, .key_rate = {5, 1}}),
               Error);
}

}  // namespace
}  // namespace kvist
