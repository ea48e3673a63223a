// SPDX-License-Identifier: MIT
// How RULER fills a prompt: as many units of haystack as leave room for the answer.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kvist/eval/suite.h"

namespace kvist {

// A row without its names.
struct FitSample {
  std::string context, question, answer_prefix;
  std::vector<std::string> answers;
  nlohmann::ordered_json meta = nlohmann::ordered_json::object();
};

struct FitTask {
  const char* suite = "";
  const char* task = "";
  int version = 1;
  const char* metric = "all";
  int generate = 0;  // tokens of an answer
  int step = 1;      // units; also the least
  int most = 0;      // units that are tried at most
  // A sample with n units. The same n and generator give the same sample.
  std::function<FitSample(int n, Rng& rng)> make = {};
};

// input.limit rows of a length. n is found once, by bisection with a sample a probe; each sample
// starts with it and loses `step` units while it is too long. Throws invalid_argument naming task,
// length and what was tried where `step` units do not fit.
std::vector<EvalRow> fitted_rows(const SuiteInput& input, int length, const FitTask& task);

int prompt_tokens(const SuiteInput& input, const FitSample& sample);

}  // namespace kvist
