// SPDX-License-Identifier: MIT
// Writing, sealing and growth of a coded layer, and its decoding as an oracle.
#include "kvist/cache/coded_layer.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kvist/core/error.h"
#include "kvist/kernels/tree_code.h"

namespace kvist {
namespace {

using kernels::kPageTokens;

int blocks(int n_tokens) { return (n_tokens + kernels::kBlock - 1) / kernels::kBlock; }

template <typename T>
void regrow(Buffer<T>* buffer, size_t n) {
  if (buffer->size() == n) return;
  Buffer<T> other(n);
  const size_t kept = std::min(n, buffer->size());
  if (kept > 0) std::memcpy(static_cast<void*>(other.data()), buffer->data(), kept * sizeof(T));
  *buffer = std::move(other);
}

}  // namespace

CodedLayer::CodedLayer(const KvShape& shape, const LayerCode& code, const ReadPlan& plan,
                       int first_token)
    : shape_(shape),
      code_(&code),
      width_(plan.width),
      sinks_(std::max(0, plan.sinks - first_token)),
      recent_(plan.recent),
      dense_from_(plan.recent > 0 ? 0 : std::numeric_limits<int>::max()),
      layout_(kernels::value_layout(shape.head_dim, plan.width)),
      keys_(static_cast<size_t>(shape.kv_heads)),
      open_(static_cast<size_t>(shape.kv_heads)),
      values_(static_cast<size_t>(shape.kv_heads)),
      dense_k_(static_cast<size_t>(shape.kv_heads)),
      dense_v_(static_cast<size_t>(shape.kv_heads)) {
  if (plan.sparq()) value_sums_.assign(static_cast<size_t>(shape.kv_heads * shape.head_dim), 0.0);
}

void CodedLayer::reserve(int n_tokens) {
  seal();
  const int open = (n_tokens - sealed_ + kPageTokens - 1) / kPageTokens * kPageTokens;
  if (blocks(open) > open_blocks_) resize_open(blocks(open));
  if (n_tokens > capacity_) expect(std::max(n_tokens, capacity_ + capacity_ / 2));
}

void CodedLayer::resize_open(int n_blocks) {
  const size_t block = static_cast<size_t>(shape_.head_dim * kernels::kBlock);
  for (auto& buffer : open_) regrow(&buffer, static_cast<size_t>(n_blocks) * block);
  open_blocks_ = n_blocks;
}

void CodedLayer::expect(int capacity) {
  const size_t d = static_cast<size_t>(shape_.head_dim);
  const size_t pages = static_cast<size_t>(capacity / kPageTokens);
  const size_t dense = static_cast<size_t>(dense_from_ < capacity ? sinks_ + capacity - dense_from_
                                                                  : std::min(sinks_, capacity));
  for (size_t head = 0; head < keys_.size(); ++head) {
    regrow(&keys_[head], pages * page_bytes());
    regrow(&values_[head], layout_.bytes(capacity));
    regrow(&dense_k_[head], dense * d);
    regrow(&dense_v_[head], dense * d);
  }
  capacity_ = capacity;
}

void CodedLayer::resize(int n_tokens) {
  KVIST_ASSERT(n_tokens >= sealed_ && n_tokens <= capacity_);
  if (!value_sums_.empty()) sum_values(std::min(n_tokens, n_tokens_));
  n_tokens_ = n_tokens;
}

// All but the tokens that come after `end`.
void CodedLayer::sum_values(int end) {
  if (end < summed_) {
    std::fill(value_sums_.begin(), value_sums_.end(), 0.0);
    summed_ = 0;
  }
  std::vector<float> v(static_cast<size_t>(shape_.head_dim));
  for (; summed_ < end; ++summed_) {
    double* sum = value_sums_.data();
    for (int head = 0; head < shape_.kv_heads; ++head) {
      decode_value(head, summed_, v.data());
      for (const float x : v) *sum++ += double{x};
    }
  }
}

// Full pages of the open tokens become planes, and what is left moves to the front.
void CodedLayer::seal() {
  const int pages = (n_tokens_ - sealed_) / kPageTokens;
  if (pages == 0) return;
  const size_t page = static_cast<size_t>(kPageTokens) * static_cast<size_t>(shape_.head_dim);
  for (size_t head = 0; head < keys_.size(); ++head) {
    uint8_t* open = open_[head].data();
    for (int i = 0; i < pages; ++i)
      kernels::seal_keys(
          open + static_cast<size_t>(i) * page, kPageTokens, shape_.head_dim, width_, nullptr,
          keys_[head].data() + static_cast<size_t>(sealed_ / kPageTokens + i) * page_bytes());
    const size_t done = static_cast<size_t>(pages) * page;
    std::memmove(open, open + done, open_[head].size() - done);
  }
  sealed_ += pages * kPageTokens;
}

int CodedLayer::dense_index(int token) const {
  if (token < sinks_) return token;
  return token >= dense_from_ ? sinks_ + token - dense_from_ : -1;
}

const f16* CodedLayer::dense_row(const std::vector<Buffer<f16>>& rows, int head, int token) const {
  const int index = dense_index(token);
  KVIST_ASSERT(index >= 0);
  return rows[static_cast<size_t>(head)].data() + int64_t{index} * shape_.head_dim;
}

void CodedLayer::store_dense(std::vector<Buffer<f16>>& rows, int head, int token,
                             const float* x) noexcept {
  const int index = dense_index(token);
  if (index < 0) return;
  f16* to = rows[static_cast<size_t>(head)].data() + int64_t{index} * shape_.head_dim;
  for (int c = 0; c < shape_.head_dim; ++c) to[c] = to_f16(x[c]);
}

void CodedLayer::encode(float* x, const HeadTransform& u, const float* mu, const float* sigma,
                        uint8_t* leaf) noexcept {
  u.apply(x, 1);
  if (!kernels::encode_leaves(x, mu, sigma, shape_.head_dim, leaf)) ++not_finite_.value;
}

void CodedLayer::write(int token, const float* k, const float* v) noexcept {
  for (int head = 0; head < shape_.kv_heads; ++head)
    write_head(head, token, k + head * shape_.head_dim, v + head * shape_.head_dim);
}

void CodedLayer::write_head(int head, int token, const float* k, const float* v) noexcept {
  const int d = shape_.head_dim, at = token - sealed_;
  const size_t h = static_cast<size_t>(head);
  alignas(64) float x[HeadTransform::kMaxHeadDim];
  alignas(64) uint8_t leaf[HeadTransform::kMaxHeadDim];
  std::copy_n(k, d, x);
  encode(x, *code_->u_k[h], code_->mu_k + head * d, code_->sigma_k + head * d, leaf);
  store_dense(dense_k_, head, token, x);
  uint8_t* column =
      open_[h].data() + int64_t{at / kernels::kBlock} * d * kernels::kBlock + at % kernels::kBlock;
  for (int c = 0; c < d; ++c) column[c * kernels::kBlock] = leaf[c];
  std::copy_n(v, d, x);
  encode(x, *code_->u_v[h], code_->mu_v + head * d, code_->sigma_v + head * d, leaf);
  store_dense(dense_v_, head, token, x);
  kernels::store_values(layout_, values_[h].data(), token, 1, leaf);
}

void CodedLayer::write_block(int head, int token, int n, const float* k, const float* v,
                             float* scratch) noexcept {
  const int d = shape_.head_dim, at = token - sealed_;
  const int64_t size = int64_t{d} * kernels::kBlock;
  const size_t h = static_cast<size_t>(head);
  float *columns = scratch, *sums = scratch + size;
  auto* leaves = reinterpret_cast<uint8_t*>(scratch + 2 * size);
  auto* rows = leaves + size;
  const auto encode_side = [&](const float* x, const HeadTransform& u, const float* mu,
                               const float* sigma, std::vector<Buffer<f16>>& dense, uint8_t* out) {
    std::fill_n(columns, size, 0.0f);
    kernels::transpose_into_block(x, n, d, columns);
    u.apply_columns(columns, kernels::kBlock, sums);
    for (int t = 0; t < n; ++t) {
      if (dense_index(token + t) < 0) continue;
      for (int c = 0; c < d; ++c) sums[c] = columns[c * kernels::kBlock + t];
      store_dense(dense, head, token + t, sums);
    }
    if (!kernels::encode_columns(columns, mu + head * d, sigma + head * d, d, out))
      ++not_finite_.value;
  };
  uint8_t* open = open_[h].data() + int64_t{at / kernels::kBlock} * size;
  encode_side(k, *code_->u_k[h], code_->mu_k, code_->sigma_k, dense_k_, open);
  encode_side(v, *code_->u_v[h], code_->mu_v, code_->sigma_v, dense_v_, leaves);
  kernels::token_rows(leaves, d, n, rows);
  kernels::store_values(layout_, values_[h].data(), token, n, rows);
}

void CodedLayer::freeze() {
  if (!value_sums_.empty()) sum_values(n_tokens_);
  seal();
  const int from = std::max(sinks_, n_tokens_ - recent_);
  if (dense_from_ < from) {
    const size_t d = static_cast<size_t>(shape_.head_dim);
    const size_t skipped = static_cast<size_t>(from - dense_from_) * d;
    const size_t first = static_cast<size_t>(sinks_) * d;
    const size_t moved = static_cast<size_t>(std::max(0, n_tokens_ - from)) * d;
    for (auto* rows : {&dense_k_, &dense_v_})
      for (auto& buffer : *rows)
        if (moved > 0)
          std::memmove(buffer.data() + first, buffer.data() + first + skipped, moved * sizeof(f16));
    dense_from_ = from;
  }
  expect(n_tokens_);
  resize_open(blocks(n_tokens_ - sealed_));
}

uint8_t CodedLayer::key_code(int head, int token, int channel) const {
  if (token >= sealed_) {
    const int at = token - sealed_;
    const int64_t block = int64_t{at / kernels::kBlock} * shape_.head_dim + channel;
    const uint8_t leaf = open_keys(head)[block * kernels::kBlock + at % kernels::kBlock];
    return static_cast<uint8_t>(leaf >> (8 - width_) << (8 - width_));
  }
  const int j = token % kPageTokens;
  const uint8_t* line = key_page(head, token / kPageTokens) +
                        int64_t{channel} * width_ * kernels::kPlaneBytes + j / 8;
  int leaf = 0;
  for (int s = 0; s < width_; ++s, line += kernels::kPlaneBytes)
    leaf |= (*line >> (j % 8) & 1) << (7 - s);
  return static_cast<uint8_t>(leaf);
}

uint8_t CodedLayer::value_code(int head, int token, int channel) const {
  const uint8_t* run = value_packets(head) + layout_.run(token) + channel / 8;
  int leaf = 0;
  for (int s = 0; s < width_; ++s, run += layout_.plane_bytes())
    leaf |= (*run >> (channel % 8) & 1) << (7 - s);
  return static_cast<uint8_t>(leaf);
}

void CodedLayer::decode_key(int head, int token, float* out) const noexcept {
  const float* mu = code_->mu_k + head * shape_.head_dim;
  const float* sigma = code_->sigma_k + head * shape_.head_dim;
  for (int c = 0; c < shape_.head_dim; ++c)
    out[c] = mu[c] + sigma[c] * kernels::tree_value(key_code(head, token, c), width_);
}

void CodedLayer::decode_value(int head, int token, float* out) const noexcept {
  const float* mu = code_->mu_v + head * shape_.head_dim;
  const float* sigma = code_->sigma_v + head * shape_.head_dim;
  for (int c = 0; c < shape_.head_dim; ++c)
    out[c] = mu[c] + sigma[c] * kernels::tree_value(value_code(head, token, c), width_);
}

void CodedLayer::reconstruct(int head, std::vector<float>* k, std::vector<float>* v) const {
  const int d = shape_.head_dim;
  k->assign(static_cast<size_t>(n_tokens_ * d), 0);
  v->assign(k->size(), 0);
  for (int token = 0; token < n_tokens_; ++token) {
    const bool dense = dense_index(token) >= 0;
    float *to_k = k->data() + int64_t{token} * d, *to_v = v->data() + int64_t{token} * d;
    if (!dense) {
      decode_key(head, token, to_k);
      decode_value(head, token, to_v);
      continue;
    }
    for (int c = 0; c < d; ++c) {
      to_k[c] = to_float(dense_key(head, token)[c]);
      to_v[c] = to_float(dense_value(head, token)[c]);
    }
  }
  code_->u_k[static_cast<size_t>(head)]->undo(k->data(), n_tokens_);
  code_->u_v[static_cast<size_t>(head)]->undo(v->data(), n_tokens_);
}

void CodedLayer::add_to(Digest& digest) const {
  const auto add = [&](const auto& buffers) {
    for (const auto& buffer : buffers) digest.add(buffer);
  };
  add(keys_), add(open_), add(values_), add(dense_k_), add(dense_v_);
  digest.add(std::span<const double>(value_sums_));
}

Bytes CodedLayer::bytes() const {
  Bytes bytes;
  const uint64_t numbers =
      static_cast<uint64_t>(n_tokens_) * static_cast<uint64_t>(shape_.kv_heads * shape_.head_dim);
  const int dense =
      std::min(sinks_, n_tokens_) + (dense_from_ < n_tokens_ ? n_tokens_ - dense_from_ : 0);
  bytes.payload = (2 * numbers * static_cast<uint64_t>(width_) + 7) / 8;
  bytes.metadata = 4 * static_cast<uint64_t>(dense) *
                   static_cast<uint64_t>(shape_.kv_heads * shape_.head_dim);  // f16, k and v
  bytes.metadata += value_sums_.size() * sizeof(double);
  bytes.shared = 8 * static_cast<uint64_t>(shape_.kv_heads * shape_.head_dim);
  const auto add = [&](const auto& buffers) {
    for (const auto& buffer : buffers) bytes.allocated += buffer.allocated_bytes();
  };
  bytes.allocated += value_sums_.size() * sizeof(double);
  add(keys_), add(open_), add(values_), add(dense_k_), add(dense_v_);
  return bytes;
}

}  // namespace kvist
