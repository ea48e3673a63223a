// SPDX-License-Identifier: MIT
// Gathering survivors into contiguous runs, and the prefix whose layers are dense or ragged.
#include "kvist/cache/ragged.h"

#include <algorithm>
#include <numeric>

#include "kvist/core/error.h"

namespace kvist {
namespace {

constexpr size_t kPart = 16 * kernels::kBlock;  // entries gathered at a time: whole blocks

// Ascending and within [0, n_tokens).
bool in_order(std::span<const int32_t> kept, int n_tokens) {
  for (size_t i = 0; i < kept.size(); ++i)
    if (kept[i] < 0 || kept[i] >= n_tokens || (i > 0 && kept[i] <= kept[i - 1])) return false;
  return true;
}

}  // namespace

RaggedLayer::RaggedLayer(const DenseLayer& dense, std::span<const std::vector<int32_t>> kept,
                         ThreadPool* pool)
    : shape_(dense.shape()), offset_(1, 0) {
  KVIST_ASSERT(static_cast<int>(kept.size()) == shape_.kv_heads);
  for (const auto& head : kept) {
    KVIST_ASSERT(in_order(head, dense.size()));
    offset_.push_back(offset_.back() + static_cast<int32_t>(head.size()));
  }
  const size_t total = static_cast<size_t>(offset_.back());
  const size_t row_bytes = static_cast<size_t>(shape_.head_dim * size_of(shape_.type));
  k_ = Buffer<std::byte>(total * row_bytes);
  v_ = Buffer<std::byte>(total * row_bytes);
  positions_ = Buffer<int32_t>(total);
  struct Part {
    size_t head, begin;
  };
  std::vector<Part> parts;
  for (size_t head = 0; head < kept.size(); ++head) {
    std::copy(kept[head].begin(), kept[head].end(), positions_.data() + offset_[head]);
    for (size_t begin = 0; begin < kept[head].size(); begin += kPart)
      parts.push_back({head, begin});
  }
  const auto gather_part = [&](int64_t i) {
    const Part part = parts[static_cast<size_t>(i)];
    const std::span<const int32_t> rest = std::span(kept[part.head]).subspan(part.begin);
    const size_t at = (static_cast<size_t>(offset_[part.head]) + part.begin) * row_bytes;
    kernels::gather(dense.run(static_cast<int>(part.head)),
                    rest.first(std::min(kPart, rest.size())), k_.data() + at, v_.data() + at);
  };
  const auto n_parts = static_cast<int64_t>(parts.size());
  if (pool != nullptr) {
    pool->parallel_for(n_parts, gather_part);
  } else {
    for (int64_t i = 0; i < n_parts; ++i) gather_part(i);
  }
}

kernels::KvRun RaggedLayer::run(int head) const {
  const size_t h = static_cast<size_t>(head);
  const int n = offset_[h + 1] - offset_[h];
  const int64_t at = static_cast<int64_t>(offset_[h]) * shape_.head_dim * size_of(shape_.type);
  const int rest = n % kernels::kBlock;
  return {.k = k_.data() + at,
          .v = v_.data() + at,
          .type = shape_.type,
          .head_dim = shape_.head_dim,
          .n_tokens = n,
          .last_width = rest == 0 ? kernels::kBlock : rest};
}

std::span<const int32_t> RaggedLayer::positions(int head) const {
  const size_t h = static_cast<size_t>(head);
  return positions_.span().subspan(static_cast<size_t>(offset_[h]),
                                   static_cast<size_t>(offset_[h + 1] - offset_[h]));
}

Bytes RaggedLayer::bytes() const {
  const uint64_t total = positions_.size();
  return {.payload = total * (shape_.token_bytes() / static_cast<uint64_t>(shape_.kv_heads)),
          .metadata = sizeof(int32_t) * (total + static_cast<uint64_t>(shape_.kv_heads)),
          .shared = 0,
          .allocated = k_.allocated_bytes() + v_.allocated_bytes() + positions_.allocated_bytes()};
}

void RaggedLayer::add_to(Digest& digest) const {
  digest.add(k_);
  digest.add(v_);
  digest.add(positions_);
}

PlainPrefix::PlainPrefix(const KvShape& shape, std::vector<DenseLayer> layers, int n_tokens)
    : shape_(shape), n_tokens_(n_tokens), ragged_(layers.size()), runs_(layers.size()) {
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    KVIST_ASSERT(layers[layer].size() == n_tokens);
    dense_.push_back(std::make_shared<const DenseLayer>(std::move(layers[layer])));
    for (int head = 0; head < shape.kv_heads; ++head)
      runs_[layer].push_back(dense_[layer]->run(head));
  }
}

void PlainPrefix::select(int layer, std::span<const std::vector<int32_t>> kept, ThreadPool* pool) {
  const size_t at = static_cast<size_t>(layer);
  KVIST_ASSERT(dense_[at] != nullptr);
  ragged_[at] = std::make_shared<const RaggedLayer>(*dense_[at], kept, pool);
  for (int head = 0; head < shape_.kv_heads; ++head)
    runs_[at][static_cast<size_t>(head)] = ragged_[at]->run(head);
  dense_[at].reset();
}

void PlainPrefix::add_to(Digest& digest) const {
  for (size_t layer = 0; layer < dense_.size(); ++layer) {
    if (dense_[layer] != nullptr) dense_[layer]->add_to(digest);
    if (ragged_[layer] != nullptr) ragged_[layer]->add_to(digest);
  }
}

void PlainPrefix::release(int layer) {
  const size_t at = static_cast<size_t>(layer);
  runs_[at].clear();
  dense_[at].reset();
  ragged_[at].reset();
}

const DenseLayer* PlainPrefix::dense(int layer) const {
  return dense_[static_cast<size_t>(layer)].get();
}

const RaggedLayer* PlainPrefix::ragged(int layer) const {
  return ragged_[static_cast<size_t>(layer)].get();
}

const kernels::KvRun& PlainPrefix::run(int layer, int head) const {
  return runs_[static_cast<size_t>(layer)][static_cast<size_t>(head)];
}

int PlainPrefix::longest_head() const {
  int longest = 0;
  for (const auto& layer : runs_)
    for (const auto& run : layer) longest = std::max(longest, run.n_tokens);
  return longest;
}

Bytes PlainPrefix::bytes(int layer) const {
  const size_t at = static_cast<size_t>(layer);
  return dense_[at] ? dense_[at]->bytes() : ragged_[at]->bytes();
}

void PlainPrefix::attend(const AttendCall& call, AttendWorkspace& workspace,
                         Worker worker) const noexcept {
  attend_runs(runs_[static_cast<size_t>(call.layer)], shape_, call, workspace, worker);
}

std::vector<int32_t> PlainPrefix::kept(int layer, int head) const {
  const size_t at = static_cast<size_t>(layer);
  if (ragged_[at]) {
    const auto positions = ragged_[at]->positions(head);
    return {positions.begin(), positions.end()};
  }
  std::vector<int32_t> all(static_cast<size_t>(n_tokens_));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

void PlainPrefix::reconstruct(int layer, int head, std::vector<float>* k,
                              std::vector<float>* v) const {
  const kernels::KvRun& run = this->run(layer, head);
  const size_t n = static_cast<size_t>(run.n_tokens) * static_cast<size_t>(run.head_dim);
  k->resize(n);
  v->resize(n);
  kernels::load_keys(run, 0, run.n_tokens, k->data());
  kernels::load_values(run, 0, run.n_tokens, v->data());
}

}  // namespace kvist
