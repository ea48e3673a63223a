// SPDX-License-Identifier: MIT
// The private, growing store of one layer of a question: plain numbers, or codes behind a layer
// that is coded.
#pragma once

#include <variant>

#include "kvist/cache/coded_layer.h"
#include "kvist/cache/dense.h"
#include "kvist/cache/prefix.h"

namespace kvist {

// Writing different tokens from several threads at once is safe; everything else is not.
class SuffixLayer {
 public:
  explicit SuffixLayer(DenseLayer dense) : store_(std::move(dense)) {}
  explicit SuffixLayer(CodedLayer coded) : store_(std::move(coded)) {}

  // Room for n tokens in all, keeping what is stored.
  void reserve(int n_tokens);
  // Exactly n tokens are stored from now on: call before writing the new ones, or to drop the last.
  void resize(int n_tokens);
  int size() const;
  // Token `token` < size: k, v [kv_heads][head_dim] f32; scratch: scratch_floats() of the caller's.
  void write(int token, const float* k, const float* v, float* scratch) noexcept;
  size_t scratch_floats() const;
  // Keys and values written so far that were not finite, where codes leave no room for them.
  int64_t not_finite() const;
  Bytes bytes() const;

  // This store as rows [row, row + n_rows) of a call see it, the first of them at token
  // first_token.
  SuffixRows rows(int row, int n_rows, int first_token) const;

  // The store of a plain layer, moved out; it must be one.
  DenseLayer take_dense() { return std::get<DenseLayer>(std::move(store_)); }

 private:
  std::variant<DenseLayer, CodedLayer> store_;
};

}  // namespace kvist
