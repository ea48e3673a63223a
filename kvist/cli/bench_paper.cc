// SPDX-License-Identifier: MIT
// kvist bench --paper: a paper's cells as a table or as JSON.
#include "kvist/cli/bench_paper.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "kvist/cli/terminal.h"
#include "kvist/core/error.h"
#include "kvist/methods/rank/footprint.h"
#include "kvist/methods/read/paper_cells.h"

namespace kvist {
namespace {

std::string ours(const PaperCell& cell) { return fmt::format("{:.3f}", cell.ours); }
std::string printed(const PaperCell& cell) { return fmt::format("{:.1f}", cell.paper); }

// One line for reads and capacity of a method on a model, which follow each other in `cells`.
std::string table_text(const std::vector<PaperCell>& cells) {
  Table table({"table, method, model", "reads %", "paper", "capacity %", "paper", ""});
  for (size_t i = 0; i + 1 < cells.size(); i += 2) {
    const PaperCell &reads = cells[i], &capacity = cells[i + 1];
    table.add({str(reads.table, "  ", reads.row, ", ", reads.column), ours(reads), printed(reads),
               ours(capacity), printed(capacity),
               reads.equal && capacity.equal ? "equal" : "differs"});
  }
  return table.text();
}

nlohmann::json to_json(const std::vector<PaperCell>& cells, int64_t equal) {
  nlohmann::json out{{"paper", "readkv"},
                     {"table_bytes", kPaperTableBytes},
                     {"equal", equal},
                     {"differ", static_cast<int64_t>(cells.size()) - equal},
                     {"cells", nlohmann::json::array()}};
  for (const PaperCell& cell : cells) {
    out["cells"].push_back({{"table", cell.table},
                            {"row", cell.row},
                            {"column", cell.column},
                            {"figure", cell.figure},
                            {"ours", cell.ours},
                            {"paper", cell.paper},
                            {"equal", cell.equal}});
  }
  return out;
}

}  // namespace

int bench_paper_readkv(const Context& context) {
  const std::vector<PaperCell> cells = paper_cells();
  const int64_t equal =
      std::count_if(cells.begin(), cells.end(), [](const PaperCell& c) { return c.equal; });
  if (context.json) {
    std::printf("%s\n", to_json(cells, equal).dump(1).c_str());
  } else {
    std::printf(
        "%s%s\n", table_text(cells).c_str(),
        str(equal, " of ", cells.size(), " figures equal the paper's to its one decimal").c_str());
  }
  return equal == static_cast<int64_t>(cells.size()) ? kDone : kBoundNotMet;
}

int bench_paper_varrate(const Context& context) {
  const std::vector<RankPaperCell> cells = rank_paper_cells();
  const int64_t equal =
      std::count_if(cells.begin(), cells.end(), [](const RankPaperCell& c) { return c.equal; });
  if (context.json) {
    nlohmann::json out{{"paper", "varrate"},
                       {"equal", equal},
                       {"differ", static_cast<int64_t>(cells.size()) - equal},
                       {"cells", nlohmann::json::array()}};
    for (const RankPaperCell& cell : cells)
      out["cells"].push_back({{"figure", cell.what},
                              {"ours", cell.ours},
                              {"paper", cell.paper},
                              {"equal", cell.equal}});
    std::printf("%s\n", out.dump(1).c_str());
  } else {
    Table table({"Llama-3.1-8B, 16,384 tokens", "%", "paper", ""});
    for (const RankPaperCell& cell : cells)
      table.add({cell.what, fmt::format("{:.4f}", cell.ours),
                 fmt::format("{:.{}f}", cell.paper, cell.decimals),
                 cell.equal ? "equal" : "differs"});
    std::printf("%s%s\n", table.text().c_str(),
                str(equal, " of ", cells.size(), " figures equal the paper's as printed").c_str());
  }
  return equal == static_cast<int64_t>(cells.size()) ? kDone : kBoundNotMet;
}

}  // namespace kvist
