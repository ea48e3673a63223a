// SPDX-License-Identifier: MIT
// One sentence with an access code in prose, at five depths: fifteen needles, the same at every
// length.
#include "kvist/core/error.h"
#include "kvist/eval/prose.h"
#include "kvist/eval/suite.h"

namespace kvist {
namespace {

constexpr int kVersion = 1, kAnswerTokens = 24;
constexpr int kDepths[] = {0, 25, 50, 75, 100};
constexpr const char* kCities[] = {"Lisbon",   "Nairobi", "Toronto",    "Oslo",     "Lima",
                                   "Hanoi",    "Vienna",  "Casablanca", "Denver",   "Jakarta",
                                   "Helsinki", "Manila",  "Dublin",     "Santiago", "Warsaw"};
constexpr int kNeedles = 15;

struct Needle {
  std::string city, code;
  std::string sentence() const { return str("The access code of ", city, " is ", code, "."); }
  std::string question() const { return str("What is the access code of ", city, "?"); }
  std::string prefix() const { return str(" The access code of ", city, " is"); }
};

Needle needle(const SuiteInput& input, int which) {
  Rng rng = sample_rng(input, "needle", 0, which);
  return {kCities[which], str(100000 + rng.below(900000))};
}

// The needle goes before the sentence in which the first depth % of the text's bytes end.
std::string context(const std::vector<std::string>& hay, int n, int depth, const Needle& needle) {
  const std::vector<std::string> text(hay.begin(), hay.begin() + n);
  const size_t target = joined(text, " ").size() * static_cast<size_t>(depth) / 100;
  size_t before = 0, size = 0;
  while (before < text.size() && size + text[before].size() <= target)
    size += text[before++].size() + 1;
  if (depth == 100) before = text.size();
  std::vector<std::string> all(text);
  all.insert(all.begin() + static_cast<std::ptrdiff_t>(before), needle.sentence());
  return joined(all, " ");
}

EvalRow sample(const SuiteInput& input, const std::vector<std::string>& hay, int length, int index,
               const Needle& needle) {
  const int depth = kDepths[index % 5];
  const auto fits = [&](int n) {
    return input.count_tokens(
               str(context(hay, n, depth, needle), "\n", needle.question(), needle.prefix())) +
               kAnswerTokens <=
           length;
  };
  const int n = largest_fit(1, static_cast<int>(hay.size()), fits, "needle", length);
  EvalRow row;
  row.suite = row.task = "needle";
  row.id = sample_id(kVersion, input, index);
  row.length = length;
  row.context = context(hay, n, depth, needle) + "\n";
  row.question = needle.question();
  row.answer_prefix = needle.prefix();
  row.answers = {needle.code};
  row.max_new_tokens = kAnswerTokens;
  row.meta = {{"metric", "all"}, {"depth", depth / 100.0}, {"needle", needle.city}};
  return row;
}

std::vector<EvalRow> rows(const SuiteInput& input) {
  const auto documents = prose_documents(input.data);
  if (input.limit > 5 * kNeedles) {
    throw Error(ErrorKind::invalid_argument,
                str("needle has ", 5 * kNeedles, " rows a length, --limit asks for ", input.limit));
  }
  std::vector<EvalRow> out;
  for (int length : input.lengths) {
    for (int i = 0; i < input.limit; ++i) {
      const Needle one = needle(input, i / 5);
      Rng rng = sample_rng(input, "needle/haystack", 0, i / 5);
      // More than enough: a token has at least a byte, and rarely more than eight.
      std::vector<std::string> hay = haystack(documents, rng, 8 * static_cast<size_t>(length));
      std::erase_if(hay, [&](const std::string& sentence) {
        return sentence.find(one.code) != std::string::npos ||
               sentence.find("access code") != std::string::npos;
      });
      out.push_back(sample(input, hay, length, i, one));
    }
  }
  return out;
}

}  // namespace

extern constinit const Suite needle_suite{
    "needle", "an access code in prose, at five depths: 15 needles, the same at every length",
    "prose", rows};

}  // namespace kvist
