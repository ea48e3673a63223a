// SPDX-License-Identifier: MIT
// The rules of RULER and LongBench.
#include "kvist/eval/score.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "kvist/core/error.h"
#include "kvist/eval/similarity.h"
#include "kvist/eval/unicode.h"

namespace kvist {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::vector<std::string> digit_runs(std::string_view text) {
  std::vector<std::string> runs;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && is_digit(text[end])) ++end;
    if (end > at) runs.emplace_back(text.substr(at, end - at));
    at = std::max(end, at + 1);
  }
  return runs;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

double found_share(const std::string& prediction, const EvalRow& row) {
  const std::string text = lower_case(ruler_clean(prediction));
  const auto answers = row.answer_list();
  double found = 0;
  for (const std::string& answer : answers) found += contains(text, lower_case(answer));
  return found / static_cast<double>(answers.size());
}

double any_found(const std::string& prediction, const EvalRow& row) {
  return found_share(prediction, row) > 0;
}

double first_integer(const std::string& prediction, const EvalRow& row) {
  const auto runs = digit_runs(prediction);
  return !runs.empty() && runs.front() == row.answer_list().front();
}

// Share of the numbers in the prediction that equal `gold`, as text.
double share_of_numbers(const std::string& prediction, const std::string& gold) {
  const auto runs = digit_runs(prediction);
  if (runs.empty()) return 0;
  return static_cast<double>(std::count(runs.begin(), runs.end(), gold)) /
         static_cast<double>(runs.size());
}

double best_of(const EvalRow& row, const std::function<double(const std::string&)>& score) {
  double best = 0;
  for (const std::string& answer : row.answer_list()) best = std::max(best, score(answer));
  return best;
}

double count(const std::string& prediction, const EvalRow& row) {
  return best_of(row, [&](const std::string& gold) { return share_of_numbers(prediction, gold); });
}

double retrieval(const std::string& prediction, const EvalRow& row) {
  return best_of(row, [&](const std::string& gold) {
    const std::string mark = "Paragraph ";
    const size_t at = gold.find(mark);
    const auto runs = digit_runs(at == std::string::npos ? gold : gold.substr(at + mark.size()));
    return runs.empty() ? 0 : share_of_numbers(prediction, runs.front());
  });
}

// LongBench drops matches that are parts of the gold while it walks over them, so that each removal
// skips the next match; scores depend on it.
double classification(const std::string& prediction, const EvalRow& row) {
  return best_of(row, [&](const std::string& gold) {
    std::vector<std::string> matches;
    for (const std::string& one : *row.all_classes)
      if (contains(prediction, one)) matches.push_back(one);
    for (size_t i = 0; i < matches.size(); ++i) {
      if (matches[i] != gold && contains(gold, matches[i]))
        matches.erase(matches.begin() + static_cast<std::ptrdiff_t>(i));
    }
    const bool hit = std::find(matches.begin(), matches.end(), gold) != matches.end();
    return hit ? 1.0 / static_cast<double>(matches.size()) : 0;
  });
}

// LongBench's line of a completion, and how like the gold it is.
double code_similarity(const std::string& prediction, const EvalRow& row) {
  const std::string line = code_line(prediction);
  return best_of(row, [&](const std::string& gold) { return similarity(line, gold); });
}

constexpr Metric kMetrics[] = {
    {"all", "share of the answers that occur", found_share},
    {"part", "1 where any answer occurs", any_found},
    {"first_integer", "1 where the first number is the answer", first_integer},
    {"count", "share of the numbers that are the answer", count},
    {"retrieval", "the same, with the number of the paragraph", retrieval},
    {"code_sim", "likeness of the first line of code, by its matching blocks", code_similarity},
    {"classification", "1 over the classes named, where the right one is", classification},
};

}  // namespace

std::span<const Metric> metrics() { return kMetrics; }

const Metric& find_metric(std::string_view name) {
  std::string known;
  for (const Metric& metric : kMetrics) {
    if (metric.name == name) return metric;
    known += str(known.empty() ? "" : ", ", metric.name);
  }
  throw Error(ErrorKind::invalid_argument,
              str("unknown metric ", quoted(name), ", expected one of ", known));
}

void require_metrics(const EvalRow& row) {
  const auto names = row.metrics();
  if (names.empty())
    throw Error(ErrorKind::invalid_argument, "\"meta\" has no \"metric\", which says how to score");
  for (const std::string& name : names) {
    const Metric& metric = find_metric(name);
    if (!row.answers.is_array())
      throw Error(ErrorKind::invalid_argument, str("metric ", name, " needs a list of answers"));
    if (metric.score == classification && !row.all_classes)
      throw Error(ErrorKind::invalid_argument, str("metric ", name, " needs \"all_classes\""));
  }
}

std::string ruler_clean(std::string_view text) {
  std::string out(stripped(text));
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20) c = '\n';
  return std::string(stripped(out));
}

double task_score(std::span<const double> scores) {
  double sum = 0;
  for (double score : scores) sum += score;
  return scores.empty() ? 0 : std::round(1e4 * sum / static_cast<double>(scores.size())) / 100;
}

}  // namespace kvist
