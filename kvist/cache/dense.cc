// SPDX-License-Identifier: MIT
// Growth and writing of a layer that holds every token.
#include "kvist/cache/dense.h"

#include <algorithm>
#include <cstring>

#include "kvist/core/error.h"

namespace kvist {
namespace {

size_t run_bytes(const KvShape& shape, int n_tokens) {
  return static_cast<size_t>(n_tokens) * static_cast<size_t>(shape.head_dim) *
         static_cast<size_t>(size_of(shape.type));
}

void grow(Buffer<std::byte>* buffer, size_t kept_bytes, size_t new_bytes) {
  Buffer<std::byte> larger(new_bytes);
  if (kept_bytes > 0) std::memcpy(larger.data(), buffer->data(), kept_bytes);
  *buffer = std::move(larger);
}

}  // namespace

void DenseLayer::reserve(int n_tokens) {
  if (n_tokens <= capacity_) return;
  const int wanted = std::max(n_tokens, capacity_ + capacity_ / 2);
  const int capacity = (wanted + kernels::kBlock - 1) / kernels::kBlock * kernels::kBlock;
  // Whole blocks, so that the bytes of the last, partly filled one come along.
  const int stored = (n_tokens_ + kernels::kBlock - 1) / kernels::kBlock * kernels::kBlock;
  for (size_t head = 0; head < k_.size(); ++head) {
    grow(&k_[head], run_bytes(shape_, stored), run_bytes(shape_, capacity));
    grow(&v_[head], run_bytes(shape_, n_tokens_), run_bytes(shape_, capacity));
  }
  capacity_ = capacity;
}

void DenseLayer::resize(int n_tokens) {
  KVIST_ASSERT(n_tokens >= 0 && n_tokens <= capacity_);
  n_tokens_ = n_tokens;
}

void DenseLayer::write(int token, const float* k, const float* v) noexcept {
  const int d = shape_.head_dim;
  for (size_t head = 0; head < k_.size(); ++head, k += d, v += d)
    kernels::store_token(k_[head].data(), v_[head].data(), shape_.type, d, token, k, v);
}

void DenseLayer::keep(std::span<const std::vector<int32_t>> kept) noexcept {
  KVIST_ASSERT(kept.size() == k_.size());
  for (size_t head = 0; head < kept.size(); ++head) {
    KVIST_ASSERT(kept[head].size() == kept[0].size());
    kernels::keep_tokens(k_[head].data(), v_[head].data(), shape_.type, shape_.head_dim,
                         kept[head]);
  }
  n_tokens_ = static_cast<int>(kept[0].size());
}

kernels::KvRun DenseLayer::run(int head) const {
  const size_t h = static_cast<size_t>(head);
  return {.k = k_[h].data(),
          .v = v_[h].data(),
          .type = shape_.type,
          .head_dim = shape_.head_dim,
          .n_tokens = n_tokens_,
          .last_width = kernels::kBlock};
}

Bytes DenseLayer::bytes() const {
  Bytes bytes;
  bytes.payload = static_cast<uint64_t>(n_tokens_) * shape_.token_bytes();
  for (const auto& buffer : k_) bytes.allocated += buffer.allocated_bytes();
  for (const auto& buffer : v_) bytes.allocated += buffer.allocated_bytes();
  return bytes;
}

void DenseLayer::add_to(Digest& digest) const {
  for (const auto& buffer : k_) digest.add(buffer);
  for (const auto& buffer : v_) digest.add(buffer);
}

}  // namespace kvist
