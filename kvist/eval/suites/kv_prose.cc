// SPDX-License-Identifier: MIT
// Suites over prose: many questions to one document, finding a passage, counting passages.
#include <algorithm>
#include <set>

#include "kvist/core/error.h"
#include "kvist/eval/fit.h"
#include "kvist/eval/prose.h"
#include "kvist/eval/suites/ruler_needles.h"
#include "kvist/eval/unicode.h"
#include "kvist/eval/words.h"

namespace kvist {
namespace {

// ---- kv-reuse: sixteen needles in one document, asked in turn

constexpr int kReuseNeedles = 16, kReuseAnswer = 32;

std::vector<EvalRow> reuse_of(const SuiteInput& input, int length, int index,
                              const std::vector<ProseDocument>& documents, const WordLists& words) {
  Rng rng = sample_rng(input, "kv-reuse", length, index);
  std::vector<std::string> keys, values, needles;
  while (static_cast<int>(keys.size()) < kReuseNeedles) {
    const std::string key = random_pair(rng, words), value = random_number(rng, 7);
    const auto taken = [](const std::vector<std::string>& all, const std::string& one) {
      return std::find(all.begin(), all.end(), one) != all.end();
    };
    if (taken(keys, key) || taken(values, value)) continue;
    keys.push_back(key);
    values.push_back(value);
    needles.push_back(str("One of the special magic numbers for ", key, " is: ", value, "."));
  }
  const auto hay = haystack(documents, rng, 8 * static_cast<size_t>(length));
  const auto question = [&](size_t i) {
    return str("What is the special magic number for ", keys[i],
               " mentioned in the provided text? ");
  };
  const auto prefix = [&](size_t i) {
    return str("The special magic number for ", keys[i], " mentioned in the provided text is");
  };
  const auto context = [&](int n) {
    std::vector<std::string> all(hay.begin(), hay.begin() + n);
    for (size_t i = needles.size(); i-- > 0;) {
      const size_t at = (2 * i + 1) * static_cast<size_t>(n) / (2 * needles.size());
      all.insert(all.begin() + static_cast<std::ptrdiff_t>(at), needles[i]);
    }
    return str(
        "Some special magic numbers are hidden within the following text. Make sure to "
        "memorize it. I will quiz you about the numbers afterwards.\n",
        joined(all, " "), "\n");
  };
  const int n = largest_fit(
      1, static_cast<int>(hay.size()),
      [&](int sentences_held) {
        return input.count_tokens(context(sentences_held) + question(0) + prefix(0)) +
                   kReuseAnswer + 16 <=
               length;  // the other keys may take a few tokens more
      },
      "kv-reuse", length);
  std::vector<EvalRow> out;
  for (size_t i = 0; i < keys.size(); ++i) {
    EvalRow& row = out.emplace_back();
    row.suite = row.task = "kv-reuse";
    row.id = str(sample_id(1, input, index), "-", i);
    row.length = length;
    row.context = context(n);
    row.question = question(i);
    row.answer_prefix = prefix(i);
    row.answers = {values[i]};
    row.max_new_tokens = kReuseAnswer;
    row.meta = {{"metric", "all"},
                {"depth", (2.0 * static_cast<double>(i) + 1) / (2.0 * kReuseNeedles)}};
  }
  return out;
}

std::vector<EvalRow> reuse_rows(const SuiteInput& input) {
  const auto documents = prose_documents(input.data);
  const WordLists words = word_lists(input.data);
  std::vector<EvalRow> out;
  for (int length : input.lengths) {
    for (int i = 0; i < input.limit; ++i) {
      auto some = reuse_of(input, length, i, documents, words);
      std::move(some.begin(), some.end(), std::back_inserter(out));
    }
  }
  return out;
}

// ---- passages

// Whole sentences, about n_words of them, one passage after another.
std::vector<std::vector<std::string>> passages(const std::vector<ProseDocument>& documents,
                                               Rng& rng, size_t n_passages, size_t n_words) {
  const auto all = haystack(documents, rng, 10 * n_passages * n_words + 4000);
  std::vector<std::vector<std::string>> out(1);
  size_t words = 0;
  for (const std::string& sentence : all) {
    if (words >= n_words) {
      out.emplace_back();
      words = 0;
    }
    out.back().push_back(sentence);
    words += split_words(sentence).size();
  }
  out.pop_back();  // may be too short
  if (out.size() < n_passages)
    throw Error(ErrorKind::invalid_argument,
                str("prose for ", out.size(), " passages, expected ", n_passages));
  out.resize(n_passages);
  if (std::set(out.begin(), out.end()).size() < n_passages)
    throw Error(ErrorKind::invalid_argument, "the prose is too short: passages come again");
  return out;
}

// Without three of its longest words, which say what it is about.
std::string blurred(const std::string& sentence) {
  std::vector<std::string> words;
  for (std::string_view word : split_words(sentence)) words.emplace_back(word);
  for (int i = 0; i < 3; ++i) {
    words.erase(std::max_element(
        words.begin(), words.end(),
        [](const std::string& a, const std::string& b) { return a.size() < b.size(); }));
  }
  return joined(words, " ");
}

std::string numbered_passages(const std::vector<std::vector<std::string>>& all) {
  std::string out;
  for (size_t i = 0; i < all.size(); ++i)
    out += str(i == 0 ? "" : "\n\n", "Paragraph ", i + 1, ": ", joined(all[i], " "));
  return out;
}

FitSample retrieval_sample(const std::vector<ProseDocument>& documents, int n, Rng& rng) {
  const auto all = passages(documents, rng, static_cast<size_t>(n), n < 30 ? 60 : 200);
  size_t wanted = 0;
  std::string sentence;
  do {  // one with words to spare
    wanted = rng.below(all.size());
    sentence = all[wanted][rng.below(all[wanted].size())];
  } while (split_words(sentence).size() < 8);
  FitSample s;
  s.context = str("Here are ", n,
                  " paragraphs from old speeches, along with a sentence. Please "
                  "determine which paragraph the sentence is from.\n\n",
                  numbered_passages(all), "\n\n");
  s.question =
      str("The following is the sentence, with some words left out.\n\n", blurred(sentence),
          "\n\nPlease enter the number of the paragraph that the sentence is from. The answer "
          "format must be like \"Paragraph 1\", \"Paragraph 2\", etc.\n\n");
  s.answer_prefix = "The answer is: ";
  s.answers = {str("Paragraph ", wanted + 1)};
  s.meta["depth"] = static_cast<double>(wanted) / n;
  return s;
}

FitSample count_sample(const std::vector<ProseDocument>& documents, int n, Rng& rng) {
  const size_t distinct = 1 + rng.below(static_cast<uint64_t>(n));
  auto all = passages(documents, rng, distinct, n < 30 ? 40 : 100);
  while (all.size() < static_cast<size_t>(n)) all.push_back(all[rng.below(distinct)]);
  shuffle(std::span(all), rng);
  FitSample s;
  s.context =
      str("There are some paragraphs below from old speeches. Some of them may be duplicates. "
          "Please read them and determine how many unique paragraphs there are after removing "
          "duplicates.\n\n",
          numbered_passages(all), "\n\n");
  s.question =
      "Please enter the final count of unique paragraphs after removing duplicates. The output "
      "format "
      "should only contain the number, such as 1, 2, 3, and so on.\n\n";
  s.answer_prefix = "The final answer is: ";
  s.answers = {str(distinct)};
  return s;
}

using MakeSample = FitSample (*)(const std::vector<ProseDocument>&, int, Rng&);

std::vector<EvalRow> passage_rows(const SuiteInput& input, const char* name, const char* metric,
                                  MakeSample make) {
  const auto documents = prose_documents(input.data);
  std::vector<EvalRow> out;
  for (int length : input.lengths) {
    FitTask task{.suite = name, .task = name, .metric = metric, .generate = 16, .step = 2};
    task.most = 30;
    task.make = [&](int n, Rng& rng) { return make(documents, n, rng); };
    auto some = fitted_rows(input, length, task);
    std::move(some.begin(), some.end(), std::back_inserter(out));
  }
  return out;
}

std::vector<EvalRow> retrieval_rows(const SuiteInput& input) {
  return passage_rows(input, "kv-retrieval", "retrieval", retrieval_sample);
}
std::vector<EvalRow> count_rows(const SuiteInput& input) {
  return passage_rows(input, "kv-count", "count", count_sample);
}

}  // namespace

extern constinit const Suite kv_reuse_suite{
    "kv-reuse", "sixteen needles in one document, sixteen questions to one cache", "prose, words",
    reuse_rows};
extern constinit const Suite kv_retrieval_suite{
    "kv-retrieval", "which of up to 30 passages a sentence is from", "prose", retrieval_rows};
extern constinit const Suite kv_count_suite{"kv-count", "how many of up to 30 passages differ",
                                            "prose", count_rows};

}  // namespace kvist
