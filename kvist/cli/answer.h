// SPDX-License-Identifier: MIT
// Asking a session: one question after another from the same prefix, or several in one batch.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvist/model/tokenizer.h"
#include "kvist/runtime/session.h"

namespace kvist {

struct AnswerOptions {
  int limit = 64;  // most tokens of an answer
  SamplingOptions sampling;
  const std::atomic<bool>* stop = nullptr;  // looked at after each token
};

struct Answer {
  std::string question, text;      // text: UTF-8, without the answer prefix
  std::vector<int32_t> token_ids;  // without the end-of-generation token
  double first_token_ms =
      0;  // from the question's first token going in to the answer's first coming out
  double decode_tok_s = 0;        // tokens after the first a second; 0 where there are none
  std::optional<int32_t> unseen;  // the last token where it is not in the suffix yet
};

// Called with whole characters as they come.
using OnPiece = std::function<void(std::string_view)>;

// Puts `ids` at the end of `sequence` and lets the model go on.
Answer answer_in(Session& session, const Tokenizer& tokenizer, int sequence,
                 std::span<const int32_t> ids, const AnswerOptions& options,
                 const OnPiece& on_piece);

// The same in a fresh sequence that is closed again.
Answer answer_one(Session& session, const Tokenizer& tokenizer, std::span<const int32_t> ids,
                  const AnswerOptions& options, const OnPiece& on_piece);

// Goes on from the prefix itself, whose last token gave `logits`, in a fresh sequence that is
// closed again.
Answer answer_on(Session& session, const Tokenizer& tokenizer, std::span<const float> logits,
                 const AnswerOptions& options);

struct Together {
  std::vector<Answer> answers;  // in the order of the questions
  double total_tok_s = 0;       // of the steps taken together
};
// All questions decode as one batch over the shared prefix.
Together answer_together(Session& session, const Tokenizer& tokenizer,
                         const std::vector<std::vector<int32_t>>& questions,
                         const AnswerOptions& options);

}  // namespace kvist
