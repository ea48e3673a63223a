// SPDX-License-Identifier: MIT
// Rows of `kvist bench`: a figure, what it was measured against in the same process, their ratio
// and the target for it.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kvist/core/thread_pool.h"

namespace kvist {

// Timings of one thing, in seconds.
struct Sample {
  std::vector<double> seconds;
  double median() const;
  double spread() const;  // (largest - smallest) / median
};

// How the ratio of a row is formed from its two figures, and which way is better.
enum class RatioKind {
  speedup,   // against / value of times: larger is better
  fraction,  // value / against of times: smaller is better
  rate,      // value / against of rates: larger is better
};

struct BenchRow {
  std::string id;  // "ttft/2k/libllama"
  double value = 0;
  double spread = 0;
  std::string unit;     // "ms", "tok/s"
  std::string against;  // "libllama"
  double against_value = 0;
  RatioKind kind = RatioKind::speedup;
  std::optional<double> target;

  double ratio() const;
  bool met() const;  // true without a target
};

using RowSink = std::function<void(BenchRow)>;

struct AttentionBenchOptions {
  std::vector<int> groups, head_dims, lengths;
  int repeats = 5;
};
// Decode attention of one layer: ours dense against ggml's flash attention, ragged prefixes against
// our dense. Throws Error(corrupt) when an output differs from the double-precision reference:
// nothing wrong is ever timed.
void bench_attention(const AttentionBenchOptions& options, ThreadPool& pool, const RowSink& sink);

struct ModelBenchOptions {
  std::string model, document;  // document: path, "" for made-up prose
  std::vector<int> prompts;     // tokens
  bool plain_llama = false;     // libllama without repacked weights
  int together_prompt = 0;      // tokens under 8 questions decoded together; 0: left out
  int repeats = 5;
  int decode_steps = 16;
  std::string peer_file;  // JSON lines of bench/peers/*.py, "" for none
  std::function<void(const std::string&)> log;
};
// Prefill, construction and decoding of a whole model, ours and libllama's in turn. Fills `about`
// with the model's facts.
void bench_model(const ModelBenchOptions& options, ThreadPool& pool, const RowSink& sink,
                 nlohmann::json* about);

}  // namespace kvist
