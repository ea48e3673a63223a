// SPDX-License-Identifier: MIT
// Special tokens split a text before anything else does, so each side of one may be tokenised by
// itself without a change.
#include "kvist/cli/prompt.h"

namespace kvist {
namespace {

using Ids = std::vector<int32_t>;

Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

bool is_plain(const Tokenizer& t, const std::string& text) {
  return t.encode(text, true) == t.encode(text, false);
}

bool splits_at(const Tokenizer& t, const std::string& text, size_t at) {
  return joined(t.encode(text.substr(0, at), true), t.encode(text.substr(at), true)) ==
         t.encode(text, true);
}

// Where the plain text after the last special token begins; text.size() where it cannot be told.
size_t after_last_special(const Tokenizer& t, const std::string& text) {
  for (size_t at = 0; at < text.size(); ++at) {
    if (splits_at(t, text, at) && is_plain(t, text.substr(at))) return at;
  }
  return text.size();
}

// Where the first special token begins: the plain text before it is as long as it can be.
size_t first_special(const Tokenizer& t, const std::string& text) {
  for (size_t at = text.size(); at > 0; --at) {
    if (is_plain(t, text.substr(0, at)) && splits_at(t, text, at)) return at;
  }
  return 0;
}

// "...<|im_start|>user\n" and "<|im_end|>\n<|im_start|>assistant\n" give
// "<|im_end|>\n<|im_start|>user\n": roles open alike.
std::string between_messages(const Tokenizer::ChatParts& parts) {
  const size_t user = parts.head.rfind("user"), assistant = parts.tail.rfind("assistant");
  if (user == std::string::npos || assistant == std::string::npos) return "";
  return parts.tail.substr(0, assistant) + parts.head.substr(user);
}

}  // namespace

Prompt::Prompt(const Tokenizer& tokenizer, bool raw) : tokenizer_(tokenizer) {
  if (!raw) parts_ = tokenizer.chat_parts();
  const Ids bos = tokenizer.bos();
  if (!parts_.found) {
    fixed_head_ = bos;
    open_tail_ = "\n";
    return;
  }
  const size_t at = after_last_special(tokenizer, parts_.head);
  fixed_head_ = tokenizer.encode(parts_.head.substr(0, at), true);
  open_head_ = parts_.head.substr(at);
  if (!bos.empty() && (fixed_head_.empty() || fixed_head_.front() != bos.front()))
    fixed_head_ = joined(bos, fixed_head_);
  const size_t special = first_special(tokenizer, parts_.tail);
  open_tail_ = parts_.tail.substr(0, special);
  fixed_tail_ = parts_.tail.substr(special);
  between_ = between_messages(parts_);
}

Ids Prompt::document(const std::string& text) const {
  return joined(fixed_head_, tokenizer_.encode(open_head_ + text, false));
}

Ids Prompt::question(const std::string& text, const std::string& answer_prefix) const {
  if (fixed_tail_.empty()) return tokenizer_.encode(text + open_tail_ + answer_prefix, false);
  return joined(tokenizer_.encode(text + open_tail_, false),
                tokenizer_.encode(fixed_tail_ + answer_prefix, true));
}

std::optional<Ids> Prompt::follow_up(const std::string& text,
                                     const std::string& answer_prefix) const {
  if (between_.empty()) return std::nullopt;
  return joined(tokenizer_.encode(between_, true), question(text, answer_prefix));
}

}  // namespace kvist
