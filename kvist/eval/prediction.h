// SPDX-License-Identifier: MIT
// What was answered: one line a question and method, written before anything is scored.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kvist/eval/row.h"

namespace kvist {

struct Prediction {
  std::string model;  // hash of the file
  std::string suite, task, id;
  std::optional<int> length;
  std::string method;          // canonical spec; "none", or "floor" for an empty context
  std::string mode, boundary;  // as mode_text(plan) and name(Boundary) give them
  uint64_t seed = 0;

  std::string text;  // as it came
  std::vector<int32_t> token_ids;
  std::string stop;  // "eos" or "limit"
  int n_prompt = 0, n_context = 0;
  std::vector<std::vector<int>> kept;                                   // [layers][kv_heads]
  double n_kept = 0;                                                    // mean over them
  uint64_t stored_bytes = 0, allocated_bytes = 0, reference_bytes = 0;  // reference: f16
  double read_share = 0;  // bytes read by the answer's calls over those of f16
  // Of the method's own condition; 0 where it is not known, as in files of kvist 0.1 and before.
  double touched_share = 0;      // bytes of 64-byte lines and tables read, likewise
  uint64_t construct_bytes = 0;  // buffers that compression took beside all that was there
  uint64_t answering_bytes = 0;  // prefix, suffix and workspace while answering
  uint64_t peak_rss_bytes = 0;   // of the process from compression to the end of the answer
  std::string context_hash, question_hash, answer_fingerprint;
  double prefill_ms = 0;    // of the context, without what methods do meanwhile
  double construct_ms = 0;  // prefill, scoring and compression
  double first_ms = 0;      // the question, to the first token of the answer
  double decode_ms = 0;     // a token after the first; 0 where there is none

  double ttft_ms() const { return construct_ms + first_ms; }
  // Everything that tells two predictions apart.
  std::string key() const;
  std::string name() const;  // the row's, and the method
};

nlohmann::ordered_json to_json(const Prediction& prediction);
// Throws invalid_argument naming `place` and what is wrong.
Prediction prediction_of(const nlohmann::ordered_json& object, const std::string& place);

// All of a file, in order. A line that another one's key repeats is an error naming both.
std::vector<Prediction> read_predictions(const std::string& path);

// The predictions of a folder: those that were there, and those appended, each flushed at once.
// Held exclusively: a second run over the same file is refused.
class PredictionLog {
 public:
  // Creates the file where it is missing; cuts off a last line that does not end, as after a kill.
  explicit PredictionLog(const std::string& path);
  ~PredictionLog();
  PredictionLog(const PredictionLog&) = delete;
  PredictionLog& operator=(const PredictionLog&) = delete;

  // Throws io where the line cannot be written whole; the file ends after the one before then.
  void append(Prediction prediction);
  // The prediction with p's key, if it agrees in context, question and answers. Throws
  // invalid_argument where the key is there with other hashes.
  const Prediction* finished(const Prediction& p) const;
  const std::vector<Prediction>& all() const { return all_; }
  bool cut_a_line() const { return cut_; }

 private:
  std::string path_;
  int file_ = -1;
  bool cut_ = false;
  std::vector<Prediction> all_;
  std::map<std::string, size_t> at_;  // by key
};

}  // namespace kvist
