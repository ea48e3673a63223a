// SPDX-License-Identifier: MIT
// Contexts handed round within a cell.
#include "kvist/eval/shuffle.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "kvist/core/error.h"

namespace kvist {

std::vector<EvalRow> shuffled_contexts(const std::vector<EvalRow>& rows) {
  std::map<std::tuple<std::string, std::string, std::optional<int>>, std::vector<const EvalRow*>>
      cells;  // the first row of each group
  for (const EvalRow& row : rows) {
    auto& groups = cells[{row.suite, row.task, row.length}];
    if (std::none_of(groups.begin(), groups.end(),
                     [&](const EvalRow* one) { return one->group == row.group; }))
      groups.push_back(&row);
  }
  std::vector<EvalRow> out;
  for (const EvalRow& row : rows) {
    const auto& groups = cells[{row.suite, row.task, row.length}];
    if (groups.size() < 2) {
      throw Error(ErrorKind::invalid_argument,
                  str(row.name(), ": no other context to shuffle with; raise --limit"));
    }
    const auto own = std::find_if(groups.begin(), groups.end(),
                                  [&](const EvalRow* one) { return one->group == row.group; });
    const auto next = own + 1 == groups.end() ? groups.begin() : own + 1;
    EvalRow& moved = out.emplace_back(row);
    moved.suite += "-shuffled";
    moved.context = (*next)->context;
    moved.meta["context_of"] = (*next)->id;
    seal(&moved);
  }
  return out;
}

}  // namespace kvist
