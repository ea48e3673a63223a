// SPDX-License-Identifier: MIT
// A prefix whose layers are codes in bit planes, read by ReadKV's two stages (arXiv:2610.11245).
#pragma once

#include <memory>
#include <vector>

#include "kvist/cache/coded_layer.h"
#include "kvist/cache/coded_reader.h"
#include "kvist/cache/prefix.h"
#include "kvist/cache/ragged.h"
#include "kvist/methods/read/calibration.h"
#include "kvist/methods/read/plan.h"

namespace kvist {

// A model's calibration with the transforms it stands for: what all prefixes and suffixes of the
// model share. Immutable.
class CodedModel {
 public:
  explicit CodedModel(ReadCalibration calibration);
  CodedModel(const CodedModel&) = delete;
  CodedModel& operator=(const CodedModel&) = delete;

  const ReadCalibration& calibration() const { return calibration_; }
  const LayerCode& layer(int layer) const { return layers_[static_cast<size_t>(layer)]; }
  // One KV head of a layer, as a code of its own.
  const LayerCode& head(int layer, int head) const {
    return heads_[static_cast<size_t>(layer * calibration_.source.shape.kv_heads + head)];
  }

 private:
  ReadCalibration calibration_;
  std::vector<HeadTransform> transforms_;
  std::vector<LayerCode> layers_;
  std::vector<LayerCode> heads_;  // [layers][kv_heads]
};

// Throws Error(invalid_argument) where the plan is not possible, or not with this calibration, or
// that is of another shape.
void check_fits(const KvShape& shape, int n_layers, const CodedModel& model, const ReadPlan& plan);
// Throws Error(corrupt) naming layer, head, position and value of the first key or value of a layer
// that is not finite. The position is that of the document, wherever a selector has moved it.
void require_finite(const PlainPrefix& plain, int layer, ThreadPool& pool);

// Layers are plain until they are encoded: dense as prefill left them, or ragged as a selector did.
// Those that the plan protects stay so, and are attended exactly, with dense suffixes. A ragged
// layer becomes one coded layer a head, each of its own length, survivors in order; sinks and
// recent tokens of the plan are the first and last of those.
class CodedPrefix final : public PrefixCache {
 public:
  // Throws like check_fits().
  CodedPrefix(std::unique_ptr<PlainPrefix> plain, std::shared_ptr<const CodedModel> model,
              const ReadPlan& plan);
  // The same over dense layers of n_tokens tokens each.
  CodedPrefix(const KvShape& shape, std::vector<DenseLayer> layers, int n_tokens,
              std::shared_ptr<const CodedModel> model, const ReadPlan& plan);

  // Codes layer `layer` and frees its plain form; does nothing to a protected one. Its numbers are
  // finite (require_finite).
  void encode(int layer, ThreadPool& pool);
  bool is_coded(int layer) const { return !coded(layer).empty(); }
  // None where it is not coded, one of all heads, or behind a selector one of each head.
  std::span<const CodedLayer> coded(int layer) const {
    return layers_[static_cast<size_t>(layer)].coded;
  }
  const ReadPlan& plan() const { return plan_; }

  const KvShape& shape() const override { return plain_->shape(); }
  int n_layers() const override { return plain_->n_layers(); }
  int next_position() const override { return plain_->next_position(); }
  int longest_head() const override;
  Bytes bytes(int layer) const override;
  using PrefixCache::bytes;
  void reserve(AttendWorkspace& workspace, int n_rows, int n_tokens, int n_workers) const override;
  std::vector<SuffixLayer> new_suffix() const override;
  void attend(const AttendCall& call, AttendWorkspace& workspace,
              Worker worker) const noexcept override;
  void add_to(Digest& digest) const override;
  std::vector<int32_t> kept(int layer, int head) const override;
  // At full depth, transformed back.
  void reconstruct(int layer, int head, std::vector<float>* k,
                   std::vector<float>* v) const override;

 private:
  struct Layer {
    std::vector<CodedLayer> coded;
    std::vector<Buffer<int32_t>> positions;  // [kv_heads], where a selector chose them
  };
  Layer make_layer(int layer) const;

  std::unique_ptr<PlainPrefix> plain_;  // the layers that are not coded
  std::shared_ptr<const CodedModel> model_;
  ReadPlan plan_;
  std::vector<ReadPlan> plans_;  // [layers]
  std::vector<Layer> layers_;
};

}  // namespace kvist
