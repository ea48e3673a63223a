// SPDX-License-Identifier: MIT
// Puts document, questions and chat template together as token ids: chat head + document | question
// + tail + answer prefix.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvist/model/tokenizer.h"

namespace kvist {

// The two sides of '|' are tokenised apart, so that the left one can be compressed before a
// question is known. Text of users never becomes a special token; text of the template does.
class Prompt {
 public:
  // raw: no template, also where the model has none: BOS + document | question + "\n" + answer
  // prefix.
  Prompt(const Tokenizer& tokenizer, bool raw);

  bool has_template() const { return parts_.found; }
  std::vector<int32_t> document(const std::string& text) const;
  // How many ids at the start of document() are the template's.
  size_t head_length() const { return fixed_head_.size(); }
  std::vector<int32_t> question(const std::string& text, const std::string& answer_prefix) const;
  // Ids that end an answer and open the next message of the user, question included: for a chat
  // that remembers. Absent where the template does not show how.
  std::optional<std::vector<int32_t>> follow_up(const std::string& text,
                                                const std::string& answer_prefix) const;

 private:
  const Tokenizer& tokenizer_;
  Tokenizer::ChatParts parts_;
  std::vector<int32_t> fixed_head_;  // up to and with the last special token of the head
  std::string open_head_;            // the rest of it, tokenised together with the document
  std::string
      open_tail_;  // plain text at the start of the tail, tokenised together with the question
  std::string fixed_tail_;  // from the first special token of the tail on
  std::string between_;     // ends an answer and opens a message; empty where unknown
};

}  // namespace kvist
