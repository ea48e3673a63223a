// SPDX-License-Identifier: MIT
// Sixty words with their kinds, and one without: what examples in the context teach.
#include <algorithm>

#include "kvist/core/error.h"
#include "kvist/eval/fit.h"
#include "kvist/eval/prose.h"
#include "kvist/eval/words.h"

namespace kvist {
namespace {

constexpr int kMostExamples = 60;
constexpr const char* kKinds[] = {"adjective", "noun", "verb"};

// Words of one kind only.
std::vector<std::vector<std::string>> by_kind(const WordLists& words) {
  const std::vector<const std::vector<std::string>*> lists = {&words.adjectives, &words.nouns,
                                                              &words.verbs};
  std::vector<std::vector<std::string>> out;
  for (const auto* list : lists) {
    auto& own = out.emplace_back();
    for (const std::string& word : *list) {
      const bool shared = std::any_of(lists.begin(), lists.end(), [&](const auto* other) {
        return other != list && std::find(other->begin(), other->end(), word) != other->end();
      });
      if (!shared) own.push_back(word);
    }
  }
  return out;
}

FitSample sample(const std::vector<std::vector<std::string>>& words, int n, Rng& rng) {
  std::vector<std::string> drawn, lines;
  std::string last_kind;
  while (static_cast<int>(drawn.size()) <= n) {
    const size_t kind = rng.below(words.size());
    const std::string& word = words[kind][rng.below(words[kind].size())];
    if (std::find(drawn.begin(), drawn.end(), word) != drawn.end()) continue;
    drawn.push_back(word);
    lines.push_back(str("Word: ", word, "\nKind: ", kKinds[kind]));
    last_kind = kKinds[kind];
  }
  lines.pop_back();
  FitSample s;
  s.context = str("Please determine the kind of the word below. Here are some examples.\n\n",
                  joined(lines, "\n"), "\n");
  s.question = str("Word: ", drawn.back(), "\n");
  s.answer_prefix = "Kind:";
  s.answers = {last_kind};
  return s;
}

std::vector<EvalRow> rows(const SuiteInput& input) {
  const auto words = by_kind(word_lists(input.data));
  std::vector<EvalRow> out;
  for (int length : input.lengths) {
    FitTask task{.suite = "kv-fewshot", .task = "kv-fewshot", .metric = "classification"};
    task.generate = 8;
    task.step = 3;
    task.most = kMostExamples;
    task.make = [&](int n, Rng& rng) { return sample(words, n, rng); };
    for (EvalRow& row : fitted_rows(input, length, task)) {
      row.all_classes = std::vector<std::string>(std::begin(kKinds), std::end(kKinds));
      out.push_back(std::move(row));
    }
  }
  return out;
}

}  // namespace

extern constinit const Suite kv_fewshot_suite{
    "kv-fewshot", "up to sixty words with their kinds, and one whose kind is asked", "words", rows};

}  // namespace kvist
