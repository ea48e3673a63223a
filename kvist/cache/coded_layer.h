// SPDX-License-Identifier: MIT
// One layer whose keys and values are codes in bit planes, growing token by token: the store of a
// prefix and of a question's suffix under ReadKV (arXiv:2610.11245).
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "kvist/cache/bytes.h"
#include "kvist/cache/dense.h"
#include "kvist/core/buffer.h"
#include "kvist/core/half.h"
#include "kvist/kernels/plane_keys.h"
#include "kvist/kernels/plane_values.h"
#include "kvist/methods/read/plan.h"
#include "kvist/methods/read/transform.h"

namespace kvist {

// How a layer's numbers are coded: x' = U x, z = (x' - mu) / sigma. Views into a calibration, which
// outlives every layer that uses it.
struct LayerCode {
  std::vector<const HeadTransform*> u_k = {};  // [kv_heads]
  std::vector<const HeadTransform*> u_v = {};  // [kv_heads]
  const float* mu_k = nullptr;                 // [kv_heads][head_dim], the values of 16-bit numbers
  const float* sigma_k = nullptr;
  const float* mu_v = nullptr;
  const float* sigma_v = nullptr;
  const float* m2q = nullptr;  // [heads][head_dim] mean of q'^2, or null
};

// Key pages of 512 tokens for all tokens that fill one; the newer ones in open blocks, one byte a
// number; values in packets. Beside them, in 16 bits and already transformed, the tokens that a
// plan keeps exact: the first `sinks`, and all from dense_from() on where it keeps recent ones.
//
// Writing different tokens from several threads at once is safe; everything else is not.
class CodedLayer {
 public:
  CodedLayer() = default;
  // `code` outlives the layer. plan: width, and whether sinks and recent tokens are kept.
  // `first_token`: how many tokens lie before this layer's first, so that a suffix has no sinks of
  // its own behind a prefix that is long enough.
  CodedLayer(const KvShape& shape, const LayerCode& code, const ReadPlan& plan,
             int first_token = 0);

  // Room for n tokens in all, keeping what is stored, and open blocks for those that are not sealed
  // yet. Tokens written before are sealed where they fill a page. Throws Error(exhausted).
  void reserve(int n_tokens);
  // Room for the sealed form of n tokens: a caller that knows how many will come says so once.
  void expect(int n_tokens);
  // Exactly n tokens are stored from now on (n <= capacity, n >= sealed_tokens()): call before
  // writing the new ones.
  void resize(int n_tokens);
  // Token `token` < size, written once: k, v [kv_heads][head_dim] f32 as attention has them. A head
  // with a number that is not finite is counted; its codes mean nothing.
  void write(int token, const float* k, const float* v) noexcept;
  // Tokens [token, token + n) of one head at once, n <= 64 and `token` a multiple of 64: the codes
  // that write() gives. k, v [n][head_dim]; scratch: block_scratch_floats(). Different blocks and
  // heads from several threads at once are safe.
  void write_block(int head, int token, int n, const float* k, const float* v,
                   float* scratch) noexcept;
  size_t block_scratch_floats() const {
    return static_cast<size_t>(shape_.head_dim * kernels::kBlock) * 5 / 2;
  }

  // Seals what fills pages and gives back all room for growth; dense rows but the first `sinks` and
  // the last `recent` go.
  void freeze();

  const KvShape& shape() const { return shape_; }
  const LayerCode& code() const { return *code_; }
  int width() const { return width_; }
  int size() const { return n_tokens_; }
  int sealed_tokens() const { return sealed_; }
  int64_t not_finite() const { return not_finite_.value; }

  const uint8_t* key_page(int head, int page) const {
    return keys_[static_cast<size_t>(head)].data() + static_cast<size_t>(page) * page_bytes();
  }
  // Open blocks from token sealed_tokens() on, [block][head_dim][64].
  const uint8_t* open_keys(int head) const { return open_[static_cast<size_t>(head)].data(); }
  const kernels::ValueLayout& value_layout() const { return layout_; }
  const uint8_t* value_packets(int head) const { return values_[static_cast<size_t>(head)].data(); }

  int sinks() const { return sinks_; }  // tokens [0, sinks) have dense rows
  int dense_from() const {
    return dense_from_;
  }  // so have those from here on; size() or more: none
  const f16* dense_key(int head, int token) const { return dense_row(dense_k_, head, token); }
  const f16* dense_value(int head, int token) const { return dense_row(dense_v_, head, token); }

  // Sum of the first summed_tokens() decoded values of a head, [head_dim], for SparQ's mean; those
  // from there on were written since the last resize(). Only where the plan is sparq.
  const double* value_sum(int head) const {
    return value_sums_.data() + int64_t{head} * shape_.head_dim;
  }
  int summed_tokens() const { return summed_; }
  // Stored numbers of a token at full depth, in the transform's space: [head_dim].
  void decode_key(int head, int token, float* out) const noexcept;
  void decode_value(int head, int token, float* out) const noexcept;

  // All keys and values of a head, read to full depth or dense, and transformed back: [size][d].
  void reconstruct(int head, std::vector<float>* k, std::vector<float>* v) const;
  // The stored code of one number: leaf >> (8 - width), shifted back.
  uint8_t key_code(int head, int token, int channel) const;
  uint8_t value_code(int head, int token, int channel) const;

  Bytes bytes() const;
  void add_to(Digest& digest) const;

 private:
  struct Count {
    std::atomic<int64_t> value{0};
    Count() = default;
    Count(Count&& other) noexcept : value(other.value.load()) {}
    Count& operator=(Count&& other) noexcept {
      value = other.value.load();
      return *this;
    }
  };

  void write_head(int head, int token, const float* k, const float* v) noexcept;
  size_t page_bytes() const { return kernels::key_page_bytes(shape_.head_dim, width_); }
  void encode(float* x, const HeadTransform& u, const float* mu, const float* sigma,
              uint8_t* leaf) noexcept;
  void store_dense(std::vector<Buffer<f16>>& rows, int head, int token, const float* x) noexcept;
  const f16* dense_row(const std::vector<Buffer<f16>>& rows, int head, int token) const;
  int dense_index(int token) const;  // -1: the token has no dense row
  void seal();
  void sum_values(int end);
  void resize_open(int n_blocks);

  KvShape shape_;
  const LayerCode* code_ = nullptr;
  int width_ = 8;
  int sinks_ = 0;
  int recent_ = 0;
  int dense_from_ = 0;
  int n_tokens_ = 0;
  int sealed_ = 0;
  int capacity_ = 0;     // tokens, but for the open blocks
  int open_blocks_ = 0;  // room
  Count not_finite_;
  int summed_ = 0;
  std::vector<double> value_sums_;  // [kv_heads][head_dim], or none
  kernels::ValueLayout layout_;
  std::vector<Buffer<uint8_t>> keys_;           // [kv_heads] of [pages][head_dim][width][64]
  std::vector<Buffer<uint8_t>> open_;           // [kv_heads] of [blocks][head_dim][64]
  std::vector<Buffer<uint8_t>> values_;         // [kv_heads] of packets
  std::vector<Buffer<f16>> dense_k_, dense_v_;  // [kv_heads] of [dense rows][head_dim]
};

}  // namespace kvist
