// SPDX-License-Identifier: MIT
// RULER's eight needle tasks (arXiv:2404.06654): keys and values in noise, prose or other needles.
#include "kvist/eval/suites/ruler_needles.h"

#include <algorithm>
#include <cmath>

#include "kvist/core/error.h"
#include "kvist/eval/fit.h"
#include "kvist/eval/prose.h"
#include "kvist/eval/unicode.h"
#include "kvist/eval/words.h"

namespace kvist {
namespace {

enum class Hay { noise, essay, needles };
enum class Kind { words, numbers, uuids };

struct Form {
  const char* task;
  Hay hay;
  Kind keys, values;
  int n_keys, n_values, n_queries;
};

constexpr Form kForms[] = {
    {"niah_single_1", Hay::noise, Kind::words, Kind::numbers, 1, 1, 1},
    {"niah_single_2", Hay::essay, Kind::words, Kind::numbers, 1, 1, 1},
    {"niah_single_3", Hay::essay, Kind::words, Kind::uuids, 1, 1, 1},
    {"niah_multikey_1", Hay::essay, Kind::words, Kind::numbers, 4, 1, 1},
    {"niah_multikey_2", Hay::needles, Kind::words, Kind::numbers, 1, 1, 1},
    {"niah_multikey_3", Hay::needles, Kind::uuids, Kind::uuids, 1, 1, 1},
    {"niah_multivalue", Hay::essay, Kind::words, Kind::numbers, 1, 4, 1},
    {"niah_multiquery", Hay::essay, Kind::words, Kind::numbers, 4, 1, 4},
};
constexpr int kGenerate = 128;

const char* plural(Kind kind) {
  return kind == Kind::numbers ? "numbers" : kind == Kind::words ? "words" : "uuids";
}

class Maker {
 public:
  Maker(const SuiteInput& input, const Form& form) : form_(form) {
    if (form.keys == Kind::words || form.values == Kind::words) words_ = word_lists(input.data);
    if (form.hay != Hay::essay) return;
    Rng rng = sample_rng(input, "essay", 0, 0);
    for (const std::string& sentence :
         haystack(prose_documents(input.data), rng, 8 * longest(input))) {
      for (std::string_view word : split_words(sentence)) essay_.emplace_back(word);
    }
  }

  FitSample make(int n, Rng& rng) const {
    for (;;) {  // a value or key that the haystack holds by chance is drawn again
      std::vector<std::string> taken;
      FitSample sample;
      if (attempt(n, rng, &taken, &sample)) return sample;
    }
  }

 private:
  static size_t longest(const SuiteInput& input) {
    return static_cast<size_t>(*std::max_element(input.lengths.begin(), input.lengths.end()));
  }

  std::string draw(Kind kind, Rng& rng, std::vector<std::string>* taken) const {
    std::string text;
    do {
      text = kind == Kind::numbers ? random_number(rng, 7)
             : kind == Kind::uuids ? random_uuid(rng)
                                   : random_pair(rng, words_);
    } while (std::find(taken->begin(), taken->end(), text) != taken->end());
    taken->push_back(text);
    return text;
  }

  std::string needle(const std::string& key, const std::string& value) const {
    return str("One of the special magic ", plural(form_.values), " for ", key, " is: ", value,
               ".");
  }

  bool attempt(int n, Rng& rng, std::vector<std::string>* taken, FitSample* out) const {
    const int n_keys = std::max(form_.n_keys, form_.n_queries);
    std::vector<std::string> keys, needles;
    std::vector<std::vector<std::string>> values;
    for (int k = 0; k < n_keys; ++k) {
      keys.push_back(draw(form_.keys, rng, taken));
      values.emplace_back();
      for (int v = 0; v < form_.n_values; ++v) {
        values.back().push_back(draw(form_.values, rng, taken));
        needles.push_back(needle(keys.back(), values.back().back()));
      }
    }
    shuffle(std::span(needles), rng);
    std::vector<size_t> asked(keys.size());
    for (size_t i = 0; i < asked.size(); ++i) asked[i] = i;
    shuffle(std::span(asked), rng);
    asked.resize(static_cast<size_t>(form_.n_queries));
    std::vector<std::string> queries;
    for (size_t k : asked) {
      queries.push_back(keys[k]);
      out->answers.insert(out->answers.end(), values[k].begin(), values[k].end());
    }
    std::string text;
    if (!hide(n, rng, needles, *taken, &text, out)) return false;
    frame(text, queries, out);
    return true;
  }

  bool hide(int n, Rng& rng, const std::vector<std::string>& needles,
            const std::vector<std::string>& taken, std::string* text, FitSample* out) const {
    if (form_.hay == Hay::essay) return hide_in_essay(n, rng, needles, taken, text, out);
    std::vector<std::string> lines;
    std::vector<std::string> used = taken;
    for (int i = 0; i < n; ++i) {
      if (form_.hay == Hay::noise) {
        lines.emplace_back(kNoiseLine);
      } else {
        const std::string key = draw(form_.keys, rng, &used);
        lines.push_back(needle(key, draw(form_.values, rng, &used)));
      }
    }
    const auto at = distinct_indexes(rng, needles.size(), lines.size());
    out->meta["depth"] = static_cast<double>(at.front()) / n;
    for (size_t i = needles.size(); i-- > 0;)
      lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(at[i]), needles[i]);
    *text = joined(lines, "\n");
    return true;
  }

  bool hide_in_essay(int n, Rng& rng, const std::vector<std::string>& needles,
                     const std::vector<std::string>& taken, std::string* text,
                     FitSample* out) const {
    std::string essay;
    for (size_t i = 0; i < static_cast<size_t>(n); ++i)
      essay += str(i == 0 ? "" : " ", essay_[i % essay_.size()]);
    for (const std::string& word : taken)
      if (essay.find(word) != std::string::npos) return false;
    const auto parts = sentences(essay);
    std::vector<std::string> all(parts.begin(), parts.end());
    const auto depths = distinct_indexes(rng, needles.size(), 40);
    out->meta["depth"] = ruler_depth(depths.front()) / 100.0;
    for (size_t i = needles.size(); i-- > 0;) {
      const size_t at = parts.size() * static_cast<size_t>(ruler_depth(depths[i])) / 100;
      all.insert(all.begin() + static_cast<std::ptrdiff_t>(at), needles[i]);
    }
    *text = joined(all, " ");
    return true;
  }

  void frame(const std::string& text, const std::vector<std::string>& queries,
             FitSample* out) const {
    const bool one = form_.n_queries * form_.n_values == 1;
    std::string kind = plural(form_.values);
    if (one) kind.pop_back();
    std::string query;
    for (size_t i = 0; i < queries.size(); ++i) {
      const bool last = i + 1 == queries.size();
      query += str(i == 0 ? "" : last ? ", and " : ", ", queries[i]);
    }
    const char* some = one ? "A" : "Some";
    const char* are = one ? "is" : "are";
    out->context = str(some, " special magic ", kind, " ", are,
                       " hidden within the following text. Make sure to memorize it. I will quiz "
                       "you about the ",
                       kind, " afterwards.\n", text, "\n");
    out->question = str("What ", are, one ? "" : " all", " the special magic ", kind, " for ",
                        query, " mentioned in the provided text? ");
    out->answer_prefix =
        str("The special magic ", kind, " for ", query, " mentioned in the provided text ", are);
  }

  const Form& form_;
  WordLists words_;
  std::vector<std::string> essay_;  // words
};

FitTask task_of(const Form& form, int length, const Maker& maker) {
  FitTask task;
  task.suite = "kv-ruler";
  task.task = form.task;
  task.generate = kGenerate;
  task.make = [&maker](int n, Rng& rng) { return maker.make(n, rng); };
  if (form.hay == Hay::essay) {
    task.step = length < 4096 ? 50 : 500;
    task.most = 3 * length;
  } else {
    task.step = length < 4096 ? 5 : 25;
    task.most = 3 * length / 10;
  }
  return task;
}

}  // namespace

int ruler_depth(size_t i) {
  return static_cast<int>(std::nearbyint(100.0 * static_cast<double>(i) / 39));
}

std::vector<std::string> ruler_needle_tasks() {
  std::vector<std::string> names;
  for (const Form& form : kForms) names.emplace_back(form.task);
  return names;
}

std::vector<EvalRow> ruler_needle_rows(const SuiteInput& input, const std::string& task) {
  std::vector<EvalRow> rows;
  for (const Form& form : kForms) {
    if (form.task != task) continue;
    const Maker maker(input, form);
    for (int length : input.lengths) {
      auto some = fitted_rows(input, length, task_of(form, length, maker));
      std::move(some.begin(), some.end(), std::back_inserter(rows));
    }
  }
  return rows;
}

}  // namespace kvist
