// SPDX-License-Identifier: MIT
// Perplexity and KL of compressed caches against the uncompressed one on the same tokens.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvist/cache/coded_prefix.h"
#include "kvist/eval/logit_stats.h"
#include "kvist/methods/spec.h"
#include "kvist/runtime/session.h"

namespace kvist {

// causal: every token reads the compressed cache from the first one on, its own entry included, and
// errors propagate; for methods that code, not for those that select.
// prefix: the first half of a window is prefilled plainly and compressed before the second half is
// known; that half is scored but for its first token, which the plain prefill predicts.
enum class Protocol { causal, prefix };

struct Contestant {
  Spec spec;
  std::shared_ptr<const CodedModel> code;  // where the spec codes
};

struct PerplexityResult {
  LogitStats stats;
  Bytes bytes;  // of the prefix at the end of the last window; of the suffix where causal
  uint64_t plain_bytes = 0;  // f16, the same tokens
  ReadCounts reads;          // over all windows
};

// One result a contestant. Throws invalid_argument where a spec does not go with the protocol, and
// interrupted when *stop becomes true. on_progress counts tokens of all contestants.
std::vector<PerplexityResult> perplexity(
    Model& model, ThreadPool& pool, Protocol protocol, std::span<const Contestant> contestants,
    std::span<const std::vector<int32_t>> windows,
    const std::function<void(const Progress&)>& on_progress = {},
    const std::atomic<bool>* stop = nullptr);

}  // namespace kvist
