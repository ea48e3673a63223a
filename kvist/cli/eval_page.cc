// SPDX-License-Identifier: MIT
// The page of an evaluation: score against size, where needles are found, the tables.
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "kvist/cli/eval_chart.h"
#include "kvist/cli/eval_report.h"
#include "kvist/cli/svg.h"
#include "kvist/cli/terminal.h"
#include "kvist/core/error.h"
#include "kvist/eval/runner.h"

namespace kvist {
namespace {

using namespace svg;

// Families get their colours in the order of the first cell that has them.
std::vector<std::string> families(const Summary& summary) {
  std::vector<std::string> out;
  for (const CellSummary& cell : summary.cells) {
    for (const MethodSummary& m : cell.methods) {
      const std::string family = family_of(m.method);
      if (m.method == kUncompressed || m.method == kFloor) continue;
      if (std::find(out.begin(), out.end(), family) == out.end()) out.push_back(family);
    }
  }
  return out;
}

std::string size_chart(const std::string& title, const std::vector<MethodSummary>& methods,
                       const std::vector<std::string>& names) {
  Chart chart;
  chart.title = title;
  chart.x = {"bytes stored, of f16", 0, 1, true};
  chart.y = {"score", 0, 1, true};
  for (const MethodSummary& m : methods) chart.x.most = std::max(chart.x.most, m.retained);
  for (const std::string& family : names) {
    ChartLine line{family,
                   chart_colour(static_cast<size_t>(std::find(names.begin(), names.end(), family) -
                                                    names.begin())),
                   {}};
    for (const MethodSummary& m : methods) {
      if (family_of(m.method) != family) continue;
      line.points.push_back({m.retained, m.score,
                             str(m.method, ": ", percent(m.score), " with ",
                                 human_bytes(static_cast<uint64_t>(m.stored_bytes)))});
    }
    std::sort(line.points.begin(), line.points.end(),
              [](const ChartPoint& a, const ChartPoint& b) { return a.x < b.x; });
    chart.lines.push_back(std::move(line));
  }
  chart.levels.push_back({"uncompressed", methods[0].score});
  chart.levels.push_back({"floor", methods[1].score});
  return chart_svg(chart);
}

// Scores by depth and length, of one method and task.
struct DepthMap {
  std::set<double> depths;
  std::set<int> lengths;
  std::map<std::pair<double, int>, std::pair<double, int>> cells;  // sum and count
};

// Light is 0, dark is 1.
std::string shade(double score) {
  const auto mix = [&](int from, int to) { return static_cast<int>(from + score * (to - from)); };
  return fmt::format("#{:02x}{:02x}{:02x}", mix(0xf6, 0x1f), mix(0xe3, 0x5f), mix(0xdd, 0x6b));
}

std::string depth_svg(const DepthMap& map) {
  constexpr double kCell = 44, kTall = 24, kLeftRoom = 46, kTopRoom = 22;
  const double width = kLeftRoom + kCell * static_cast<double>(map.lengths.size());
  const double height = kTopRoom + kTall * static_cast<double>(map.depths.size()) + 24;
  std::string out = chart_open(width, height);
  out += label(4, 14, "depth", {.size = 10, .fill = kFaint});
  double y = kTopRoom;
  for (double depth : map.depths) {
    out +=
        label(kLeftRoom - 6, y + 16, percent(depth), {.size = 10, .fill = kFaint, .anchor = "end"});
    double x = kLeftRoom;
    for (int length : map.lengths) {
      const auto found = map.cells.find({depth, length});
      if (found != map.cells.end()) {
        const double score = found->second.first / found->second.second;
        out += rect(x, y, kCell - 2, kTall - 2, shade(score));
        out += label(x + kCell / 2 - 1, y + 16, fmt::format("{:.0f}", 100 * score),
                     {.size = 11, .fill = score > 0.5 ? "#ffffff" : kInk, .anchor = "middle"});
      }
      x += kCell;
    }
    y += kTall;
  }
  double x = kLeftRoom;
  for (int length : map.lengths) {
    out += label(x + kCell / 2 - 1, y + 14, human_count(static_cast<uint64_t>(length)),
                 {.size = 10, .fill = kFaint, .anchor = "middle"});
    x += kCell;
  }
  return out + "</svg>\n";
}

// One a task and method, for tasks whose rows say where the needle lies.
std::string depth_maps(const Summary& summary) {
  std::vector<std::pair<std::string, std::string>> order;
  std::map<std::pair<std::string, std::string>, DepthMap> maps;
  std::set<std::string> tasks;
  for (const Scored& s : summary.scored) {
    const auto depth = s.row->meta.find("depth");
    if (depth == s.row->meta.end() || !depth->is_number() || !s.row->length) continue;
    if (s.prediction->method == kFloor) continue;
    const std::pair key(s.row->task, s.prediction->method);
    if (!maps.contains(key)) order.push_back(key);
    DepthMap& map = maps[key];
    map.depths.insert(depth->get<double>());
    map.lengths.insert(*s.row->length);
    auto& [sum, n] = map.cells[{depth->get<double>(), *s.row->length}];
    sum += s.score;
    ++n;
    tasks.insert(s.row->task);
  }
  if (order.empty()) return "";
  std::string out =
      "<h2>Where it is found</h2>\n<p class=\"note\">Share of rows answered right, by the depth of "
      "the needle and the length of the prompt in tokens.</p>\n<div class=\"maps\">\n";
  for (const auto& key : order) {
    const std::string title = tasks.size() > 1 ? str(key.first, ", ", key.second) : key.second;
    out += str("<figure><figcaption>", escaped(title), "</figcaption>", depth_svg(maps[key]),
               "</figure>\n");
  }
  return out + "</div>\n";
}

std::string table_html(const CellSummary& cell) {
  std::string out = "<div class=\"wide\"><table><tr>";
  for (const std::string& name : report_head(cell)) out += str("<th>", escaped(name), "</th>");
  out += "</tr>\n";
  for (const MethodSummary& m : cell.methods) {
    out += "<tr>";
    for (const std::string& text : report_row(m)) out += str("<td>", escaped(text), "</td>");
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

std::string title_of(const CellSummary& cell) {
  return str(cell.name(), ", ", cell.methods.front().rows, " rows",
             cell.measurable ? "" : ": not measurable with this model");
}

std::string run_list(const nlohmann::ordered_json& run) {
  std::string out = "<details><summary>What these numbers depend on</summary><dl>\n";
  for (const auto& [key, value] : run.items()) {
    out += str("<dt>", escaped(key), "</dt><dd>",
               escaped(value.is_string() ? value.get<std::string>() : value.dump()), "</dd>\n");
  }
  return out + "</dl></details>\n";
}

}  // namespace

std::string report_page(const EvalReport& report) {
  const Summary& s = report.summary;
  const auto names = families(s);
  std::string out = page_open(report.title);
  out += str("<h1>", escaped(report.title), "</h1>\n<p class=\"note\">",
             escaped(report.run.value("model_name", "")), ", ", names.size(), " methods, ",
             s.cells.size(), s.cells.size() == 1 ? " task" : " tasks and lengths", ".</p>\n");
  out += run_list(report.run);
  if (!names.empty()) {
    out += "<h2>Score against size</h2>\n" + legend(names) + "<div class=\"charts\">\n";
    if (!s.overall.empty())
      out += str("<figure>", size_chart("mean of what is measurable", s.overall, names),
                 "</figure>\n");
    for (const CellSummary& cell : s.cells) {
      if (cell.measurable)
        out += str("<figure>", size_chart(cell.name(), cell.methods, names), "</figure>\n");
    }
    out += "</div>\n";
  }
  out += depth_maps(s);
  out += "<h2>All numbers</h2>\n";
  if (!s.overall.empty()) {
    CellSummary mean;
    mean.methods = s.overall;
    out += "<h3>mean of what is measurable</h3>\n" + table_html(mean);
  }
  for (const CellSummary& cell : s.cells)
    out += str("<h3>", escaped(title_of(cell)), "</h3>\n", table_html(cell));
  for (const std::string& note : report_notes(report))
    out += str("<p class=\"note\">", escaped(note), "</p>\n");
  return out + "</body></html>\n";
}

}  // namespace kvist
