// SPDX-License-Identifier: MIT
// What the parts of `kvist eval` share.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "kvist/cli/command.h"
#include "kvist/cli/inputs.h"

namespace kvist {

struct EvalOptions {
  Inputs inputs;
  std::string suite;                 // of the table, a file of rows, perplexity or score
  std::vector<std::string> methods;  // lists of specs
  std::string ratios;                // "" or ".25,.5"
  std::string folder;                // -o
  std::string mode = "agnostic", boundary = "compressed-question", data = "data", control;
  std::vector<std::string> tasks;  // of suites that have several
  std::vector<int> lengths{1024};
  int limit = 10, replicates = 2000;
  uint64_t seed = 0;
  bool copy_model = false;
  // perplexity
  std::vector<std::string> texts;
  std::string protocol = "prefix";
  int documents = 4, tokens = 1024;
  std::string at_bytes;       // a share of f16, or a method whose bytes are the measure
  bool hashed_order = false;  // documents by the SHA-256 of their names
};

// Every method once, in order; where --ratios is given, those that select and do not say how much
// at each of them. Throws invalid_argument where a ratio or a spec is wrong.
std::vector<Spec> specs_of(const EvalOptions& options);

// SHA-256 of the calibrations and bases that `specs` need, by the text of the method.
nlohmann::ordered_json measured_hashes(const Inputs& inputs, std::span<const Spec> specs,
                                       const ModelInfo& info);

int eval_perplexity(const EvalOptions& options, const Context& context);
// Rows of a suite or a file: asks what is not finished, then scores and reports.
int eval_rows(const EvalOptions& options, const Context& context);
// Scores the predictions of a folder again; the scores it holds must come out.
int eval_score(const EvalOptions& options, const Context& context);

}  // namespace kvist
