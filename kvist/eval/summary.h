// SPDX-License-Identifier: MIT
// What predictions come to: scores, intervals and costs, cell by cell and method by method.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvist/eval/prediction.h"
#include "kvist/eval/statistics.h"

namespace kvist {

// A prediction and what it is worth.
struct Scored {
  const EvalRow* row = nullptr;
  const Prediction* prediction = nullptr;
  double score = 0;           // by the row's first metric, unrounded
  std::vector<double> other;  // by its further metrics
};

// A method in one cell, or over all measurable cells.
struct MethodSummary {
  std::string method;
  int rows = 0;
  double score = 0;  // mean of rows, 0 to 1; over cells the mean of the cells
  std::vector<std::pair<std::string, double>> other;  // further metrics by name
  // Means; retained: stored bytes over those of f16, touched: of lines and tables.
  double n_kept = 0, retained = 0, read_share = 0, touched_share = 0;
  double stored_bytes = 0, allocated_bytes = 0;  // means
  // The most of any row; 0 where it is not known.
  uint64_t construct_bytes = 0, answering_bytes = 0, peak_rss_bytes = 0;
  Spread ttft_ms, decode_ms, construct_ms;
  double same_words = 0;        // share of answers equal to the uncompressed ones, token by token
  double first_difference = 0;  // median number of equal tokens before the first other one
  double one_token = 0;         // share of answers of at most one token
  // Against the uncompressed run on the same rows; absent for itself.
  std::optional<Interval> change;
  int wins = 0, losses = 0, ties = 0;
  double sign_p = 1;
  std::optional<double> kept_quality;  // absent where the cell is not measurable
};

struct CellSummary {
  std::string suite, task;
  std::optional<int> length;
  std::string metric;
  bool measurable = false;  // the interval of uncompressed - floor is above 0
  Interval above_floor;
  std::vector<MethodSummary> methods;  // uncompressed, floor, then as asked for
  std::string name() const;            // "niah_single_1 at 4,096"
};

struct Summary {
  std::vector<CellSummary> cells;
  std::vector<MethodSummary> overall;  // over measurable cells; empty where there is one cell
  std::vector<std::string> left_out;   // names of the others
  std::vector<Scored> scored;
};

struct SummaryOptions {
  std::vector<std::string> methods;  // of predictions, beside uncompressed and floor
  std::vector<std::string> same =
      {};  // those of them that remove nothing: they answer word for word
  std::string mode = "agnostic", boundary = "compressed-question";
  int replicates = 2000;
  uint64_t seed = 1;  // of the bootstrap
};

// Pairs by (suite, task, id, length) and checks fingerprint and hashes. Throws corrupt listing rows
// that one method lacks, or that were asked differently. Rows and predictions outlive the result.
Summary summarize(std::span<const EvalRow> rows, std::span<const Prediction> predictions,
                  const SummaryOptions& options);

}  // namespace kvist
