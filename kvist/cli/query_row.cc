// SPDX-License-Identifier: MIT
// Coding a layer in blocks, one call of the reader over it, and the arrays that a certificate
// wants.
#include "kvist/cli/query_row.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "kvist/cache/prefix.h"
#include "kvist/core/error.h"
#include "kvist/kernels/tree_code.h"

namespace kvist {
namespace {

// What a certificate needs of a row, [tokens][kv_heads][head_dim] and transformed.
class Exhibit {
 public:
  Exhibit(const LayerInput& input, const CodedLayer& layer, const ReadPlan& plan, const float* q,
          const RowReading& row)
      : layer_(layer), row_(row), shape_(layer.shape()), logit_scale_(double{input.logit_scale}) {
    const LayerCode& code = layer.code();
    const size_t size = static_cast<size_t>(row.n_tokens * shape_.kv_heads * shape_.head_dim);
    for (auto* array : {&k_, &v_, &k_hat_, &v_hat_}) array->resize(size);
    q_.assign(q, q + shape_.heads * shape_.head_dim);
    for (int head = 0; head < shape_.heads; ++head)
      code.u_k[kv_head(head)]->apply(q_.data() + head * shape_.head_dim, 1);
    for (int g = 0; g < shape_.kv_heads; ++g) {
      fill_exact(*input.keys, *code.u_k[static_cast<size_t>(g)], g, k_);
      fill_exact(*input.values, *code.u_v[static_cast<size_t>(g)], g, v_);
      fill_read(g);
      double scale = 0;
      for (int c = 0; c < shape_.head_dim; ++c) {
        const double sigma = double{code.sigma_v[g * shape_.head_dim + c]};
        scale += sigma * sigma;
      }
      s_.push_back(plan.physical_values ? scale : 1.0);
    }
    for (int head = 0; head < shape_.heads; ++head) attend(head);
    for (uint8_t depth : row.value_depths) t_v_.push_back(std::min<uint8_t>(depth, 8));
  }

  LayerCertificate certificate() const {
    const size_t channels = static_cast<size_t>(shape_.kv_heads * shape_.head_dim);
    return certify({.heads = shape_.heads,
                    .kv_heads = shape_.kv_heads,
                    .head_dim = shape_.head_dim,
                    .tokens = row_.n_tokens,
                    .logit_scale = logit_scale_,
                    .q = q_,
                    .k = k_,
                    .v = v_,
                    .k_hat = k_hat_,
                    .v_hat = v_hat_,
                    .alpha_hat = alpha_,
                    .sigma_k = {layer_.code().sigma_k, channels},
                    .t_k = row_.key_depths,
                    .t_v = t_v_,
                    .s = s_});
  }

 private:
  size_t kv_head(int head) const { return static_cast<size_t>(head / shape_.group()); }
  size_t at(int token, int g) const {
    return static_cast<size_t>((token * shape_.kv_heads + g) * shape_.head_dim);
  }

  void fill_exact(const HeadRows& rows, const HeadTransform& u, int g, std::vector<float>& out) {
    const int d = shape_.head_dim;
    std::vector<float> head(static_cast<size_t>(row_.n_tokens * d));
    rows.read(g, 0, row_.n_tokens, head.data());
    u.apply(head.data(), row_.n_tokens);
    for (int t = 0; t < row_.n_tokens; ++t)
      std::copy_n(head.data() + t * d, d, out.data() + at(t, g));
  }

  void fill_read(int g) {
    const int d = shape_.head_dim;
    const LayerCode& code = layer_.code();
    for (int t = 0; t < row_.n_tokens; ++t) {
      const uint8_t depth = row_.value_depths[static_cast<size_t>(g * row_.n_tokens + t)];
      for (int c = 0; c < d; ++c) {
        const size_t i = at(t, g) + static_cast<size_t>(c);
        const int p = g * d + c;
        if (depth == kExactDepth) {
          k_hat_[i] = to_float(layer_.dense_key(g, t)[c]);
          v_hat_[i] = to_float(layer_.dense_value(g, t)[c]);
          continue;
        }
        const int key_depth = row_.key_depths[static_cast<size_t>(p)];
        k_hat_[i] = code.mu_k[p] +
                    code.sigma_k[p] * kernels::tree_value(layer_.key_code(g, t, c), key_depth);
        v_hat_[i] =
            code.mu_v[p] + code.sigma_v[p] * kernels::tree_value(layer_.value_code(g, t, c), depth);
      }
    }
  }

  // The attention that the keys as read give, in double.
  void attend(int head) {
    const int d = shape_.head_dim;
    std::vector<double> z;
    for (int t = 0; t < row_.n_tokens; ++t) {
      const float* key = k_hat_.data() + at(t, static_cast<int>(kv_head(head)));
      double sum = 0;
      for (int c = 0; c < d; ++c)
        sum += double{q_[static_cast<size_t>(head * d + c)]} * double{key[c]};
      z.push_back(logit_scale_ * sum);
    }
    const double top = *std::max_element(z.begin(), z.end());
    double total = 0;
    for (double& x : z) total += x = std::exp(x - top);
    for (double x : z) alpha_.push_back(x / total);
  }

  const CodedLayer& layer_;
  const RowReading& row_;
  const KvShape shape_;
  double logit_scale_;
  std::vector<float> q_, k_, v_, k_hat_, v_hat_;
  std::vector<double> alpha_, s_;
  std::vector<uint8_t> t_v_;
};

}  // namespace

CodedLayer code_layer(const LayerInput& input, int heads, const LayerCode& code,
                      const ReadPlan& plan) {
  const int n = input.n_tokens, blocks = (n + kernels::kBlock - 1) / kernels::kBlock;
  const KvShape shape{.kv_heads = input.kv_heads, .heads = heads, .head_dim = input.head_dim};
  CodedLayer layer(shape, code, plan);
  layer.expect(n);
  layer.reserve(n);
  layer.resize(n);
  const size_t size = static_cast<size_t>(input.head_dim * kernels::kBlock);
  input.pool->parallel_for(int64_t{blocks} * input.kv_heads, [&](int64_t job) {
    Buffer<float> k(size), v(size), scratch(layer.block_scratch_floats());
    const int head = static_cast<int>(job / blocks);
    const int begin = static_cast<int>(job % blocks) * kernels::kBlock;
    const int end = std::min(n, begin + kernels::kBlock);
    input.keys->read(head, begin, end, k.data());
    input.values->read(head, begin, end, v.data());
    layer.write_block(head, begin, end - begin, k.data(), v.data(), scratch.data());
  });
  if (layer.not_finite() > 0) {
    throw Error(ErrorKind::corrupt, str("layer ", input.layer,
                                        ": a key or value is not finite, or too large to be "
                                        "transformed; only finite numbers can be coded"));
  }
  layer.reserve(n);  // seals whole pages
  return layer;
}

RowReading read_row(const CodedLayer& layer, const ReadPlan& plan, const float* q, int n_tokens,
                    float logit_scale, ReadWorkspace& workspace) {
  KVIST_ASSERT(n_tokens >= 1 && n_tokens <= layer.size());
  const KvShape& shape = layer.shape();
  RowReading row;
  row.n_tokens = n_tokens;
  row.out.resize(static_cast<size_t>(shape.heads * shape.head_dim));
  row.value_depths.assign(static_cast<size_t>(shape.kv_heads * n_tokens), kExactDepth);
  row.trace.observe = [&](const RowSchedule& seen) {
    row.key_depths.assign(seen.key_depths.begin(), seen.key_depths.end());
    for (int g = 0; g < shape.kv_heads; ++g) {
      const RowHead& head = seen.heads[static_cast<size_t>(g)];
      std::copy_n(seen.value_depths.begin() + head.item, head.n_values,
                  row.value_depths.begin() + g * n_tokens + head.first_value);
    }
  };
  const SuffixRows rows{.row = 0, .n_rows = 1, .first_token = n_tokens - 1, .coded = &layer};
  const AttendCall call{.q = q,
                        .out = row.out.data(),
                        .n_rows = 1,
                        .logit_scale = logit_scale,
                        .suffixes = {&rows, 1},
                        .precision = kernels::Precision::exact,
                        .trace = &row.trace};
  workspace.reserve(shape, n_tokens, 1);
  read_coded(nullptr, shape, layer.code(), plan, call, workspace, {0, 1});
  row.trace.observe = nullptr;
  return row;
}

LayerCertificate certify_row(const LayerInput& input, const CodedLayer& layer, const ReadPlan& plan,
                             const float* q, const RowReading& row) {
  return Exhibit(input, layer, plan, q, row).certificate();
}

}  // namespace kvist
