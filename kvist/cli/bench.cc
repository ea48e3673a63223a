// SPDX-License-Identifier: MIT
// kvist bench: the table of speeds for the user's own model and machine, each figure beside what it
// is compared with.
#include "kvist/cli/bench.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "kvist/cli/bench_paper.h"
#include "kvist/cli/command.h"
#include "kvist/cli/terminal.h"
#include "kvist/cli/version.h"
#include "kvist/core/error.h"
#include "kvist/kernels/targets.h"
#include "kvist/model/model.h"

namespace kvist {

double Sample::median() const {
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  const size_t n = sorted.size();
  return n == 0 ? 0 : n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

double Sample::spread() const {
  if (seconds.empty()) return 0;
  const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
  return (*most - *least) / median();
}

double BenchRow::ratio() const {
  return kind == RatioKind::speedup ? against_value / value : value / against_value;
}

bool BenchRow::met() const {
  if (!target) return true;
  return kind == RatioKind::fraction ? ratio() <= *target : ratio() >= *target;
}

namespace {

std::string cpu_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::string figure(double value) {
  return fmt::format("{:.{}f}", value, value < 10 ? 3 : value < 1000 ? 1 : 0);
}

std::string target_text(const BenchRow& row) {
  if (!row.target) return "-";
  return fmt::format("{} {}", row.kind == RatioKind::fraction ? "<=" : ">=", *row.target);
}

nlohmann::json to_json(const BenchRow& row) {
  nlohmann::json j{{"id", row.id},           {"value", row.value},
                   {"unit", row.unit},       {"spread", row.spread},
                   {"against", row.against}, {"against_value", row.against_value},
                   {"ratio", row.ratio()},   {"met", row.met()}};
  j["target"] = row.target ? nlohmann::json(*row.target) : nlohmann::json();
  return j;
}

struct Given {
  std::string model, document, peer, paper;
  bool quick = false, plain_llama = false;
  bool skip_attention = false;
  int repeats = 5;
};

int run_bench(const Given& given, const Context& context) {
  if (given.paper == "readkv") return bench_paper_readkv(context);
  if (given.paper == "varrate") return bench_paper_varrate(context);
  std::vector<BenchRow> rows;
  const bool live = !context.json;
  const RowSink sink = [&](BenchRow row) {
    if (live) {
      std::fprintf(stderr, "%s\n",
                   fmt::format("{:<40} {:>10} {:<6} {:>10} {:<24} {:>6.2f}  {:<8} {}", row.id,
                               figure(row.value), row.unit, figure(row.against_value), row.against,
                               row.ratio(), target_text(row),
                               row.target ? (row.met() ? "met" : "short") : "")
                       .c_str());
    }
    rows.push_back(std::move(row));
  };
  nlohmann::json about{{"cpu", cpu_name()}, {"threads", context.threads}};
  about["commit"] = commit();
  about["simd"] = kernels::current_target();
  about["ggml"] = Model::ggml_version_text();

  // The model first: what is wrong with it, its document or the peer file is told at once.
  if (!given.model.empty()) {
    ModelBenchOptions mo;
    mo.model = given.model;
    mo.document = given.document;
    mo.peer_file = given.peer;
    mo.plain_llama = given.plain_llama;
    mo.repeats = given.quick ? 3 : given.repeats;
    mo.prompts = given.quick ? std::vector{2000} : std::vector{2000, 7800};
    mo.together_prompt = given.quick ? 2000 : 4000;
    mo.log = [&](const std::string& line) {
      if (live) std::fprintf(stderr, "  %s\n", line.c_str());
    };
    bench_model(mo, *context.pool, sink, &about);
  }
  if (!given.skip_attention) {
    AttentionBenchOptions ao;
    ao.groups = given.quick ? std::vector{3} : std::vector{3, 4, 7};
    ao.head_dims = given.quick ? std::vector{64} : std::vector{64, 128};
    ao.lengths = given.quick ? std::vector{2048, 8192} : std::vector{2048, 8192, 32768};
    ao.repeats = std::max(5, given.repeats);
    bench_attention(ao, *context.pool, sink);
  }
  if (context.json) {
    nlohmann::json out = about;
    out["rows"] = nlohmann::json::array();
    for (const BenchRow& row : rows) out["rows"].push_back(to_json(row));
    std::printf("%s\n", out.dump(1).c_str());
    return kDone;
  }
  Table table({"row", "ours", "unit", "against", "theirs", "ratio", "target", ""});
  for (const BenchRow& row : rows) {
    table.add({row.id, figure(row.value), row.unit, row.against, figure(row.against_value),
               fmt::format("{:.2f}", row.ratio()), target_text(row),
               row.target ? (row.met() ? "met" : "short") : ""});
  }
  std::printf("%s", table.text().c_str());
  for (const auto& [key, value] : about.items()) {
    std::printf("%s: %s\n", key.c_str(),
                value.is_string() ? value.get<std::string>().c_str() : value.dump().c_str());
  }
  return kDone;
}

Action add_bench(CLI::App& app) {
  auto given = std::make_shared<Given>();
  app.add_option("-m,--model", given->model,
                 "GGUF model; without one only the attention kernels are timed")
      ->envname("KVIST_MODEL");
  app.add_option("-f,--file", given->document,
                 "text to prefill, repeated where it is short (default: made-up prose)");
  app.add_option("--peer", given->peer,
                 "figures of another program: JSON lines from a script in bench/peers/");
  app.add_flag(
      "--plain-libllama", given->plain_llama,
      "let libllama multiply by the weights as the file has them, not repacked (AMX, ...)");
  app.add_flag("--quick", given->quick, "fewer shapes and lengths: under two minutes");
  app.add_flag("--no-attention", given->skip_attention, "leave out the kernel rows");
  app.add_option("--paper", given->paper,
                 "instead: figures of a paper that follow from its rules, beside the printed ones")
      ->check(CLI::IsMember({"readkv", "varrate"}));
  app.add_option("--repeat", given->repeats, "timings per figure; the median is shown")
      ->check(CLI::Range(1, 100));
  return [given](const Context& context) { return run_bench(*given, context); };
}

}  // namespace

extern constinit const Command bench_command;
constinit const Command bench_command{
    "bench", "measures speed on this machine, beside the engines it stands next to", add_bench};

}  // namespace kvist
