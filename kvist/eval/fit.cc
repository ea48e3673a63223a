// SPDX-License-Identifier: MIT
// Bisection once a cell, then sample by sample.
#include "kvist/eval/fit.h"

#include <algorithm>

#include "kvist/core/error.h"

namespace kvist {
namespace {

constexpr int kProbe = 1 << 24;  // generators of probes lie apart from those of samples

}  // namespace

int prompt_tokens(const SuiteInput& input, const FitSample& sample) {
  return input.count_tokens(sample.context + sample.question + sample.answer_prefix);
}

std::vector<EvalRow> fitted_rows(const SuiteInput& input, int length, const FitTask& task) {
  const auto fits = [&](const FitSample& sample) {
    return prompt_tokens(input, sample) + task.generate <= length;
  };
  const auto probe = [&](int n) {
    Rng rng = sample_rng(input, task.task, length, kProbe + n);
    return fits(task.make(n, rng));
  };
  const int n_units =
      largest_fit(task.step, std::max(task.most, 2 * task.step), probe, task.task, length);
  std::vector<EvalRow> rows;
  for (int i = 0; i < input.limit; ++i) {
    FitSample sample;
    int n = n_units;
    for (;; n -= task.step) {
      if (n < std::min(task.step, n_units)) {
        throw Error(ErrorKind::invalid_argument,
                    str(task.task, " at ", length, " tokens: sample ", i, " does not fit with ",
                        n + task.step, " units"));
      }
      Rng rng = sample_rng(input, task.task, length, i);
      sample = task.make(n, rng);
      if (fits(sample)) break;
    }
    EvalRow& row = rows.emplace_back();
    row.suite = task.suite;
    row.task = task.task;
    row.id = sample_id(task.version, input, i);
    row.length = length;
    row.context = std::move(sample.context);
    row.question = std::move(sample.question);
    row.answer_prefix = std::move(sample.answer_prefix);
    row.answers = sample.answers;
    row.max_new_tokens = task.generate;
    row.meta = std::move(sample.meta);
    row.meta["metric"] = task.metric;
    row.meta["units"] = n;
  }
  return rows;
}

}  // namespace kvist
