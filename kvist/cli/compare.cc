// SPDX-License-Identifier: MIT
// kvist compare: several methods on one document after a single prefill.
#include <CLI/Option.hpp>
#include <CLI/Validators.hpp>
#include <cstdio>
#include <fstream>

#include "kvist/cli/command.h"
#include "kvist/cli/comparison.h"
#include "kvist/cli/comparison_svg.h"
#include "kvist/cli/document.h"
#include "kvist/cli/inputs.h"
#include "kvist/cli/interrupt.h"
#include "kvist/cli/report.h"
#include "kvist/cli/terminal.h"
#include "kvist/core/error.h"

namespace kvist {
namespace {

struct CompareOptions {
  Inputs inputs;
  std::string methods =
      "none,twinkv,snapkv,pyramidkv,adakv,h2o,keydiff,expected_attention,kvzip,"
      "streamingllm,knorm,random";
  std::string ratio = "0.5", answer_prefix, html;
  std::vector<std::string> questions;
  AnswerOptions answer;
  bool csv = false;
};

// A method on its way through the comparison.
struct Entry {
  Spec spec;
  std::unique_ptr<Selector> selector;      // null where every token stays
  std::shared_ptr<const CodedModel> code;  // null where nothing is coded, or by the prompt
  std::optional<RankPlan> ranking;
  std::shared_ptr<const RankedModel> ranked;  // null where nothing is ranked
};

std::vector<Entry> entries(const CompareOptions& options) {
  const Ratio removed = Ratio::parse(options.ratio);
  if (removed.num >= removed.den) {
    throw Error(ErrorKind::invalid_argument,
                str("--ratio ", options.ratio, ": expected from 0 to below 1 (the share removed)"));
  }
  std::vector<Entry> all;
  for (const std::string& text : split_specs(options.methods)) {
    Spec spec = parse_spec(parse_spec(text).text_at(removed));
    if (spec.none()) continue;  // the first row in any case
    auto selector = spec.make_selector();
    auto ranking = spec.ranking();
    all.push_back({.spec = std::move(spec),
                   .selector = std::move(selector),
                   .code = nullptr,
                   .ranking = ranking,
                   .ranked = nullptr});
  }
  return all;
}

void load_codes(std::vector<Entry>& methods, const Inputs& inputs, const ModelInfo& info) {
  for (Entry& entry : methods) {
    const auto reading = entry.spec.reading();
    if (reading && !reading->calibrate_on_prompt)
      entry.code = load_code(inputs.calibration, *reading, info);
    if (entry.ranking) entry.ranked = load_ranked(inputs.basis, *entry.ranking, info);
  }
}

// What is asked of every cache: the questions, and after the first time the uncompressed answers.
class Quiz {
 public:
  Quiz(Loaded& loaded, const CompareOptions& options) : loaded_(loaded), options_(options) {
    for (const std::string& question : options.questions)
      questions_.push_back(loaded.prompt->question(question, options.answer_prefix));
  }

  // The cache in place now. The first call is for the uncompressed one.
  void ask(ComparedRow* row) {
    row->bytes = loaded_.session->prefix().bytes();
    double kl = 0, same = 0;
    for (size_t i = 0; i < questions_.size(); ++i) {
      row->answers.push_back(
          answer_one(*loaded_.session, *loaded_.tokenizer, questions_[i], options_.answer, {}));
      row->answers.back().question = options_.questions[i];
      if (forced_.size() == i) forced_.push_back(row->answers.back().token_ids);
      const std::vector<float> logits = read_answer(i);
      if (reference_.size() == i) reference_.push_back(logits);
      const Distance d = distance_of(reference_[i], logits, loaded_.model->info().vocab);
      kl += d.kl * d.n_tokens;
      same += d.same_top * d.n_tokens;
      row->distance.n_tokens += d.n_tokens;
    }
    row->distance.kl = kl / std::max(1, row->distance.n_tokens);
    row->distance.same_top = same / std::max(1, row->distance.n_tokens);
    row->decode_tok_s = median_tok_s(row->answers);
    row->reads = loaded_.session->read_trace();
  }

 private:
  // Logits before each token of the uncompressed answer and after the last, [tokens + 1][vocab].
  std::vector<float> read_answer(size_t question) {
    Session& session = *loaded_.session;
    const int sequence = session.open();
    std::vector<float> logits = session.extend(sequence, questions_[question]);
    if (!forced_[question].empty()) {
      const std::vector<float> rest = session.extend_all(sequence, forced_[question]);
      logits.insert(logits.end(), rest.begin(), rest.end());
    }
    session.close(sequence);
    return logits;
  }

  Loaded& loaded_;
  const CompareOptions& options_;
  std::vector<std::vector<int32_t>> questions_, forced_;
  std::vector<std::vector<float>> reference_;
};

Comparison measure(Loaded& loaded, std::vector<Entry>& methods, const CompareOptions& options) {
  Comparison c;
  const ModelInfo& info = loaded.model->info();
  c.model = info.name.empty() ? info.architecture : info.name;
  c.n_prompt = static_cast<int>(loaded.ids.size());
  c.reference_bytes = reference_bytes(info, c.n_prompt);
  std::vector<Selector*> selectors;
  std::vector<size_t> of;  // selectors
  for (size_t i = 0; i < methods.size(); ++i) {
    if (methods[i].selector == nullptr) continue;
    selectors.push_back(methods[i].selector.get());
    of.push_back(i);
  }
  std::vector<double> watch_ms(selectors.size(), 0.0), construct_ms(methods.size(), 0.0);
  for (const Entry& entry : methods)
    if (entry.ranking)
      loaded.window_queries = std::max(loaded.window_queries, entry.ranking->window_queries());
  prefill(loaded, selectors, &c.prefill_ms, watch_ms);
  for (size_t i = 0; i < of.size(); ++i) construct_ms[of[i]] = watch_ms[i];
  Quiz quiz(loaded, options);
  c.rows.emplace_back().method = "none";
  quiz.ask(&c.rows.back());
  for (size_t i = 0; i < methods.size() && !*options.answer.stop; ++i) {
    ComparedRow& row = c.rows.emplace_back();
    row.method = methods[i].spec.text;
    Timings timings{.construct_ms = construct_ms[i]};
    loaded.session->set_aside();
    loaded.spec = methods[i].spec;
    loaded.reading = loaded.spec.reading();
    loaded.code = methods[i].code;
    loaded.ranking = methods[i].ranking;
    loaded.ranked = methods[i].ranked;
    compress(loaded, methods[i].selector.get(), nullptr, &timings);
    row.construct_ms = timings.construct_ms;
    quiz.ask(&row);
    loaded.session->restore();
    methods[i].selector.reset();
  }
  for (ComparedRow& row : c.rows) {
    const uint64_t stored = row.bytes.stored();
    row.layer_bytes = c.reference_bytes / static_cast<uint64_t>(info.n_layers);
    row.factor =
        stored == 0 ? 0 : static_cast<double>(c.reference_bytes) / static_cast<double>(stored);
  }
  return c;
}

void put(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void print(const Comparison& c) {
  put(table_text(c));
  int width = 0;
  for (const ComparedRow& row : c.rows) width = std::max(width, display_width(row.method));
  for (size_t i = 0; i < c.rows.front().answers.size(); ++i) {
    put(str("\n", paint(1, Shade::strong, c.rows.front().answers[i].question), "\n"));
    for (const ComparedRow& row : c.rows) {
      std::string answer = row.answers[i].text;
      std::replace(answer.begin(), answer.end(), '\n', ' ');
      const std::string pad(static_cast<size_t>(width - display_width(row.method)), ' ');
      put(str("  ", paint(1, Shade::dim, row.method + pad), "  ", answer, "\n"));
    }
  }
}

int compare(CompareOptions options, const Context& context) {
  if (context.json && options.csv)
    throw Error(ErrorKind::invalid_argument, "--json and --csv are both given; choose one");
  for (const std::string& question : options.questions) require_utf8(question, "--question");
  require_utf8(options.answer_prefix, "--answer-prefix");
  std::vector<Entry> methods = entries(options);
  if (!options.html.empty() && !std::ofstream(options.html, std::ios::app))
    throw Error(ErrorKind::io, str(options.html, ": cannot write the page there"));
  options.answer.stop = &watch_interrupt();
  options.inputs.method = "none";
  Loaded loaded = load(options.inputs, context);
  load_codes(methods, options.inputs, loaded.model->info());
  const Comparison c = measure(loaded, methods, options);
  if (*options.answer.stop) return kInterrupted;
  if (!options.html.empty()) {
    std::ofstream out(options.html, std::ios::binary);
    out << comparison_html(c);
    out.close();
    if (!out) throw Error(ErrorKind::io, str(options.html, ": cannot be written"));
  }
  if (context.json) {
    put(to_json(c, context).dump(2) + "\n");
  } else if (options.csv) {
    put(csv_text(c));
  } else {
    print(c);
  }
  return kDone;
}

Action add(CLI::App& app) {
  auto options = std::make_shared<CompareOptions>();
  add_document_options(app, &options->inputs);
  app.add_option("--methods", options->methods,
                 "method specs, with commas between; uncompressed comes first in any case")
      ->type_name("SPECS")
      ->capture_default_str();
  app.add_option("--ratio", options->ratio, "share removed, where a spec does not say")
      ->type_name("RATIO")
      ->capture_default_str();
  add_questions(app, &options->questions)->required();
  app.add_option("--answer-prefix", options->answer_prefix, "how all answers begin")
      ->type_name("TEXT");
  add_answer_limit(app, &options->answer.limit);
  app.add_flag("--csv", options->csv, "print the table as CSV");
  app.add_option("--html", options->html, "write a page with a picture, the table and the answers")
      ->type_name("FILE");
  return [options](const Context& context) { return compare(*options, context); };
}

}  // namespace

extern constinit const Command compare_command = {
    "compare", "put several methods next to each other on one document", add};

}  // namespace kvist
