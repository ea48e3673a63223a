// SPDX-License-Identifier: MIT
// Dense growth, ragged gathering bit for bit, and the byte ledger against what the allocator holds.
#include "kvist/cache/ragged.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "kvist/core/rng.h"

namespace kvist {
namespace {

constexpr Scalar kTypes[] = {Scalar::f16, Scalar::bf16, Scalar::f32};

float stored(Scalar type, float x) {
  return type == Scalar::f16    ? to_float(to_f16(x))
         : type == Scalar::bf16 ? to_float(to_bf16(x))
                                : x;
}

// The value of channel c of token t of a head, before rounding: all different.
float key(int t, int head, int c) { return std::sin(static_cast<float>(t * 131 + head * 17 + c)); }
float value(int t, int head, int c) { return std::cos(static_cast<float>(t * 57 + head * 31 + c)); }

void append(DenseLayer* layer, int n) {
  const KvShape& shape = layer->shape();
  std::vector<float> k, v;
  const int begin = layer->size();
  layer->reserve(begin + n);
  layer->resize(begin + n);
  for (int t = begin; t < begin + n; ++t) {
    k.clear();
    v.clear();
    for (int head = 0; head < shape.kv_heads; ++head)
      for (int c = 0; c < shape.head_dim; ++c) {
        k.push_back(key(t, head, c));
        v.push_back(value(t, head, c));
      }
    layer->write(t, k.data(), v.data());
  }
}

void expect_tokens(const kernels::KvRun& run, int head, std::span<const int32_t> positions) {
  ASSERT_EQ(run.n_tokens, static_cast<int>(positions.size()));
  const int d = run.head_dim;
  std::vector<float> k(positions.size() * static_cast<size_t>(d)), v(k.size());
  kernels::load_keys(run, 0, run.n_tokens, k.data());
  kernels::load_values(run, 0, run.n_tokens, v.data());
  for (size_t i = 0; i < positions.size(); ++i)
    for (int c = 0; c < d; ++c) {
      const size_t at = i * static_cast<size_t>(d) + static_cast<size_t>(c);
      ASSERT_EQ(k[at], stored(run.type, key(positions[i], head, c))) << i << " " << c;
      ASSERT_EQ(v[at], stored(run.type, value(positions[i], head, c))) << i << " " << c;
    }
}

std::vector<int32_t> first_tokens(int n) {
  std::vector<int32_t> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

TEST(DenseLayer, KeepsItsTokensWhileItGrows) {
  for (Scalar type : kTypes) {
    const KvShape shape{.kv_heads = 2, .heads = 4, .head_dim = 20, .type = type};
    DenseLayer layer(shape);
    EXPECT_EQ(layer.bytes().allocated, 0u);
    for (int n : {1, 62, 1, 1, 40, 200, 7}) {
      append(&layer, n);
      for (int head = 0; head < 2; ++head)
        expect_tokens(layer.run(head), head, first_tokens(layer.size()));
    }
    const Bytes bytes = layer.bytes();
    EXPECT_EQ(bytes.payload, 312u * shape.token_bytes());
    EXPECT_EQ(bytes.metadata, 0u);
    EXPECT_GE(bytes.allocated, bytes.payload);
  }
}

TEST(DenseLayer, GrowsByHalfInWholeBlocksAndNotWithoutNeed) {
  const KvShape shape{.kv_heads = 1, .heads = 1, .head_dim = 64, .type = Scalar::f16};
  DenseLayer layer(shape);
  int last = 0, growths = 0;
  for (int n = 1; n <= 10000; ++n) {
    layer.reserve(n);
    layer.resize(n);
    const int allocated = static_cast<int>(layer.bytes().allocated);
    if (allocated != last) ++growths;
    last = allocated;
  }
  EXPECT_LE(growths, 14);  // log(10000 / 64) / log(1.5) + 1
}

std::vector<std::vector<int32_t>> draw_kept(const KvShape& shape, int n, uint64_t eighths,
                                            uint64_t seed) {
  Rng rng(seed);
  std::vector<std::vector<int32_t>> kept(static_cast<size_t>(shape.kv_heads));
  for (auto& head : kept)
    for (int32_t t = 0; t < n; ++t)
      if (rng.below(8) < eighths) head.push_back(t);
  return kept;
}

TEST(DenseLayer, KeepsTheBitsOfThoseThatStay) {
  for (Scalar type : kTypes) {
    DenseLayer layer({.kv_heads = 2, .heads = 4, .head_dim = 20, .type = type});
    append(&layer, 200);
    const uint64_t allocated = layer.bytes().allocated;
    std::vector<std::vector<int32_t>> kept(2);
    for (int t = 0; t < 200; ++t) {
      if (t % 3 != 1) kept[0].push_back(t);
      if (t >= 67) kept[1].push_back(t);
    }
    layer.keep(kept);
    for (int head = 0; head < 2; ++head)
      expect_tokens(layer.run(head), head, kept[static_cast<size_t>(head)]);
    EXPECT_EQ(layer.bytes().allocated, allocated);
    append(&layer, 67);  // tokens 133 to 199 come behind
    for (int head = 0; head < 2; ++head) {
      auto& all = kept[static_cast<size_t>(head)];
      for (int t = 133; t < 200; ++t) all.push_back(t);
      expect_tokens(layer.run(head), head, all);
    }
  }
}

TEST(RaggedLayer, HoldsExactlyTheSurvivorsUnchanged) {
  for (Scalar type : kTypes)
    for (int d : {5, 64}) {
      const KvShape shape{.kv_heads = 3, .heads = 3, .head_dim = d, .type = type};
      DenseLayer dense(shape);
      append(&dense, 333);
      for (uint64_t eighths : {0, 1, 4, 8}) {
        auto kept = draw_kept(shape, 333, eighths, 11 + eighths);
        if (eighths == 4) kept[1].clear();
        const RaggedLayer ragged(dense, kept);
        for (int head = 0; head < 3; ++head) {
          const auto& want = kept[static_cast<size_t>(head)];
          expect_tokens(ragged.run(head), head, want);
          const auto positions = ragged.positions(head);
          EXPECT_EQ(std::vector<int32_t>(positions.begin(), positions.end()), want);
        }
      }
    }
}

std::unique_ptr<PlainPrefix> make_prefix(const KvShape& shape, int n_layers, int n) {
  std::vector<DenseLayer> layers;
  for (int i = 0; i < n_layers; ++i) {
    layers.emplace_back(shape);
    append(&layers.back(), n);
  }
  return std::make_unique<PlainPrefix>(shape, std::move(layers), n);
}

TEST(PlainPrefix, LedgerIsWhatTheAllocatorHolds) {
  const KvShape shape{.kv_heads = 3, .heads = 9, .head_dim = 64, .type = Scalar::f16};
  const uint64_t before = buffer_totals().live_bytes;
  auto prefix = make_prefix(shape, 4, 1000);
  EXPECT_EQ(prefix->bytes().allocated, buffer_totals().live_bytes - before);
  EXPECT_EQ(prefix->bytes().payload, 4u * 1000u * shape.token_bytes());
  EXPECT_EQ(prefix->bytes().metadata, 0u);
  const uint64_t dense = buffer_totals().live_bytes;
  reset_buffer_peak();
  uint64_t kept_tokens = 0;
  for (int layer = 0; layer < 4; ++layer) {
    const auto kept = draw_kept(shape, 1000, 2, 5u + static_cast<uint64_t>(layer));
    for (const auto& head : kept) kept_tokens += head.size();
    prefix->select(layer, kept);
    EXPECT_EQ(prefix->dense(layer), nullptr);
    EXPECT_EQ(prefix->bytes().allocated, buffer_totals().live_bytes - before);
  }
  EXPECT_EQ(prefix->bytes().payload, kept_tokens * 2 * 64 * 2);
  EXPECT_EQ(prefix->bytes().metadata,
            kept_tokens * 4 + 4 * 3 * 4);  // positions, and a quota a head
  EXPECT_LT(prefix->bytes().allocated, dense / 2);
  // never more than the dense prefix and one compressed layer
  EXPECT_LT(buffer_totals().peak_bytes - before, (dense - before) * 5 / 4);
  prefix.reset();
  EXPECT_EQ(buffer_totals().live_bytes, before);
}

TEST(PlainPrefix, GathersTheSameOnAnyNumberOfThreads) {
  const KvShape shape{.kv_heads = 3, .heads = 3, .head_dim = 64, .type = Scalar::f16};
  ThreadPool pool(3);
  auto alone = make_prefix(shape, 1, 2500), together = make_prefix(shape, 1, 2500);
  const auto kept = draw_kept(shape, 2500, 2, 9);
  alone->select(0, kept);
  together->select(0, kept, &pool);
  for (int head = 0; head < shape.kv_heads; ++head) {
    std::vector<float> k[2], v[2];
    alone->reconstruct(0, head, &k[0], &v[0]);
    together->reconstruct(0, head, &k[1], &v[1]);
    EXPECT_EQ(k[0], k[1]);
    EXPECT_EQ(v[0], v[1]);
    EXPECT_EQ(together->kept(0, head), kept[static_cast<size_t>(head)]);
  }
}

TEST(PlainPrefix, KeepingEverythingIsTheIdentity) {
  const KvShape shape{.kv_heads = 2, .heads = 6, .head_dim = 64, .type = Scalar::f16};
  for (int n : {1, 64, 129, 777}) {
    auto dense = make_prefix(shape, 1, n), ragged = make_prefix(shape, 1, n);
    ragged->select(0, std::vector<std::vector<int32_t>>(2, first_tokens(n)));
    EXPECT_EQ(ragged->next_position(), n);
    EXPECT_EQ(ragged->longest_head(), n);
    EXPECT_EQ(ragged->kept(0, 1), dense->kept(0, 1));
    std::vector<float> out[2], k[2], v[2];
    int i = 0;
    for (const auto* prefix : {dense.get(), ragged.get()}) {
      prefix->reconstruct(0, 1, &k[i], &v[i]);
      DenseLayer suffix(shape);
      append(&suffix, 3);
      const SuffixRows rows{.store = &suffix, .row = 0, .n_rows = 1, .first_token = 2};
      std::vector<float> q(6 * 64);
      for (size_t c = 0; c < q.size(); ++c) q[c] = std::sin(static_cast<float>(c));
      out[i].resize(q.size());
      AttendWorkspace workspace;
      workspace.reserve(shape, 1, n + 3, 1);
      prefix->attend({.layer = 0,
                      .q = q.data(),
                      .out = out[i].data(),
                      .n_rows = 1,
                      .logit_scale = 0.125f,
                      .suffixes = {&rows, 1}},
                     workspace, {});
      ++i;
    }
    EXPECT_EQ(k[0], k[1]);
    EXPECT_EQ(v[0], v[1]);
    EXPECT_EQ(out[0], out[1]);
  }
}

}  // namespace
}  // namespace kvist
