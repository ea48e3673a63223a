// SPDX-License-Identifier: MIT
// Vocabulary and chat template of a GGUF file, by way of libllama with the weights left on disk.
#include "kvist/model/tokenizer.h"

#include <llama.h>

#include <algorithm>

#include "kvist/core/error.h"
#include "kvist/model/cpu_backend.h"
#include "kvist/model/gguf_check.h"

namespace kvist {
namespace {

constexpr size_t kMaxText = size_t{1} << 30;  // bytes; libllama counts in int32

struct VocabModelDeleter {
  void operator()(llama_model* model) const { llama_model_free(model); }
};

// libllama's built-in handler knows the ChatML markup but not the system message that a template
// itself puts in front when the conversation has none. Returns that message where the template
// spells it out as one literal, else "".
std::string default_system_message(const std::string& chat_template) {
  const std::string open = "<|im_start|>system", close = "<|im_end|>";
  for (size_t at = chat_template.find(open); at != std::string::npos;
       at = chat_template.find(open, at + 1)) {
    size_t begin = at + open.size();
    if (chat_template.compare(begin, 2, "\\n") == 0) {
      begin += 2;
    } else if (chat_template.compare(begin, 1, "\n") == 0) {
      begin += 1;
    } else {
      continue;
    }
    const size_t end = chat_template.find(close, begin);
    if (end == std::string::npos) break;
    const std::string text = chat_template.substr(begin, end - begin);
    if (!text.empty() && text.find_first_of("'\"{}\\") == std::string::npos) return text;
  }
  return "";
}

}  // namespace

struct Tokenizer::Impl {
  std::string path;
  std::unique_ptr<llama_model, VocabModelDeleter> model;
  const llama_vocab* vocab = nullptr;

  // The template applied to one user message (after the default system message), generation prompt
  // on; "" where libllama does not know the template.
  std::string chat(const char* chat_template, const std::string& user) const {
    const std::string system = default_system_message(chat_template);
    std::vector<llama_chat_message> messages;
    if (!system.empty()) messages.push_back({"system", system.c_str()});
    messages.push_back({"user", user.c_str()});
    std::string out(4096 + 2 * (system.size() + user.size()), '\0');
    for (int attempt = 0; attempt < 2; ++attempt) {
      const int32_t n =
          llama_chat_apply_template(chat_template, messages.data(), messages.size(), true,
                                    out.data(), static_cast<int32_t>(out.size()));
      if (n < 0) return "";
      const bool fits = static_cast<size_t>(n) <= out.size();
      out.resize(static_cast<size_t>(n));
      if (fits) return out;
    }
    return "";
  }
};

Tokenizer::Tokenizer() = default;
Tokenizer::~Tokenizer() = default;

std::unique_ptr<Tokenizer> Tokenizer::load(const std::string& path) {
  silence_backend_log();
  check_vocabulary(GgufFile(path));
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer);
  tokenizer->impl_ = std::make_unique<Impl>();
  Impl& impl = *tokenizer->impl_;
  impl.path = path;
  take_backend_errors();
  impl.model.reset(llama_model_load_from_file(path.c_str(), params));
  if (!impl.model) {
    throw Error(ErrorKind::unsupported,
                str(path, ": libllama does not load the vocabulary: ", take_backend_errors()));
  }
  impl.vocab = llama_model_get_vocab(impl.model.get());
  return tokenizer;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool special) const {
  if (text.size() > kMaxText) {
    throw Error(ErrorKind::invalid_argument,
                str("a text of ", text.size(), " bytes, at most ", kMaxText, " are tokenized"));
  }
  const auto length = static_cast<int32_t>(text.size());
  std::vector<int32_t> ids(text.size() + 16);
  try {
    int32_t n = llama_tokenize(impl_->vocab, text.data(), length, ids.data(),
                               static_cast<int32_t>(ids.size()), false, special);
    if (n < 0 && n != INT32_MIN) {
      ids.resize(static_cast<size_t>(-n));
      n = llama_tokenize(impl_->vocab, text.data(), length, ids.data(),
                         static_cast<int32_t>(ids.size()), false, special);
    }
    if (n < 0)
      throw Error(ErrorKind::invalid_argument,
                  str("a text of ", text.size(), " bytes has too many tokens"));
    ids.resize(static_cast<size_t>(n));
  } catch (const std::out_of_range&) {  // a vocabulary without byte tokens
    throw Error(ErrorKind::unsupported,
                str(impl_->path, ": the vocabulary has no tokens for some bytes of the text"));
  }
  return ids;
}

std::string Tokenizer::piece(int32_t id, bool special) const {
  if (id < 0 || id >= vocab()) {
    throw Error(ErrorKind::invalid_argument, str("token ", id, ", expected 0 to ", vocab() - 1));
  }
  std::string out(64, '\0');
  int32_t n = llama_token_to_piece(impl_->vocab, id, out.data(), static_cast<int32_t>(out.size()),
                                   0, special);
  if (n < 0) {
    out.resize(static_cast<size_t>(-n));
    n = llama_token_to_piece(impl_->vocab, id, out.data(), static_cast<int32_t>(out.size()), 0,
                             special);
  }
  out.resize(static_cast<size_t>(std::max(n, 0)));
  return out;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string out;
  for (const int32_t id : ids) out += piece(id);
  return out;
}

bool Tokenizer::is_end(int32_t id) const {
  return id >= 0 && id < vocab() && llama_vocab_is_eog(impl_->vocab, id);
}

int Tokenizer::vocab() const { return llama_vocab_n_tokens(impl_->vocab); }

std::vector<int32_t> Tokenizer::bos() const {
  const llama_token id = llama_vocab_bos(impl_->vocab);
  if (!llama_vocab_get_add_bos(impl_->vocab) || id < 0 || id >= vocab()) return {};
  return {id};
}

Tokenizer::ChatParts Tokenizer::chat_parts() const {
  const char* chat_template = llama_model_chat_template(impl_->model.get(), nullptr);
  if (chat_template == nullptr) return {};
  const std::string mark = "@@kvist-user-message@@";
  const std::string text = impl_->chat(chat_template, mark);
  const size_t at = text.find(mark);
  if (at == std::string::npos) return {};
  return {text.substr(0, at), text.substr(at + mark.size()), true};
}

}  // namespace kvist
