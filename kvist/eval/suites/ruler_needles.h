// SPDX-License-Identifier: MIT
// RULER's needle tasks, and what its other tasks share with them.
#pragma once

#include <string>
#include <vector>

#include "kvist/eval/suite.h"

namespace kvist {

inline constexpr const char* kNoiseLine =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

std::vector<std::string> ruler_needle_tasks();
// Of one of them at every length; none where `task` is another.
std::vector<EvalRow> ruler_needle_rows(const SuiteInput& input, const std::string& task);

// Occurrences of the ranks of a coded vocabulary in n words: floor(n rank^-2 / zeta(2)).
std::vector<int> zipf_counts(int n, int vocabulary);
struct FrequentSizes {
  int vocabulary = 0, first = 0, step = 0;  // words asked for: first + k * step
};
FrequentSizes frequent_sizes(int length);

// The i-th of 40 depths from 0 to 100: round(100 i / 39), halves to even.
int ruler_depth(size_t i);

}  // namespace kvist
