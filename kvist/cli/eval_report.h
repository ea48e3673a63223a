// SPDX-License-Identifier: MIT
// What an evaluation found, as a table for terminals, Markdown, JSON and one page.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvist/eval/summary.h"

namespace kvist {

struct EvalReport {
  std::string title;           // "passkey"
  nlohmann::ordered_json run;  // model, hashes, options: everything that a number depends on
  Summary summary;
};

// The columns of every table, and a method's cells in them.
std::vector<std::string> report_head(const CellSummary& cell);
std::vector<std::string> report_row(const MethodSummary& method);
// Sentences under the tables: what could not be measured, how many comparisons were made.
std::vector<std::string> report_notes(const EvalReport& report);

std::string report_text(const EvalReport& report);
std::string report_markdown(const EvalReport& report);
nlohmann::ordered_json report_json(const EvalReport& report);
// Self-contained: no script, nothing is fetched.
std::string report_page(const EvalReport& report);

// One line a prediction and metric, for scores.jsonl.
std::string scores_lines(const Summary& summary);

// Cells of a table: a dash where nothing was measured.
std::string ms_or_dash(double ms);
std::string bytes_or_dash(uint64_t bytes);

// A spec without what it removes: methods of a family differ in their budget.
std::string family_of(const std::string& method);

}  // namespace kvist
