// SPDX-License-Identifier: MIT
// Every read and capacity figure of Tables 2 and 6 of the ReadKV paper (arXiv:2610.11245), computed
// anew beside the printed one.
#pragma once

#include <string>
#include <vector>

#include "kvist/methods/read/ledger.h"

namespace kvist {

struct PaperModel {
  const char* name;
  ModelGeometry geometry;
};
// In the order of the tables' columns.
const std::vector<PaperModel>& paper_models();

struct PaperCell {
  int table = 0;
  std::string row;     // "ReadKV (8,4)†"
  std::string column;  // "Qwen2.5 7B"
  std::string figure;  // "reads" or "capacity"
  double ours = 0;     // percent of 16-bit keys and values, not rounded
  double paper = 0;    // as printed, one decimal
  bool equal = false;  // ours, rounded half up to one decimal, is the paper's
};

// The 154 cells, row by row: a document of 2,048 tokens, calls at T = 1 .. 2048.
std::vector<PaperCell> paper_cells(int64_t table_bytes = kPaperTableBytes);

}  // namespace kvist
