// SPDX-License-Identifier: MIT
// A prefix whose layers are codes in bit planes, read by ReadKV's two stages (arXiv:2610.11245).
#pragma once

#include <memory>
#include <vector>

#include "kvist/cache/coded_layer.h"
#include "kvist/cache/coded_reader.h"
#include "kvist/cache/prefix.h"
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

 private:
  ReadCalibration calibration_;
  std::vector<HeadTransform> transforms_;
  std::vector<LayerCode> layers_;
};

// Throws Error(invalid_argument) where the plan is not possible, or not with this calibration, or
// that is of another shape.
void check_fits(const KvShape& shape, int n_layers, const CodedModel& model, const ReadPlan& plan);
// Throws Error(corrupt) naming layer, head, position and value of the first key or value that is
// not finite.
void require_finite(const DenseLayer& dense, int layer, ThreadPool& pool);

// Layers are dense, as prefill left them, until they are encoded; those that the plan protects stay
// so, and are attended exactly, with dense suffixes.
class CodedPrefix final : public PrefixCache {
 public:
  // Takes the layers; all hold n_tokens tokens. Throws like check_fits().
  CodedPrefix(const KvShape& shape, std::vector<DenseLayer> layers, int n_tokens,
              std::shared_ptr<const CodedModel> model, const ReadPlan& plan);

  // Codes layer `layer` and frees its dense form; does nothing to a protected one. Its numbers are
  // finite (require_finite).
  void encode(int layer, ThreadPool& pool);
  bool is_coded(int layer) const { return coded_[static_cast<size_t>(layer)] != nullptr; }
  const CodedLayer* coded(int layer) const { return coded_[static_cast<size_t>(layer)].get(); }
  const ReadPlan& plan() const { return plan_; }

  const KvShape& shape() const override { return shape_; }
  int n_layers() const override { return static_cast<int>(coded_.size()); }
  int next_position() const override { return n_tokens_; }
  int longest_head() const override { return n_tokens_; }
  Bytes bytes(int layer) const override;
  using PrefixCache::bytes;
  void reserve(AttendWorkspace& workspace, int n_rows, int n_tokens, int n_workers) const override;
  std::vector<SuffixLayer> new_suffix() const override;
  void attend(const AttendCall& call, AttendWorkspace& workspace,
              Worker worker) const noexcept override;
  std::vector<int32_t> kept(int layer, int head) const override;
  // At full depth, transformed back.
  void reconstruct(int layer, int head, std::vector<float>* k,
                   std::vector<float>* v) const override;

 private:
  KvShape shape_;
  int n_tokens_;
  std::shared_ptr<const CodedModel> model_;
  ReadPlan plan_;
  std::vector<std::unique_ptr<DenseLayer>> dense_;  // [layers], null where coded
  std::vector<std::unique_ptr<CodedLayer>> coded_;  // [layers], null where dense
  std::vector<std::vector<kernels::KvRun>> runs_;   // [layers][kv_heads], empty where coded
};

}  // namespace kvist
