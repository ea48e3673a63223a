// SPDX-License-Identifier: MIT
// Passes each call on to the store that is there.
#include "kvist/cache/suffix.h"

namespace kvist {

void SuffixLayer::reserve(int n_tokens) {
  std::visit([&](auto& store) { store.reserve(n_tokens); }, store_);
}

void SuffixLayer::resize(int n_tokens) {
  std::visit([&](auto& store) { store.resize(n_tokens); }, store_);
}

int SuffixLayer::size() const {
  return std::visit([](const auto& store) { return store.size(); }, store_);
}

void SuffixLayer::write(int token, const float* k, const float* v, float* scratch) noexcept {
  if (auto* coded = std::get_if<CodedLayer>(&store_)) {
    coded->write(token, k, v, scratch);
  } else {
    std::get_if<DenseLayer>(&store_)->write(token, k, v);
  }
}

size_t SuffixLayer::scratch_floats() const {
  const auto* coded = std::get_if<CodedLayer>(&store_);
  return coded != nullptr ? coded->scratch_floats() : 0;
}

int64_t SuffixLayer::not_finite() const {
  const auto* coded = std::get_if<CodedLayer>(&store_);
  return coded != nullptr ? coded->not_finite() : 0;
}

Bytes SuffixLayer::bytes() const {
  return std::visit([](const auto& store) { return store.bytes(); }, store_);
}

SuffixRows SuffixLayer::rows(int row, int n_rows, int first_token) const {
  return {.store = std::get_if<DenseLayer>(&store_),
          .coded = std::get_if<CodedLayer>(&store_),
          .row = row,
          .n_rows = n_rows,
          .first_token = first_token};
}

}  // namespace kvist
