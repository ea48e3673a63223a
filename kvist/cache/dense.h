// SPDX-License-Identifier: MIT
// A store of one layer that grows token by token: every head holds every token. Prefill writes it;
// questions append to theirs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvist/cache/bytes.h"
#include "kvist/core/buffer.h"
#include "kvist/core/digest.h"
#include "kvist/core/half.h"
#include "kvist/core/thread_pool.h"
#include "kvist/kernels/attend.h"

namespace kvist {

// What all layers of a cache have in common.
struct KvShape {
  int kv_heads = 0;
  int heads = 0;
  int head_dim = 0;
  Scalar type = Scalar::f16;
  int group() const { return heads / kv_heads; }
  uint64_t token_bytes() const {  // K and V of one token of one layer
    return uint64_t{2} * static_cast<uint64_t>(kv_heads * head_dim * size_of(type));
  }
};

// Keys in blocks of 64 tokens, [head_dim][64] each, values [tokens][head_dim]; one buffer a head
// for K, one for V. Appending to different tokens from several threads at once is safe; growing is
// not.
class DenseLayer {
 public:
  DenseLayer() = default;
  explicit DenseLayer(const KvShape& shape)
      : shape_(shape), k_(shape.kv_heads), v_(shape.kv_heads) {}

  // Room for n tokens in all, keeping what is stored. Grows by at least half, in whole blocks.
  void reserve(int n_tokens);
  // Exactly n tokens are stored from now on (n <= capacity): call before writing the new ones.
  void resize(int n_tokens);
  // Token `token` < size: k, v [kv_heads][head_dim] f32.
  void write(int token, const float* k, const float* v) noexcept;

  // Only the tokens kept[head] (ascending, as many in every head) stay, in order, from now on.
  void keep(std::span<const std::vector<int32_t>> kept) noexcept;

  int size() const { return n_tokens_; }
  kernels::KvRun run(int head) const;
  const KvShape& shape() const { return shape_; }
  Bytes bytes() const;
  void add_to(Digest& digest) const;

 private:
  KvShape shape_;
  int n_tokens_ = 0;
  int capacity_ = 0;
  std::vector<Buffer<std::byte>> k_, v_;  // [kv_heads]
};

}  // namespace kvist
