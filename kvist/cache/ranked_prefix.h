// SPDX-License-Identifier: MIT
// A prefix in which every token is kept, coded to a rank of its own (VarRate, arXiv:2607.15498).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kvist/cache/prefix.h"
#include "kvist/cache/ranked_keys.h"
#include "kvist/methods/method.h"
#include "kvist/methods/rank/basis.h"
#include "kvist/methods/rank/coefficients.h"

namespace kvist {

// A model's basis with what follows from it: what all prefixes of the model share. Immutable.
class RankedModel {
 public:
  explicit RankedModel(RankBasis basis);
  const RankBasis& basis() const { return basis_; }
  const RankBasisLayer& layer(int layer) const { return basis_.layers[static_cast<size_t>(layer)]; }
  // Null where the reader has no use for them.
  const std::byte* key_tiles(int layer) const { return tiles_[static_cast<size_t>(layer)].data(); }
  uint64_t bytes(int layer) const;  // of one layer, with what is made from it
  const float* sigma(int layer) const { return sigmas_[static_cast<size_t>(layer)].data(); }
  std::span<const float> sigmas(int layer) const { return sigmas_[static_cast<size_t>(layer)]; }

 private:
  RankBasis basis_;
  std::vector<std::vector<float>> sigmas_;
  std::vector<Buffer<std::byte>> tiles_;
};

// Throws Error(invalid_argument) naming both sides where a basis is of another shape.
void check_fits(const KvShape& shape, int n_layers, const RankedModel& model);

class RankedPrefix final : public PrefixCache {
 public:
  struct Storage {
    CoefficientFormat format = {};
    bool skip = false;  // keeps bounds of keys, and leaves out what they show to weigh nothing
    std::optional<Ratio> read = {};  // of tree codes: bits of a coefficient on average, or all
    static Storage of(const RankPlan& plan) {
      return {.format = format_of(plan), .skip = plan.skip, .read = plan.read};
    }
  };
  // Of no layers yet: encode() makes them, in order. Throws like check_fits().
  RankedPrefix(const KvShape& shape, int n_tokens, std::shared_ptr<const RankedModel> model,
               const Rope& rope, const Storage& storage);

  // The next layer, from its code and plain runs [kv_heads], which are not needed afterwards.
  // Throws Error(corrupt) naming layer and token of what cannot be stored (require_codable).
  void encode(const RankedCode& code, std::span<const kernels::KvRun> runs, ThreadPool& pool);
  // Keeps keys of coded tokens as attention reads them, up to `most_bytes`, first layers first; in
  // place of what was expanded before. Not while calls are running. Throws Error(unsupported) where
  // every query reads keys of its own.
  void expand(uint64_t most_bytes, ThreadPool& pool);
  uint64_t expanded_bytes() const override;

  const RotationTable& rotations() const { return rotations_; }
  const RankedModel& model() const { return *model_; }
  const RankedLayer& layer(int layer) const { return layers_[static_cast<size_t>(layer)].coded; }
  RankedView view(int layer) const;

  const KvShape& shape() const override { return shape_; }
  int n_layers() const override { return static_cast<int>(layers_.size()); }
  int next_position() const override { return n_tokens_; }
  int longest_head() const override { return n_tokens_; }
  // Shared: the layer's basis, and with the first layer the rotations.
  Bytes bytes(int layer) const override;
  using PrefixCache::bytes;
  void reserve(AttendWorkspace& workspace, int n_rows, int n_tokens, int n_workers) const override;
  void attend(const AttendCall& call, AttendWorkspace& workspace,
              Worker worker) const noexcept override;
  void add_to(Digest& digest) const override;
  std::vector<int32_t> kept(int layer, int head) const override;
  void reconstruct(int layer, int head, std::vector<float>* k,
                   std::vector<float>* v) const override;

 private:
  struct Layer {
    RankedLayer coded;
    ExpandedKeys expanded = {};
  };

  KvShape shape_;
  int n_tokens_;
  std::shared_ptr<const RankedModel> model_;
  RotationTable rotations_;
  Storage storage_;
  std::shared_ptr<const RankedTokens> tokens_;  // of the last layer
  std::vector<Layer> layers_;
  RankedSizes sizes_;
};

}  // namespace kvist
