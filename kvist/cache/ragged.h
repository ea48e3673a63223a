// SPDX-License-Identifier: MIT
// The prefix as plain numbers: per head its own length, contiguous, without padding or mask,
// survivors bit for bit.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kvist/cache/prefix.h"

namespace kvist {

// One layer. K and V of all heads in two buffers; head h begins at offset[h] * head_dim numbers and
// holds b[h] tokens: keys in blocks of 64 ([head_dim][64], the last one exactly as wide as what is
// left), values [b][head_dim].
class RaggedLayer {
 public:
  RaggedLayer() = default;
  // Gathers kept[h] (ascending positions) of `dense`, on the threads of `pool` where there is one.
  RaggedLayer(const DenseLayer& dense, std::span<const std::vector<int32_t>> kept,
              ThreadPool* pool = nullptr);

  kernels::KvRun run(int head) const;
  std::span<const int32_t> positions(int head) const;
  Bytes bytes() const;
  void add_to(Digest& digest) const;

 private:
  KvShape shape_;
  std::vector<int32_t> offset_;  // [kv_heads + 1] in tokens
  Buffer<std::byte> k_, v_;
  Buffer<int32_t> positions_;  // [sum b]
};

// A whole prefix in which a layer is either ragged or still as prefill left it (every token, in
// order), or released to a prefix of another form.
class PlainPrefix final : public PrefixCache {
 public:
  // Takes the layers; all hold n_tokens tokens.
  PlainPrefix(const KvShape& shape, std::vector<DenseLayer> layers, int n_tokens);
  // A copy shares the layers, which are immutable: what one selects or releases, the other keeps.
  PlainPrefix(const PlainPrefix&) = default;
  PlainPrefix& operator=(const PlainPrefix&) = delete;
  // Replaces layer `layer` by the kept entries and frees its dense form, unless a copy has it.
  void select(int layer, std::span<const std::vector<int32_t>> kept, ThreadPool* pool = nullptr);
  const DenseLayer* dense(int layer) const;    // null once selected or released
  const RaggedLayer* ragged(int layer) const;  // null until selected, and once released
  const kernels::KvRun& run(int layer, int head) const;
  // Frees a layer, unless a copy has it; it is not read through this prefix any more.
  void release(int layer);

  const KvShape& shape() const override { return shape_; }
  int n_layers() const override { return static_cast<int>(runs_.size()); }
  int next_position() const override { return n_tokens_; }
  int longest_head() const override;
  Bytes bytes(int layer) const override;
  using PrefixCache::bytes;
  void attend(const AttendCall& call, AttendWorkspace& workspace,
              Worker worker) const noexcept override;
  void add_to(Digest& digest) const override;
  std::vector<int32_t> kept(int layer, int head) const override;
  void reconstruct(int layer, int head, std::vector<float>* k,
                   std::vector<float>* v) const override;

 private:
  KvShape shape_;
  int n_tokens_;
  std::vector<std::shared_ptr<const DenseLayer>> dense_;    // [layers], null where ragged
  std::vector<std::shared_ptr<const RaggedLayer>> ragged_;  // [layers], null where dense
  std::vector<std::vector<kernels::KvRun>> runs_;  // [layers][kv_heads], empty once released
};

}  // namespace kvist
