// SPDX-License-Identifier: MIT
// A five-digit key between repeated sentences, as landmark attention's task, with keys and places
// of our own choosing.
#include <algorithm>

#include "kvist/core/error.h"
#include "kvist/eval/suite.h"

namespace kvist {
namespace {

constexpr int kVersion = 1, kAnswerTokens = 24;
constexpr double kDepths[] = {0.1, 0.3, 0.5, 0.7, 0.9};
constexpr const char* kSentences[] = {"The grass is green.", "The sky is blue.",
                                      "The sun is yellow.", "Here we go.", "There and back again."};
constexpr const char* kQuestion = "What is the pass key?";
constexpr const char* kPrefix = " The pass key is";

// Sentences [begin, end) of the noise, which goes round.
std::string filler(int begin, int end) {
  std::string out;
  for (int i = begin; i < end; ++i) out += str(i == begin ? "" : " ", kSentences[i % 5]);
  return out;
}

std::string context(int n_sentences, double depth, int key) {
  const auto before = static_cast<int>(depth * n_sentences);
  std::string out =
      "There is an important info hidden inside a lot of irrelevant text. Find it and memorize "
      "them. I will quiz you about the important information there.\n";
  if (before > 0) out += filler(0, before) + "\n";
  out += str("The pass key is ", key, ". Remember it. ", key, " is the pass key.\n");
  if (before < n_sentences) out += filler(before, n_sentences) + "\n";
  return out;
}

EvalRow sample(const SuiteInput& input, int length, int index, int key) {
  const double depth = kDepths[index % 5];
  const auto fits = [&](int n) {
    return input.count_tokens(context(n, depth, key) + kQuestion + kPrefix) + kAnswerTokens <=
           length;
  };
  const int n = largest_fit(0, length, fits, "passkey", length);
  EvalRow row;
  row.suite = row.task = "passkey";
  row.id = sample_id(kVersion, input, index);
  row.length = length;
  row.context = context(n, depth, key);
  row.question = kQuestion;
  row.answer_prefix = kPrefix;
  row.answers = {str(key)};
  row.max_new_tokens = kAnswerTokens;
  row.meta = {
      {"metric", {"all", "first_integer"}}, {"depth", depth}, {"stratum", depth}, {"sentences", n}};
  return row;
}

std::vector<EvalRow> rows(const SuiteInput& input) {
  std::vector<EvalRow> out;
  for (int length : input.lengths) {
    std::vector<int> keys;
    for (int i = 0; i < input.limit; ++i) {
      Rng rng = sample_rng(input, "passkey", length, i);
      int key = 0;
      do {
        key = 10000 + static_cast<int>(rng.below(90000));
      } while (std::find(keys.begin(), keys.end(), key) != keys.end());
      keys.push_back(key);
      out.push_back(sample(input, length, i, key));
    }
  }
  return out;
}

}  // namespace

extern constinit const Suite passkey_suite{
    "passkey", "a five-digit key between repeated sentences, at five depths", "", rows};

}  // namespace kvist
