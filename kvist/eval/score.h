// SPDX-License-Identifier: MIT
// Scorers: the text of a prediction and the answers of its row to a number from 0 to 1.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvist/eval/row.h"

namespace kvist {

struct Metric {
  const char* name;
  const char* summary;
  double (*score)(const std::string& prediction, const EvalRow& row);
};

// RULER: all, part. Passkey: first_integer. LongBench: count, retrieval, classification, code_sim.
std::span<const Metric> metrics();
// Throws invalid_argument naming the metrics there are.
const Metric& find_metric(std::string_view name);
// Throws invalid_argument where the row names no metric, one that does not exist, or lacks what its
// metric needs.
void require_metrics(const EvalRow& row);

// Strip, control characters to line breaks, strip: as RULER reads a prediction.
std::string ruler_clean(std::string_view text);

// 100 * mean, rounded to two decimals: how benchmarks store a task.
double task_score(std::span<const double> scores);

}  // namespace kvist
