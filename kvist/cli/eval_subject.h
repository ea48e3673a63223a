// SPDX-License-Identifier: MIT
// A GGUF model as the evaluation examines it.
#pragma once

#include <memory>
#include <string>

#include "kvist/cli/inputs.h"
#include "kvist/eval/subject.h"

namespace kvist {

class ModelSubject final : public Subject {
 public:
  // Loads the model. raw: without its chat template. Throws unsupported where there is none and raw
  // is not asked for.
  ModelSubject(const Inputs& inputs, const Context& context);
  ~ModelSubject() override;

  std::string model_hash() const override;
  int count_tokens(std::string_view text) const override;
  PromptIds prompt(const EvalRow& row, Mode mode) const override;
  uint64_t reference_bytes(int n_tokens) const override;
  double read(std::span<const int32_t> context, std::span<const Spec> specs,
              const std::atomic<bool>* stop) override;
  Placed place(size_t i) override;
  Reply ask(std::span<const int32_t> question, int limit, const std::atomic<bool>* stop) override;
  void restore() override;
  uint64_t digest() const override;

  const ModelInfo& info() const;
  uint64_t peak_rss_bytes() const;  // of the process so far
  // SHA-256 of all the tokenizer's pieces, in the order of their ids.
  std::string tokenizer_hash() const;
  // What text goes before and after a user's, for the report.
  std::string template_text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvist
