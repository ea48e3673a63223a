// SPDX-License-Identifier: MIT
// Vocabulary, chat template and sampling of a GGUF file, by way of libllama with the weights left
// on disk.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvist {

class Tokenizer {
 public:
  static std::unique_ptr<Tokenizer> load(const std::string& path);
  ~Tokenizer();

  // Token ids of text. No BOS is added; special: "<|im_start|>" and its like become their tokens.
  std::vector<int32_t> encode(std::string_view text, bool special) const;
  std::string decode(std::span<const int32_t> ids) const;  // special tokens are left out
  std::string piece(int32_t id, bool special = false) const;
  bool is_end(int32_t id) const;  // any end-of-generation token
  int vocab() const;
  std::vector<int32_t> bos()
      const;  // what the model wants in front of raw text: empty or one token

  // The two halves of the chat template around the user's message, generation prompt on; empty when
  // the file has none.
  struct ChatParts {
    std::string head, tail;
    bool found = false;
  };
  ChatParts chat_parts() const;

 private:
  Tokenizer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct SamplingOptions {
  float temperature = 0;  // 0: greedy
  int top_k = 0;          // 0: off
  float top_p = 1;        // 1: off
  uint32_t seed = 0;
};

// Picks tokens from logits; greedy takes the smallest id among equals.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);
  ~Sampler();
  int32_t pick(std::span<const float> logits);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvist
