// SPDX-License-Identifier: MIT
// Words, numbers and names that suites draw.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvist/core/rng.h"

namespace kvist {

struct WordLists {
  std::vector<std::string> adjectives, nouns, verbs;
  std::vector<std::string> all() const;  // of the three, each once, sorted
};
// DATA/words/{adjectives,nouns,verbs}.txt, a word a line. Throws not_found saying how to get them.
WordLists word_lists(const std::string& data);

// DATA/kinds.txt, "word kind" a line: kinds in the order of their names, each with its words in the
// order of the file. Throws not_found saying how to get it, and invalid_argument naming a line that
// is something else, or a kind of fewer than 20 words.
using WordKinds = std::vector<std::pair<std::string, std::vector<std::string>>>;
WordKinds word_kinds(const std::string& data);

std::string random_number(Rng& rng, int digits);            // without a leading zero
std::string random_uuid(Rng& rng);                          // version 4
std::string random_letters(Rng& rng, int n, char first);    // of 26 from `first` on
std::string random_pair(Rng& rng, const WordLists& words);  // "adjective-noun"

// k distinct indexes below n, ascending, each set as likely.
std::vector<size_t> distinct_indexes(Rng& rng, size_t k, size_t n);

}  // namespace kvist
