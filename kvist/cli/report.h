// SPDX-License-Identifier: MIT
// What a run cost beside the uncompressed cache: the numbers, as a table for people and as JSON
// with stable keys.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kvist/cache/bytes.h"
#include "kvist/cache/prefix.h"
#include "kvist/cli/answer.h"
#include "kvist/cli/inputs.h"

namespace kvist {

// Answers from one cache, and what it held.
struct Stage {
  std::string label;  // "uncompressed", or the method's spec
  Bytes bytes;
  std::vector<Answer> answers;
  double tok_s = 0;  // median over the answers, or the total of a batch
  ReadCounts reads;  // what coded layers read for these answers
};

struct Report {
  int n_tokens = 0;  // that the cache stands for
  Timings timings;
  std::optional<Stage> uncompressed;  // measured only where it was asked for
  Stage stage;
  std::vector<std::vector<int>> kept;  // [layers][kv_heads]
};

// Bytes of the same tokens as f16: what `factor` divides.
uint64_t reference_bytes(const ModelInfo& model, int n_tokens);
std::vector<std::vector<int>> kept_counts(const PrefixCache& prefix);
double median_tok_s(const std::vector<Answer>& answers);

std::string summary(const Loaded& loaded, const Report& report);
nlohmann::json to_json(const Loaded& loaded, const Context& context, const Report& report);
// The same of a prefix that was looked at and not asked: `bytes` of it, no answers and no rates.
nlohmann::json inspection_json(const Loaded& loaded, const Context& context, const Timings& timings,
                               const Bytes& bytes);

}  // namespace kvist
