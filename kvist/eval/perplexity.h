// SPDX-License-Identifier: MIT
// Perplexity and KL of compressed caches against the uncompressed one on the same tokens.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvist/eval/logit_stats.h"
#include "kvist/eval/statistics.h"
#include "kvist/runtime/read_share.h"
#include "kvist/runtime/recipe.h"
#include "kvist/runtime/shared_prefill.h"

namespace kvist {

// causal: every token reads the compressed cache from the first one on, its own entry included, and
// errors propagate; for methods that code, not for those that select.
// prefix: the first half of a window is prefilled plainly and compressed before the second half is
// known; that half is scored but for its first token, which the plain prefill predicts.
enum class Protocol { causal, prefix };

// What one window cost a method. Times are 0 where the protocol has none of the kind.
struct WindowCost {
  double ttft_ms = 0;       // prefill, what the method adds to it, and one token after it
  double construct_ms = 0;  // what the method adds
  double decode_ms = 0;     // a token of up to 31 that are fed one by one
  ReadShare read;           // of the scored tokens
  // As SharedPrefill and Session count them; 0 where the protocol cannot tell methods apart.
  uint64_t construct_bytes = 0, answering_bytes = 0, peak_rss_bytes = 0;
};

struct PerplexityResult {
  LogitStats stats;                // one window's targets after another's
  std::vector<NllUnit> documents;  // a window each: of the method and of the uncompressed run
  Bytes bytes;  // of the prefix at the end of the last window; of the suffix where causal
  uint64_t plain_bytes = 0;  // f16, the same tokens
  ReadCounts reads;          // over all windows
  std::vector<WindowCost> costs;
};

struct PerplexityHooks {
  std::function<void(const Progress&)> on_progress;  // counts scored tokens of all contestants
  const std::atomic<bool>* stop = nullptr;           // interrupted when it becomes true
  SharedPrefill::Repeats repeats;                    // for methods that read a document twice
};

// The uncompressed cache first, then one result a contestant, none of which is uncompressed.
// prefix: one prefill of a window serves all; the uncompressed logits of a half window are held
// meanwhile, 4 * vocab * tokens / 2 bytes. Throws invalid_argument where a spec does not go with
// the protocol.
std::vector<PerplexityResult> perplexity(Model& model, ThreadPool& pool,
                                         const SessionOptions& options, Protocol protocol,
                                         std::span<const Recipe> contestants,
                                         std::span<const std::vector<int32_t>> windows,
                                         const PerplexityHooks& hooks = {});

// llama.cpp's windows: texts one after another, cut every `length` tokens, the rest dropped; the
// first token of each becomes `bos` where the vocabulary has one. Under `prefix` the same targets
// are scored.
std::vector<std::vector<int32_t>> corpus_windows(std::span<const std::vector<int32_t>> documents,
                                                 int length, std::span<const int32_t> bos);

}  // namespace kvist
