// SPDX-License-Identifier: MIT
// Numbers to cells, once for all tables.
#include "kvist/cli/eval_report.h"

#include <algorithm>
#include <regex>

#include "kvist/cli/terminal.h"
#include "kvist/core/error.h"
#include "kvist/eval/runner.h"

namespace kvist {
namespace {

using Json = nlohmann::ordered_json;

std::string share(double x) { return fmt::format("{:.1f} %", 100 * x); }
std::string points(double x) { return fmt::format("{:+.1f}", 100 * x); }
std::string rows_text(const std::vector<std::string>& cells) {
  std::string out = "|";
  for (const std::string& cell : cells) out += str(" ", cell, " |");
  return out + "\n";
}

Json json_of(const Spread& s) { return {{"median", s.median}, {"min", s.least}, {"max", s.most}}; }

Json json_of(const Interval& i) {
  return {{"mean", i.mean},   {"low", i.low},
          {"high", i.high},   {"verdict", i.verdict()},
          {"units", i.units}, {"replicates", i.replicates},
          {"seed", i.seed},   {"replicates_not_above_zero", i.not_above_zero}};
}

Json json_of(const MethodSummary& m) {
  Json out = {{"method", m.method},
              {"rows", m.rows},
              {"score", m.score},
              {"task_score", std::round(1e4 * m.score) / 100},
              {"kept_quality", m.kept_quality ? Json(*m.kept_quality) : Json(nullptr)},
              {"tokens_kept", m.n_kept},
              {"retained", m.retained},
              {"read_share", m.read_share},
              {"touched_share", m.touched_share},
              {"stored_bytes", m.stored_bytes},
              {"allocated_bytes", m.allocated_bytes},
              {"construct_bytes", m.construct_bytes},
              {"answering_bytes", m.answering_bytes},
              {"peak_rss_bytes", m.peak_rss_bytes},
              {"ttft_ms", json_of(m.ttft_ms)},
              {"decode_ms", json_of(m.decode_ms)},
              {"compression_ms", json_of(m.construct_ms)},
              {"same_words", m.same_words},
              {"first_difference", m.first_difference},
              {"one_token_answers", m.one_token}};
  for (const auto& [name, value] : m.other) out[name] = value;
  if (m.change) {
    out["change"] = json_of(*m.change);
    out["wins"] = m.wins;
    out["losses"] = m.losses;
    out["ties"] = m.ties;
    out["sign_test_p"] = m.sign_p;
  }
  return out;
}

Json json_of(const std::vector<MethodSummary>& methods) {
  Json out = Json::array();
  for (const MethodSummary& m : methods) out.push_back(json_of(m));
  return out;
}

CellSummary as_cell(const Summary& summary) {
  CellSummary cell;
  cell.task = cell.suite = "mean";
  cell.measurable = true;
  cell.methods = summary.overall;
  return cell;
}

std::string heading(const CellSummary& cell) {
  return str(cell.name(), cell.measurable ? "" : ": not measurable with this model");
}

}  // namespace

std::string ms_or_dash(double x) {
  return x <= 0 ? "–" : x < 10 ? fmt::format("{:.1f}", x) : fmt::format("{:.0f}", x);
}
std::string bytes_or_dash(uint64_t bytes) { return bytes == 0 ? "–" : human_bytes(bytes); }

std::vector<std::string> report_head(const CellSummary& cell) {
  std::vector<std::string> head{"method", "score"};
  for (const auto& [name, value] : cell.methods.front().other) head.push_back(name);
  for (const char* column :
       {"change, 95 %", "w–l–t", "p", "kept quality", "tokens", "retained", "read", "touched",
        "bytes", "answering", "RSS", "TTFT ms", "compress ms", "decode ms", "same words"})
    head.emplace_back(column);
  return head;
}

std::vector<std::string> report_row(const MethodSummary& m) {
  const std::string dash = "–";
  std::vector<std::string> row{m.method, share(m.score)};
  for (const auto& [name, value] : m.other) row.push_back(share(value));
  row.push_back(m.change ? str(points(m.change->mean), " [", points(m.change->low), ", ",
                               points(m.change->high), "]")
                         : dash);
  row.push_back(m.change ? str(m.wins, "–", m.losses, "–", m.ties) : dash);
  row.push_back(m.change ? fmt::format("{:.3g}", m.sign_p) : dash);
  row.push_back(m.kept_quality ? fmt::format("{:.2f}", *m.kept_quality) : dash);
  row.push_back(fmt::format("{:.0f}", m.n_kept));
  row.push_back(share(m.retained));
  row.push_back(share(m.read_share));
  row.push_back(m.touched_share > 0 ? share(m.touched_share) : dash);
  row.push_back(human_bytes(static_cast<uint64_t>(m.stored_bytes)));
  row.push_back(bytes_or_dash(m.answering_bytes));
  row.push_back(bytes_or_dash(m.peak_rss_bytes));
  row.push_back(ms_or_dash(m.ttft_ms.median));
  row.push_back(ms_or_dash(m.construct_ms.median));
  row.push_back(ms_or_dash(m.decode_ms.median));
  row.push_back(share(m.same_words));
  return row;
}

std::vector<std::string> report_notes(const EvalReport& report) {
  const Summary& s = report.summary;
  std::vector<std::string> notes;
  size_t comparisons = 0;
  for (const CellSummary& cell : s.cells) comparisons += cell.methods.size() - 2;
  notes.push_back(str(
      "Change: points of score against the uncompressed run on the same rows, 95 % interval of a "
      "paired bootstrap over contexts; ",
      comparisons,
      " comparisons were made, and none was corrected for it. w–l–t: contexts won, lost and tied, "
      "p of the exact sign test."));
  notes.push_back(
      "Floor: the same questions without their context. Kept quality: (score - floor) / "
      "(uncompressed - floor).");
  notes.push_back(
      "Retained: bytes stored over those of f16; read: bytes of keys and values that answering "
      "fetched over what f16 would have fetched; touched: the same of the 64-byte lines, metadata "
      "and tables that these lie in, as the readers count them. TTFT: prefill, compression and "
      "question, medians; all methods of a context share one prefill.");
  notes.push_back(
      "Bytes: stored, the mean. Answering: cache, suffix and workspace as our allocators count "
      "them, without weights, the most of any row. RSS: the process from compression to the end of "
      "the answer, weights and the uncompressed prefix that serves all methods included.");
  if (report.run.value("boundary", "") == "dense-prefill" && !s.cells.empty()) {
    double one = 0;
    for (const CellSummary& cell : s.cells)
      one += cell.methods.front().one_token / static_cast<double>(s.cells.size());
    notes.push_back(
        str("Dense prefill: the first token of an answer is the uncompressed cache's; ", share(one),
            " of the uncompressed answers have at most one token and measure nothing."));
  }
  std::string left;
  for (const CellSummary& cell : s.cells)
    if (!cell.measurable) left += str(left.empty() ? "" : ", ", cell.name());
  if (!left.empty()) {
    notes.push_back(
        str("Not measurable with this model, since uncompressed is not above the floor, "
            "and in no mean: ",
            left, "."));
  }
  return notes;
}

std::string report_text(const EvalReport& report) {
  std::string out;
  const auto add = [&](const CellSummary& cell) {
    Table table({"method", "score", "change, 95 %", "kept quality", "tokens", "retained", "read",
                 "bytes", "answering", "TTFT ms", "decode ms"});
    const size_t other = cell.methods.front().other.size();
    for (const MethodSummary& m : cell.methods) {
      const auto row = report_row(m);
      std::vector<std::string> cells{row[0], row[1]};
      for (size_t at : {2, 5, 6, 7, 8, 10, 11, 13, 15}) cells.push_back(row[at + other]);
      table.add(std::move(cells));
    }
    out += str(heading(cell), ", ", cell.methods.front().rows, " rows\n", table.text(), "\n");
  };
  for (const CellSummary& cell : report.summary.cells) add(cell);
  if (!report.summary.overall.empty()) add(as_cell(report.summary));
  return out;
}

std::string report_markdown(const EvalReport& report) {
  std::string out = str("# ", report.title, "\n\n");
  for (const auto& [key, value] : report.run.items())
    out += str("- ", key, ": ", value.is_string() ? value.get<std::string>() : value.dump(), "\n");
  const auto add = [&](const CellSummary& cell) {
    const auto head = report_head(cell);
    out += str("\n## ", heading(cell), "\n\n", cell.methods.front().rows, " rows\n\n");
    out += rows_text(head) + rows_text(std::vector<std::string>(head.size(), "---"));
    for (const MethodSummary& m : cell.methods) out += rows_text(report_row(m));
  };
  if (!report.summary.overall.empty()) add(as_cell(report.summary));
  for (const CellSummary& cell : report.summary.cells) add(cell);
  for (const std::string& note : report_notes(report)) out += "\n" + note + "\n";
  return out;
}

Json report_json(const EvalReport& report) {
  Json cells = Json::array();
  for (const CellSummary& cell : report.summary.cells) {
    cells.push_back({{"suite", cell.suite},
                     {"task", cell.task},
                     {"length", cell.length ? Json(*cell.length) : Json(nullptr)},
                     {"metric", cell.metric},
                     {"measurable", cell.measurable},
                     {"above_floor", json_of(cell.above_floor)},
                     {"methods", json_of(cell.methods)}});
  }
  return {{"title", report.title},
          {"run", report.run},
          {"cells", cells},
          {"mean_of_cells", json_of(report.summary.overall)},
          {"not_measurable", report.summary.left_out}};
}

std::string scores_lines(const Summary& summary) {
  std::string out;
  for (const Scored& s : summary.scored) {
    const auto names = s.row->metrics();
    for (size_t i = 0; i < names.size(); ++i) {
      const Prediction& p = *s.prediction;
      out += Json{{"suite", p.suite},   {"task", p.task},
                  {"id", p.id},         {"length", p.length ? Json(*p.length) : Json(nullptr)},
                  {"method", p.method}, {"mode", p.mode},
                  {"metric", names[i]}, {"score", i == 0 ? s.score : s.other[i - 1]}}
                 .dump() +
             "\n";
    }
  }
  return out;
}

std::string family_of(const std::string& method) {
  static const std::regex removed("(ratio|keep)=[^,)]*,?");
  static const std::regex empty(",?\\(\\)|,(?=\\))");
  return std::regex_replace(std::regex_replace(method, removed, ""), empty, "");
}

}  // namespace kvist
