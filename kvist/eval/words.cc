// SPDX-License-Identifier: MIT
// Reading lists, drawing from them.
#include "kvist/eval/words.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "kvist/core/error.h"

namespace kvist {
namespace {

std::vector<std::string> lines_of(const std::string& data, const char* name) {
  const std::string path = (std::filesystem::path(data) / "words" / name).string();
  std::ifstream in(path);
  if (!in) {
    throw Error(ErrorKind::not_found,
                str(path,
                    ": not there; `tools/texts.py words` fetches it, or put a list of your "
                    "own there, a word a line (--data DIR)"));
  }
  std::vector<std::string> words;
  for (std::string word; std::getline(in, word);)
    if (!word.empty()) words.push_back(word);
  if (words.size() < 100) {
    throw Error(ErrorKind::invalid_argument,
                str(path, ": ", words.size(), " words, expected at least 100"));
  }
  return words;
}

}  // namespace

std::vector<std::string> WordLists::all() const {
  std::set<std::string> out(adjectives.begin(), adjectives.end());
  out.insert(nouns.begin(), nouns.end());
  out.insert(verbs.begin(), verbs.end());
  return {out.begin(), out.end()};
}

WordLists word_lists(const std::string& data) {
  return {lines_of(data, "adjectives.txt"), lines_of(data, "nouns.txt"),
          lines_of(data, "verbs.txt")};
}

WordKinds word_kinds(const std::string& data) {
  constexpr size_t kLeast = 20;
  const std::string path = (std::filesystem::path(data) / "kinds.txt").string();
  std::ifstream in(path);
  if (!in) {
    throw Error(ErrorKind::not_found,
                str(path,
                    ": not there; `tools/texts.py kinds` fetches it (Debian), or put a list "
                    "of your own there, a word and its kind a line (--data DIR)"));
  }
  std::map<std::string, std::vector<std::string>> words;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const size_t space = line.find(' ');
    if (space == std::string::npos || space == 0 || space + 1 == line.size() ||
        line.find(' ', space + 1) != std::string::npos) {
      throw Error(ErrorKind::invalid_argument, str(path, ":", number, ": ", kvist::quoted(line),
                                                   ", expected a word and its kind"));
    }
    words[line.substr(space + 1)].push_back(line.substr(0, space));
  }
  if (words.size() < 2)
    throw Error(ErrorKind::invalid_argument, str(path, ": expected at least two kinds"));
  for (const auto& [kind, list] : words) {
    if (list.size() < kLeast) {
      throw Error(ErrorKind::invalid_argument,
                  str(path, ": ", list.size(), " words of the kind ", kvist::quoted(kind),
                      ", expected at least ", kLeast));
    }
  }
  return {words.begin(), words.end()};
}

std::string random_number(Rng& rng, int digits) {
  std::string out(1, static_cast<char>('1' + rng.below(9)));
  while (static_cast<int>(out.size()) < digits) out += static_cast<char>('0' + rng.below(10));
  return out;
}

std::string random_uuid(Rng& rng) {
  const uint64_t high = (rng.next() & ~uint64_t{0xF000}) | 0x4000;
  const uint64_t low = (rng.next() & ~(uint64_t{3} << 62)) | uint64_t{2} << 62;
  return fmt::format("{:08x}-{:04x}-{:04x}-{:04x}-{:012x}", high >> 32, high >> 16 & 0xFFFF,
                     high & 0xFFFF, low >> 48, low & 0xFFFFFFFFFFFF);
}

std::string random_letters(Rng& rng, int n, char first) {
  std::string out;
  for (int i = 0; i < n; ++i) out += static_cast<char>(first + static_cast<char>(rng.below(26)));
  return out;
}

std::string random_pair(Rng& rng, const WordLists& words) {
  const std::string& adjective = words.adjectives[rng.below(words.adjectives.size())];
  return str(adjective, "-", words.nouns[rng.below(words.nouns.size())]);
}

std::vector<size_t> distinct_indexes(Rng& rng, size_t k, size_t n) {
  KVIST_ASSERT(k <= n);
  // Floyd: one draw an index, and no list of n.
  std::set<size_t> chosen;
  for (size_t j = n - k; j < n; ++j) {
    const size_t at = rng.below(j + 1);
    chosen.insert(chosen.contains(at) ? j : at);
  }
  return {chosen.begin(), chosen.end()};
}

}  // namespace kvist
