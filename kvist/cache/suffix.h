// SPDX-License-Identifier: MIT
// One layer of what a question appends behind a prefix: dense, or coded where the prefix is.
#pragma once

#include <utility>
#include <variant>

#include "kvist/cache/coded_layer.h"
#include "kvist/cache/dense.h"
#include "kvist/cache/prefix.h"

namespace kvist {

// Appending to different tokens from several threads at once is safe; growing is not.
class SuffixLayer {
 public:
  explicit SuffixLayer(DenseLayer layer) : store_(std::move(layer)) {}
  explicit SuffixLayer(CodedLayer layer) : store_(std::move(layer)) {}

  void reserve(int n_tokens) {
    std::visit([=](auto& layer) { layer.reserve(n_tokens); }, store_);
  }
  // See DenseLayer and CodedLayer; tokens written in an earlier step stay.
  void resize(int n_tokens) {
    std::visit([=](auto& layer) { layer.resize(n_tokens); }, store_);
  }
  void write(int token, const float* k, const float* v) noexcept {
    if (auto* dense = std::get_if<DenseLayer>(&store_))
      dense->write(token, k, v);
    else
      std::get_if<CodedLayer>(&store_)->write(token, k, v);
  }
  // Of a dense layer: see DenseLayer.
  void keep(std::span<const std::vector<int32_t>> kept) noexcept {
    std::get<DenseLayer>(store_).keep(kept);
  }
  int size() const {
    return std::visit([](const auto& layer) { return layer.size(); }, store_);
  }
  Bytes bytes() const {
    return std::visit([](const auto& layer) { return layer.bytes(); }, store_);
  }
  // Keys and values written so far that were not finite, where codes leave no room for them.
  int64_t not_finite() const { return coded() != nullptr ? coded()->not_finite() : 0; }
  // The store of a dense layer, moved out; it must be one.
  DenseLayer take_dense() { return std::get<DenseLayer>(std::move(store_)); }
  const DenseLayer& dense() const { return std::get<DenseLayer>(store_); }  // where it is one
  const CodedLayer* coded() const { return std::get_if<CodedLayer>(&store_); }

  // Rows [row, row + n_rows) of a call, at the tokens first_token, ... of this suffix.
  SuffixRows rows(int row, int n_rows, int first_token) const {
    return {.store = std::get_if<DenseLayer>(&store_),
            .row = row,
            .n_rows = n_rows,
            .first_token = first_token,
            .coded = coded()};
  }

 private:
  std::variant<DenseLayer, CodedLayer> store_;
};

}  // namespace kvist
