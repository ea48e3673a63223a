// SPDX-License-Identifier: MIT
// Coded layers: blocks and single tokens give the same codes, freezing frees, the ledger is what is
// held.
#include "kvist/cache/coded_layer.h"

#include <gtest/gtest.h>

#include "kvist/core/rng.h"

namespace kvist {
namespace {

// A code for any layer of a shape: means and scales that differ between channels.
struct Code {
  explicit Code(const KvShape& shape)
      : key(HeadTransform::hadamard(shape.head_dim, 7, HeadTransform::Kind::key, 0)),
        value(HeadTransform::hadamard(shape.head_dim, 7, HeadTransform::Kind::value, 0)) {
    const size_t n = static_cast<size_t>(shape.kv_heads * shape.head_dim);
    for (size_t i = 0; i < n; ++i) {
      mu.push_back(0.01f * static_cast<float>(i % 7));
      sigma.push_back(0.5f + 0.1f * static_cast<float>(i % 5));
    }
    for (int head = 0; head < shape.kv_heads; ++head) {
      layer.u_k.push_back(&key);
      layer.u_v.push_back(&value);
    }
    layer.mu_k = layer.mu_v = mu.data();
    layer.sigma_k = layer.sigma_v = sigma.data();
  }
  HeadTransform key, value;
  std::vector<float> mu, sigma;
  LayerCode layer;
};

std::vector<float> draw(int n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& number : x) number = static_cast<float>(rng.gaussian());
  return x;
}

// Rows [tokens][kv_heads][head_dim] written one by one.
CodedLayer by_tokens(const KvShape& shape, const Code& code, const ReadPlan& plan, int n,
                     const std::vector<float>& k, const std::vector<float>& v) {
  CodedLayer layer(shape, code.layer, plan);
  layer.reserve(n);
  layer.resize(n);
  const size_t width = static_cast<size_t>(shape.kv_heads * shape.head_dim);
  for (int t = 0; t < n; ++t) {
    const size_t at = static_cast<size_t>(t) * width;
    layer.write(t, &k[at], &v[at]);
  }
  return layer;
}

CodedLayer by_blocks(const KvShape& shape, const Code& code, const ReadPlan& plan, int n,
                     const std::vector<float>& k, const std::vector<float>& v) {
  CodedLayer layer(shape, code.layer, plan);
  layer.reserve(n);
  layer.resize(n);
  std::vector<float> scratch(layer.block_scratch_floats());
  const size_t d = static_cast<size_t>(shape.head_dim);
  for (int head = 0; head < shape.kv_heads; ++head) {
    for (int begin = 0; begin < n; begin += kernels::kBlock) {
      const int count = std::min(kernels::kBlock, n - begin);
      std::vector<float> head_k, head_v;
      for (int t = begin; t < begin + count; ++t) {
        const auto at =
            static_cast<std::ptrdiff_t>(static_cast<size_t>(t * shape.kv_heads + head) * d);
        head_k.insert(head_k.end(), k.begin() + at, k.begin() + at + shape.head_dim);
        head_v.insert(head_v.end(), v.begin() + at, v.begin() + at + shape.head_dim);
      }
      layer.write_block(head, begin, count, head_k.data(), head_v.data(), scratch.data());
    }
  }
  return layer;
}

TEST(CodedLayer, BlocksAndSingleTokensGiveTheSameCodes) {
  for (int head_dim : {64, 80, 128}) {
    const KvShape shape{.kv_heads = 2, .heads = 4, .head_dim = head_dim, .type = Scalar::f16};
    const Code code(shape);
    for (int n : {1, 63, 64, 130, 600}) {
      const int size = n * shape.kv_heads * head_dim;
      const auto k = draw(size, 1), v = draw(size, 2);
      ReadPlan plan;
      plan.width = n % 2 == 0 ? 8 : 4;
      plan.sinks = 3;
      CodedLayer one = by_tokens(shape, code, plan, n, k, v);
      CodedLayer other = by_blocks(shape, code, plan, n, k, v);
      one.freeze();
      other.freeze();
      for (int head = 0; head < shape.kv_heads; ++head) {
        for (int t = 0; t < n; ++t) {
          for (int c = 0; c < head_dim; ++c) {
            ASSERT_EQ(one.key_code(head, t, c), other.key_code(head, t, c)) << n << ' ' << t;
            ASSERT_EQ(one.value_code(head, t, c), other.value_code(head, t, c)) << n << ' ' << t;
          }
        }
        std::vector<float> a, b, c, e;
        one.reconstruct(head, &a, &b);
        other.reconstruct(head, &c, &e);
        ASSERT_EQ(a, c);
        ASSERT_EQ(b, e);
      }
    }
  }
}

TEST(CodedLayer, FrozenItHoldsItsBitsAndLittleElse) {
  const KvShape shape{.kv_heads = 3, .heads = 9, .head_dim = 64, .type = Scalar::f16};
  const Code code(shape);
  constexpr int kTokens = 4096;
  const auto k = draw(kTokens * 192, 1), v = draw(kTokens * 192, 2);
  for (int width : {8, 4}) {
    ReadPlan plan;
    plan.width = width;
    plan.key_rate = plan.value_rate = {2, 1};
    const uint64_t before = buffer_totals().live_bytes;
    CodedLayer layer = by_tokens(shape, code, plan, kTokens, k, v);
    layer.freeze();
    const Bytes bytes = layer.bytes();
    EXPECT_EQ(bytes.allocated, buffer_totals().live_bytes - before);
    EXPECT_EQ(bytes.payload, uint64_t{2} * 192 * kTokens * static_cast<uint64_t>(width) / 8);
    const double dense = static_cast<double>(shape.token_bytes()) * kTokens;
    const double held = static_cast<double>(bytes.allocated + bytes.shared) / dense;
    EXPECT_LE(held, width == 8 ? 0.52 : 0.27);
  }
}

}  // namespace
}  // namespace kvist
