// SPDX-License-Identifier: MIT
// kvist eval SUITE: rows, predictions, scores, reports, in this order.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>

#include "kvist/cli/eval.h"
#include "kvist/cli/eval_report.h"
#include "kvist/cli/eval_subject.h"
#include "kvist/cli/interrupt.h"
#include "kvist/cli/report.h"
#include "kvist/cli/staged.h"
#include "kvist/cli/terminal.h"
#include "kvist/cli/version.h"
#include "kvist/core/error.h"
#include "kvist/core/peak_rss.h"
#include "kvist/core/sha256.h"
#include "kvist/eval/copy_model.h"
#include "kvist/eval/runner.h"
#include "kvist/eval/shuffle.h"
#include "kvist/eval/suite.h"
#include "kvist/kernels/targets.h"

namespace kvist {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kRows = "rows.jsonl";
constexpr const char* kPredictions = "predictions.jsonl";
constexpr const char* kScores = "scores.jsonl";
constexpr const char* kResults = "results.json";

std::string in(const std::string& folder, const char* name) {
  return (fs::path(folder) / name).string();
}

std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(ErrorKind::not_found, str(path, ": cannot be opened"));
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<EvalRow> rows_asked(const EvalOptions& options, const Subject& subject) {
  std::vector<EvalRow> rows;
  if (options.suite.ends_with(".jsonl")) {
    rows = read_rows(options.suite);
  } else {
    const SuiteInput input{options.lengths,
                           options.limit,
                           options.seed,
                           options.data,
                           [&](std::string_view text) { return subject.count_tokens(text); },
                           options.tasks};
    rows = rows_of(find_suite(options.suite), input);
  }
  return options.control.empty() ? rows : shuffled_contexts(rows);
}

std::string lines_of(const std::vector<EvalRow>& rows) {
  std::string text;
  for (const EvalRow& row : rows) text += to_json(row).dump() + "\n";
  return text;
}

void save(const std::string& folder, const char* name, const std::string& text) {
  Staged staged(folder);
  staged.text(name, text);
  staged.commit();
}

// Everything that a number depends on.
Json run_json(const EvalOptions& options, const Context& context, const Subject& subject,
              const std::string& rows_text) {
  Json run = {{"kvist", version()},
              {"commit", commit()},
              {"suite", options.suite},
              {"mode", options.mode},
              {"boundary", options.boundary},
              {"pin_tail", options.inputs.pin_tail},
              {"control", options.control.empty() ? "none" : options.control},
              {"lengths", options.lengths},
              {"limit", options.limit},
              {"seed", options.seed},
              {"rows_sha256", sha256_hex(std::string_view(rows_text))},
              {"model_hash", subject.model_hash()},
              {"bootstrap_replicates", options.replicates},
              {"bootstrap_seed", 1}};
  if (!options.suite.ends_with(".jsonl")) {
    const auto data = data_hashes(find_suite(options.suite), options.data);
    if (!data.empty()) run["data_sha256"] = data;
  }
  if (const auto* model = dynamic_cast<const ModelSubject*>(&subject)) {
    const ModelInfo& info = model->info();
    run["model"] = info.path;
    run["model_name"] = info.name.empty() ? info.architecture : info.name;
    run["model_bytes"] = info.file_bytes;
    run["template"] = model->template_text();
    run["tokenizer_sha256"] = model->tokenizer_hash();
    const auto measured = measured_hashes(options.inputs, specs_of(options), info);
    if (!measured.empty()) run["calibration_sha256"] = measured;
    run["cache_type"] = options.inputs.cache_type;
    run["precision"] = options.inputs.precision;
    run["threads"] = context.threads;
    run["simd_target"] = kernels::current_target();
  } else {
    run["model_name"] = "copy model";
  }
  return run;
}

SummaryOptions summary_options(const Json& run) {
  SummaryOptions options;
  options.methods = run.at("methods").get<std::vector<std::string>>();
  for (const std::string& method : options.methods) {
    const Spec spec = parse_spec(method);
    if (spec.removed().num == 0 && !spec.reading() && !spec.ranking())
      options.same.push_back(method);
  }
  const int pin_tail = run.value("pin_tail", 0);
  options.mode = mode_text({.methods = {},
                            .mode = run.at("mode") == "aware" ? Mode::aware : Mode::agnostic,
                            .pin_tail = pin_tail});
  options.boundary = run.at("boundary");
  options.replicates = run.at("bootstrap_replicates");
  options.seed = run.at("bootstrap_seed");
  return options;
}

void write_reports(const std::string& folder, const EvalReport& report) {
  Staged staged(folder);
  staged.text(kScores, scores_lines(report.summary));
  staged.text(kResults, report_json(report).dump(2) + "\n");
  staged.text("table.md", report_markdown(report));
  staged.text("report.html", report_page(report));
  staged.commit();
}

void print(const EvalReport& report, const EvalOptions& options, const Context& context) {
  const std::string text = context.json ? report_json(report).dump(2) + "\n" : report_text(report);
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (!context.json)
    std::fprintf(stderr, "results: %s\n", in(options.folder, "report.html").c_str());
}

std::unique_ptr<Subject> subject_of(const EvalOptions& options, const Context& context) {
  if (options.copy_model) return copy_model(*context.pool, {.pin_tail = options.inputs.pin_tail});
  return std::make_unique<ModelSubject>(options.inputs, context);
}

void require_folder(const EvalOptions& options) {
  if (options.folder.empty()) {
    throw Error(ErrorKind::invalid_argument,
                "-o DIR is missing: predictions are written there before they are scored");
  }
}

}  // namespace

int eval_rows(const EvalOptions& options, const Context& context) {
  require_folder(options);
  if (!options.suite.ends_with(".jsonl")) find_suite(options.suite);
  RunPlan plan;
  plan.methods = specs_of(options);
  plan.mode = options.mode == "aware" ? Mode::aware : Mode::agnostic;
  plan.boundary =
      options.boundary == "dense-prefill" ? Boundary::dense_prefill : Boundary::compressed_question;
  plan.pin_tail = options.inputs.pin_tail;
  plan.seed = options.seed;
  RunHooks hooks;
  hooks.stop = &watch_interrupt();
  const auto subject = subject_of(options, context);
  const std::vector<EvalRow> rows = rows_asked(options, *subject);
  const std::string rows_text = lines_of(rows);
  save(options.folder, kRows, rows_text);
  PredictionLog log(in(options.folder, kPredictions));
  if (log.cut_a_line())
    std::fprintf(stderr, "note: the last prediction was cut short and is made again\n");
  RunSeconds spent;
  {
    ProgressBar bar("answering", false);
    hooks.on_progress = [&](int done, int total, double seconds) {
      bar.update(done, total, seconds, "answers");
    };
    spent = run_rows(rows, *subject, plan, log, hooks);
  }
  EvalReport report;
  report.title = options.control.empty() ? options.suite : str(options.suite, ", shuffled");
  report.run = run_json(options, context, *subject, rows_text);
  Json methods = Json::array();
  for (const Spec& spec : plan.methods)
    if (!spec.none()) methods.push_back(spec.text);
  report.run["methods"] = methods;
  if (spent.n_answers > 0) {  // else all was there
    report.run["seconds"] = {{"prefills", spent.prefills},
                             {"methods", spent.methods},
                             {"answers", spent.answers},
                             {"factor", spent.factor()}};
  }
  const auto* model = dynamic_cast<const ModelSubject*>(subject.get());
  report.run["peak_rss_bytes"] = model != nullptr ? model->peak_rss_bytes() : peak_rss_bytes();
  report.summary = summarize(rows, log.all(), summary_options(report.run));
  write_reports(options.folder, report);
  print(report, options, context);
  return kDone;
}

int eval_score(const EvalOptions& options, const Context& context) {
  require_folder(options);
  const std::vector<EvalRow> rows = read_rows(in(options.folder, kRows));
  const std::vector<Prediction> predictions = read_predictions(in(options.folder, kPredictions));
  const Json results = Json::parse(slurp(in(options.folder, kResults)), nullptr, false);
  if (!results.is_object() || !results.contains("run"))
    throw Error(ErrorKind::corrupt, str(in(options.folder, kResults), ": no results in it"));
  EvalReport report;
  report.title = results.at("title");
  report.run = results.at("run");
  report.summary = summarize(rows, predictions, summary_options(report.run));
  const std::string again = scores_lines(report.summary),
                    stored = slurp(in(options.folder, kScores));
  if (again != stored) {
    const auto at = std::mismatch(again.begin(), again.end(), stored.begin(), stored.end());
    throw Error(ErrorKind::corrupt,
                str(in(options.folder, kScores), ":", 1 + std::count(again.begin(), at.first, '\n'),
                    ": scored again, the predictions give another score than the one stored"));
  }
  write_reports(options.folder, report);
  print(report, options, context);
  return kDone;
}

}  // namespace kvist
