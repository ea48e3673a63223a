// SPDX-License-Identifier: MIT
// What is examined: something that reads a context once, keeps it under one method after another,
// and answers questions from what is left.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvist/cache/bytes.h"
#include "kvist/eval/row.h"
#include "kvist/methods/spec.h"

namespace kvist {

// Who sees the question: only the answer (agnostic), or the compression as well (aware).
enum class Mode { agnostic, aware };

// What is compressed before the first answer token: the context alone, so that the question reads
// the compressed cache, or the whole prompt, whose uncompressed logits then choose that token.
enum class Boundary { compressed_question, dense_prefill };

// Token ids on both sides of the boundary.
struct PromptIds {
  std::vector<int32_t> context, question;
};

// A method over the context.
struct Placed {
  Bytes bytes;
  std::vector<std::vector<int>> kept;  // [layers][kv_heads]
  double construct_ms = 0;             // what the method took, prefill not included
  uint64_t construct_bytes = 0;        // buffers taken meanwhile beside all that was there, at most
};

struct Reply {
  std::string text;
  std::vector<int32_t> token_ids;
  std::string stop;              // "eos" or "limit"
  double first_ms = 0;           // until the first token
  double decode_ms = 0;          // a token after it
  double read_share = 0;         // bytes read over what an f16 cache of all tokens would have read
  double touched_share = 0;      // the same of the lines and tables that these lie in; 0: not known
  uint64_t answering_bytes = 0;  // prefix, suffix and workspace at most; 0: not known
  uint64_t peak_rss_bytes = 0;   // of the process since the method was put in place; 0: not known
};

class Subject {
 public:
  virtual ~Subject() = default;
  virtual std::string model_hash() const = 0;
  virtual int count_tokens(std::string_view text) const = 0;
  virtual PromptIds prompt(const EvalRow& row, Mode mode) const = 0;
  virtual uint64_t reference_bytes(int n_tokens) const = 0;  // of f16

  // Reads the context once, while whatever `specs` need is recorded. Returns the milliseconds of
  // the model alone. Throws interrupted when *stop becomes true.
  virtual double read(std::span<const int32_t> context, std::span<const Spec> specs,
                      const std::atomic<bool>* stop) = 0;
  // Puts specs[i] of the last read() in place over the context; nothing else was placed since
  // restore(). An empty spec leaves everything.
  virtual Placed place(size_t i) = 0;
  // Asks what is in place; nothing of the question or answer stays. Without a question the answer
  // goes on from what was read, and its first token is that of the uncompressed read.
  virtual Reply ask(std::span<const int32_t> question, int limit,
                    const std::atomic<bool>* stop) = 0;
  virtual void restore() = 0;
  // Of all that is in place: the same before and after a question. 0: not known.
  virtual uint64_t digest() const = 0;
};

}  // namespace kvist
