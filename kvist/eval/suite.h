// SPDX-License-Identifier: MIT
// A suite is a function that yields rows; the table of suites.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvist/core/rng.h"
#include "kvist/eval/row.h"

namespace kvist {

// Tokens of a text, without chat template.
using CountTokens = std::function<int(std::string_view)>;

struct SuiteInput {
  std::vector<int> lengths;  // nominal tokens, prompt and answer together
  int limit = 0;             // most rows of a cell (task and length)
  uint64_t seed = 0;
  std::string data;  // folder of words, prose and facts
  CountTokens count_tokens;
  std::vector<std::string> tasks;  // of suites that have several; none: all
};

struct Suite {
  const char* name;
  const char* summary;
  const char* needs;  // what of the data folder, "" for nothing
  // Sample i of a cell depends on seed, task, length and i alone.
  std::vector<EvalRow> (*rows)(const SuiteInput&);
};

std::span<const Suite* const> suites();
// Throws invalid_argument naming the nearest.
const Suite& find_suite(std::string_view name);
// Its rows, distinct and sealed. Throws invalid_argument where a length holds nothing, and
// not_found where data are missing, saying how to get them.
std::vector<EvalRow> rows_of(const Suite& suite, const SuiteInput& input);

// What its rows were made of: SHA-256 of the names and SHA-256 of all files of each need, by the
// need. Files that are not there are left out.
std::map<std::string, std::string> data_hashes(const Suite& suite, const std::string& data);

// Those of `known` that input.tasks names, in the order of `known`. Throws invalid_argument naming
// the nearest to one that there is not.
std::vector<std::string> chosen_tasks(const SuiteInput& input,
                                      const std::vector<std::string>& known);

// The generator of one sample.
Rng sample_rng(const SuiteInput& input, std::string_view task, int length, int index);
// "v1-s7-12": generator version, seed, index.
std::string sample_id(int version, const SuiteInput& input, int index);

// The largest n in [least, most] with fits(n), which holds up to some n and never after it. Throws
// invalid_argument "TASK at L tokens: ..." where fits(least) does not hold.
int largest_fit(int least, int most, const std::function<bool(int)>& fits, std::string_view task,
                int length);

}  // namespace kvist
