// SPDX-License-Identifier: MIT
// Sixty nouns with the kinds of thing they are, and one without: what examples in the context
// teach.
#include <algorithm>

#include "kvist/core/error.h"
#include "kvist/eval/fit.h"
#include "kvist/eval/prose.h"
#include "kvist/eval/words.h"

namespace kvist {
namespace {

constexpr int kMostExamples = 60;
FitSample sample(const WordKinds& kinds, int n, Rng& rng) {
  std::vector<std::string> drawn, lines;
  std::string last_kind;
  while (static_cast<int>(drawn.size()) <= n) {
    const auto& [kind, words] = kinds[rng.below(kinds.size())];
    const std::string& word = words[rng.below(words.size())];
    if (std::find(drawn.begin(), drawn.end(), word) != drawn.end()) continue;
    drawn.push_back(word);
    lines.push_back(str("Word: ", word, "\nKind: ", kind));
    last_kind = kind;
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
  const WordKinds kinds = word_kinds(input.data);
  std::vector<std::string> classes;
  for (const auto& [kind, words] : kinds) classes.push_back(kind);
  std::vector<EvalRow> out;
  for (int length : input.lengths) {
    FitTask task{
        .suite = "kv-fewshot", .task = "kv-fewshot", .version = 2, .metric = "classification"};
    task.generate = 8;
    task.step = 3;
    task.most = kMostExamples;
    task.make = [&](int n, Rng& rng) { return sample(kinds, n, rng); };
    for (EvalRow& row : fitted_rows(input, length, task)) {
      row.all_classes = classes;
      out.push_back(std::move(row));
    }
  }
  return out;
}

}  // namespace

extern constinit const Suite kv_fewshot_suite{
    "kv-fewshot", "up to sixty nouns and what kind of thing they are, and one that is asked",
    "kinds", rows};

}  // namespace kvist
