// SPDX-License-Identifier: MIT
// Where the model that the set-up installs lies, and small things every whole-program test with it
// needs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvist/model/tokenizer.h"

namespace kvist::testing {

// Path of SmolLM2-135M-Instruct.Q4_1.gguf: $KVIST_MODEL, else the one in .venv; "" when there is
// none.
std::string embedded_model();

// The same weights as float32 in the build folder, written on first use (540 MB); "" when there is
// no model.
std::string embedded_model_f32();

// Text of a file under the source folder.
std::string read_source_file(const std::string& relative);

// A passkey document of about n_tokens tokens and its question (the classic task: a five-digit key
// between repeated noise).
struct Passkey {
  std::string context, question, answer_prefix, key;
};
Passkey make_passkey(int n_sentences, double depth, uint64_t seed);

// Ids of head + context and of question + tail + answer prefix in the model's chat template.
std::vector<int32_t> context_ids(const Tokenizer& tokenizer, const std::string& context);
std::vector<int32_t> question_ids(const Tokenizer& tokenizer, const Passkey& row);

int32_t argmax(std::span<const float> logits);
// KL(p || q) in nats between the softmaxes of two logit rows.
double kl(std::span<const float> p, std::span<const float> q);

}  // namespace kvist::testing
