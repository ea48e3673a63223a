// SPDX-License-Identifier: MIT
// A prefix under ReadKV (arXiv:2610.11245): layers in bit planes, read as deep as each query needs;
// the protected ones stay plain.
#pragma once

#include <memory>
#include <vector>

#include "kvist/cache/calibrated_code.h"
#include "kvist/cache/coded_reader.h"
#include "kvist/cache/ragged.h"

namespace kvist {

// Throws Error(corrupt) naming layer, head, position and value of the first key or value of a dense
// layer that is not finite.
void require_finite(const PlainPrefix& prefix, int layer, ThreadPool& pool);

class CodedPrefix final : public PrefixCache {
 public:
  // Takes the plain prefix, all of its layers dense. `code` was calibrated for this model.
  CodedPrefix(std::unique_ptr<PlainPrefix> plain, const ReadPlan& plan,
              std::shared_ptr<const CalibratedCode> code);
  // Codes layer `layer` on the threads of `pool` and frees its dense form; nothing for a protected
  // layer. Its numbers are finite.
  void encode(int layer, ThreadPool& pool);

  const ReadPlan& plan() const { return plan_; }
  bool coded(int layer) const { return coded_[static_cast<size_t>(layer)] != nullptr; }
  const CodedLayer& layer(int layer) const { return *coded_[static_cast<size_t>(layer)]; }

  const KvShape& shape() const override { return plain_->shape(); }
  int n_layers() const override { return plain_->n_layers(); }
  int next_position() const override { return plain_->next_position(); }
  int longest_head() const override { return plain_->next_position(); }
  Bytes bytes(int layer) const override;
  using PrefixCache::bytes;
  SuffixLayer new_suffix(int layer) const override;
  void reserve(AttendWorkspace& workspace, int n_rows, int n_tokens, int n_workers) const override;
  void attend(const AttendCall& call, AttendWorkspace& workspace,
              Worker worker) const noexcept override;
  std::vector<int32_t> kept(int layer, int head) const override;
  void reconstruct(int layer, int head, std::vector<float>* k,
                   std::vector<float>* v) const override;

 private:
  std::unique_ptr<PlainPrefix> plain_;  // the layers that are not coded
  ReadPlan plan_;
  std::shared_ptr<const CalibratedCode> code_;
  std::vector<std::unique_ptr<CodedLayer>> coded_;  // [layers], null where plain
};

}  // namespace kvist
