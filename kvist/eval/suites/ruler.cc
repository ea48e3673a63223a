// SPDX-License-Identifier: MIT
// RULER (arXiv:2404.06654) on our own words and prose: needles, variable chains, common and
// frequent words.
#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <set>

#include "kvist/core/error.h"
#include "kvist/eval/fit.h"
#include "kvist/eval/prose.h"
#include "kvist/eval/suites/ruler_needles.h"
#include "kvist/eval/words.h"

namespace kvist {
namespace {

constexpr const char* kSuite = "kv-ruler";
constexpr int kHops = 4;

// ---- variable tracking

struct Chain {
  std::vector<std::string> names;
  std::string value;
};

Chain random_chain(Rng& rng, int letters) {
  Chain chain;
  while (static_cast<int>(chain.names.size()) <= kHops) {
    const std::string name = random_letters(rng, letters, 'A');
    const bool taken = std::find(chain.names.begin(), chain.names.end(), name) != chain.names.end();
    if (!taken && name != "VAR") chain.names.push_back(name);
  }
  chain.value = str(10000 + rng.below(89999));
  return chain;
}

std::string chain_text(const Chain& chain, int n_lines, Rng& rng) {
  std::vector<std::string> lines(static_cast<size_t>(n_lines), kNoiseLine);
  const auto at = distinct_indexes(rng, chain.names.size(), lines.size());
  for (size_t i = chain.names.size(); i-- > 0;) {
    const std::string source = i == 0 ? chain.value : str("VAR ", chain.names[i - 1]);
    // The original's assignments end in a space.
    lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(at[i]),
                 str("VAR ", chain.names[i], " = ", source, i == 0 ? "" : " "));
  }
  return joined(lines, "\n");
}

FitSample chain_sample(const Chain& chain, int n_lines, Rng& rng) {
  FitSample s;
  s.context =
      str("Memorize and track the chain(s) of variable assignment hidden in the following "
          "text.\n\n",
          chain_text(chain, n_lines, rng), "\n");
  s.question = str("Question: Find all variables that are assigned the value ", chain.value,
                   " in the text above. ");
  s.answer_prefix =
      str("Answer: According to the chain(s) of variable assignment in the text above, ", kHops + 1,
          " variables are assigned the value ", chain.value, ", they are: ");
  s.answers = chain.names;
  return s;
}

// A worked example of at most 500 tokens; none where the prompt is too short to hold it.
std::string chain_example(const SuiteInput& input, int length) {
  if (length < 1024) return "";
  constexpr int kTokens = 500;
  const auto make = [&](int n) {
    Rng rng = sample_rng(input, "vt/example", length, 0);
    Chain chain = random_chain(rng, 3);
    chain.value = "12345";
    return chain_sample(chain, n, rng);
  };
  const auto text = [](const FitSample& s) {
    return str(s.context, s.question, s.answer_prefix, joined(s.answers, " "), "\n\n");
  };
  const int n = largest_fit(
      kHops + 1, kTokens,
      [&](int lines) { return input.count_tokens(text(make(lines))) <= kTokens; }, "vt's example",
      length);
  return text(make(n));
}

// Whole words, all at once, so that no replacement is replaced.
std::string renamed(const std::string& text, const std::map<std::string, std::string>& names) {
  std::string out, word;
  const auto flush = [&] {
    const auto found = names.find(word);
    out += found == names.end() ? word : found->second;
    word.clear();
  };
  for (char c : text) {
    if ((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) {
      word += c;
    } else {
      flush();
      out += c;
    }
  }
  flush();
  return out;
}

std::string fresh_example(const std::string& example, Rng& rng) {
  if (example.empty()) return "";
  const Chain fresh = random_chain(rng, 3);
  std::map<std::string, std::string> names{{"12345", fresh.value}};
  size_t next = 0;
  for (size_t at = example.find("VAR "); at != std::string::npos;
       at = example.find("VAR ", at + 1)) {
    const std::string name = example.substr(at + 4, 3);
    if (!names.contains(name)) names[name] = fresh.names[next++];
  }
  return renamed(example, names);
}

std::vector<EvalRow> variable_rows(const SuiteInput& input, int length) {
  const std::string example = chain_example(input, length);
  FitTask task{.suite = kSuite, .task = "vt", .generate = 30};
  task.step = length < 4096 ? 5 : 10;
  task.most = 3 * length / 19;
  task.make = [&](int n, Rng& rng) {
    const std::string before = fresh_example(example, rng);
    FitSample s = chain_sample(random_chain(rng, 5), n, rng);
    s.context = before + s.context;
    s.meta["example"] = !example.empty();
    return s;
  };
  return fitted_rows(input, length, task);
}

// ---- common words

struct Counts {
  int common, rare;
};

constexpr const char* kCommonAsk =
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize "
    "the ones that appear most often.\n";
constexpr const char* kCommonQuestion =
    "Question: What are the 10 most common words in the above list? ";
constexpr const char* kCommonPrefix =
    "Answer: The top 10 words that appear most often in the list are:";

std::string numbered(const std::vector<std::string>& words) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) out += str(i == 0 ? "" : " ", i + 1, ". ", words[i]);
  return out;
}

// n distinct words, the first ten of them more often.
FitSample common_sample(const std::vector<std::string>& words, int n, Counts counts, Rng& rng) {
  std::vector<std::string> distinct;
  for (size_t at : distinct_indexes(rng, static_cast<size_t>(n), words.size()))
    distinct.push_back(words[at]);
  shuffle(std::span(distinct), rng);
  std::vector<std::string> all;
  for (size_t i = 0; i < distinct.size(); ++i)
    all.insert(all.end(), static_cast<size_t>(i < 10 ? counts.common : counts.rare), distinct[i]);
  shuffle(std::span(all), rng);
  FitSample s;
  s.context = str(kCommonAsk, numbered(all), "\n");
  s.question = kCommonQuestion;
  s.answer_prefix = kCommonPrefix;
  s.answers.assign(distinct.begin(), distinct.begin() + 10);
  return s;
}

std::vector<EvalRow> common_rows(const SuiteInput& input, int length) {
  const std::vector<std::string> words = word_lists(input.data).all();
  const bool small = length < 4096;
  FitTask task{.suite = kSuite, .task = "cwe", .generate = 120, .step = 10};
  task.most = std::min(2 * length / 4, static_cast<int>(words.size()));
  task.make = [&, small](int n, Rng& rng) {
    const FitSample example =
        common_sample(words, small ? 20 : 40, small ? Counts{3, 1} : Counts{10, 3}, rng);
    FitSample s = common_sample(words, n, small ? Counts{6, 1} : Counts{30, 3}, rng);
    s.context = str(example.context, example.question, example.answer_prefix, " ",
                    numbered(example.answers), "\n", s.context);
    return s;
  };
  return fitted_rows(input, length, task);
}

// ---- frequent words

constexpr int kFrequentAnswer = 50;

FitSample frequent_sample(const std::vector<std::string>& vocabulary, int n, Rng& rng) {
  std::vector<std::string> all;
  const std::vector<int> counts = zipf_counts(n, static_cast<int>(vocabulary.size()));
  for (size_t rank = 0; rank < vocabulary.size(); ++rank)
    all.insert(all.end(), static_cast<size_t>(counts[rank]), vocabulary[rank]);
  shuffle(std::span(all), rng);
  FitSample s;
  s.context =
      str("Read the following coded text and track the frequency of each coded word. Find "
          "the three most frequently appeared coded words. ",
          joined(all, " "), "\n");
  s.question =
      "Question: Do not provide any explanation. Please ignore the dots '....'. What are the three "
      "most frequently appeared words in the above coded text? ";
  s.answer_prefix =
      "Answer: According to the coded text above, the three most frequently appeared words are:";
  s.answers.assign(vocabulary.begin() + 1, vocabulary.begin() + 4);
  return s;
}

std::vector<std::string> coded_vocabulary(int size, Rng& rng) {
  std::set<std::string> distinct;
  while (static_cast<int>(distinct.size()) < size) distinct.insert(random_letters(rng, 6, 'a'));
  std::vector<std::string> out(distinct.begin(), distinct.end());
  shuffle(std::span(out), rng);
  out.front() = "...";
  return out;
}

std::vector<EvalRow> frequent_rows(const SuiteInput& input, int length) {
  const FrequentSizes sizes = frequent_sizes(length);
  if (sizes.vocabulary < 4)
    throw Error(ErrorKind::invalid_argument, str("fwe at ", length, " tokens: too short"));
  FitTask task{.suite = kSuite, .task = "fwe", .generate = kFrequentAnswer};
  task.most = 160;
  task.make = [&](int n, Rng& rng) {
    const auto vocabulary = coded_vocabulary(sizes.vocabulary, rng);
    const int n_words = sizes.first + n * sizes.step;
    FitSample s = frequent_sample(vocabulary, n_words, rng);
    s.meta["words"] = n_words;
    return s;
  };
  return fitted_rows(input, length, task);
}

// ----

const std::vector<std::string>& task_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = ruler_needle_tasks();
    for (const char* name : {"vt", "cwe", "fwe"}) all.emplace_back(name);
    return all;
  }();
  return names;
}

std::vector<EvalRow> rows(const SuiteInput& input) {
  std::vector<EvalRow> out;
  for (const std::string& task : chosen_tasks(input, task_names())) {
    auto some = ruler_needle_rows(input, task);
    std::move(some.begin(), some.end(), std::back_inserter(out));
    for (int length : input.lengths) {
      some.clear();
      if (task == "vt") some = variable_rows(input, length);
      if (task == "cwe") some = common_rows(input, length);
      if (task == "fwe") some = frequent_rows(input, length);
      std::move(some.begin(), some.end(), std::back_inserter(out));
    }
  }
  return out;
}

}  // namespace

std::vector<int> zipf_counts(int n, int vocabulary) {
  const double zeta = std::numbers::pi * std::numbers::pi / 6;
  std::vector<int> counts;
  for (int rank = 1; rank <= vocabulary; ++rank)
    counts.push_back(static_cast<int>(n / (zeta * rank * rank)));
  return counts;
}

FrequentSizes frequent_sizes(int length) {
  const int room = length - kFrequentAnswer;
  return {room / 50, room / 6, std::max(1, room / 32)};
}

extern constinit const Suite kv_ruler_suite{
    "kv-ruler", "RULER's needles, variable chains, common and frequent words, on our own words",
    "words, prose", rows};

}  // namespace kvist
