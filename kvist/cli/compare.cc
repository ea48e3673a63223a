// SPDX-License-Identifier: MIT
// kvist compare: several methods on one document after a single prefill.
#include <CLI/Option.hpp>
#include <CLI/Validators.hpp>
#include <cstdio>
#include <fstream>
#include <optional>

#include "kvist/cli/command.h"
#include "kvist/cli/comparison.h"
#include "kvist/cli/comparison_svg.h"
#include "kvist/cli/document.h"
#include "kvist/cli/inputs.h"
#include "kvist/cli/interrupt.h"
#include "kvist/cli/repeat.h"
#include "kvist/cli/report.h"
#include "kvist/cli/terminal.h"
#include "kvist/core/error.h"
#include "kvist/runtime/shared_prefill.h"

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

std::vector<Spec> specs_of(const CompareOptions& options) {
  const Ratio removed = Ratio::parse(options.ratio);
  if (removed.num >= removed.den) {
    throw Error(ErrorKind::invalid_argument,
                str("--ratio ", options.ratio, ": expected from 0 to below 1 (the share removed)"));
  }
  std::vector<Spec> all;
  for (const std::string& text : split_specs(options.methods)) {
    Spec spec = parse_spec(parse_spec(text).text_at(removed));
    if (!spec.none()) all.push_back(std::move(spec));  // none is the first row in any case
  }
  return all;
}

// A progress bar for each part of the work in turn.
class Bars {
 public:
  void update(const char* what, const Progress& p, const char* unit) {
    if (what != what_) bar_.emplace(what_ = what, false);
    bar_->update(p.done, p.total, p.seconds, unit);
  }

 private:
  const char* what_ = nullptr;
  std::optional<ProgressBar> bar_;
};

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

Comparison measure(Loaded& loaded, std::span<const Recipe> methods, const CompareOptions& options) {
  Comparison c;
  const ModelInfo& info = loaded.model->info();
  c.model = info.name.empty() ? info.architecture : info.name;
  c.n_prompt = static_cast<int>(loaded.ids.size());
  c.reference_bytes = reference_bytes(info, c.n_prompt);
  SharedPrefill shared(*loaded.session, [&](std::span<const int32_t> ids, int chunk) {
    return repeat_requests(*loaded.tokenizer, *loaded.prompt, ids, chunk);
  });
  {
    Bars bars;
    c.prefill_ms =
        shared.read(loaded.ids, methods,
                    {[&](const char* what, const Progress& p) { bars.update(what, p, "tokens"); },
                     options.answer.stop});
  }
  Quiz quiz(loaded, options);
  c.rows.emplace_back().method = "none";
  quiz.ask(&c.rows.back());
  for (size_t i = 0; i < methods.size() && !*options.answer.stop; ++i) {
    ComparedRow& row = c.rows.emplace_back();
    row.method = methods[i].spec.text;
    {
      Bars bars;
      row.construct_ms =
          shared.place(i, [&](const Progress& p) { bars.update("compressing", p, "layers"); })
              .construct_ms;
    }
    if (methods[i].spec.ranking() && loaded.expand_bytes > 0)
      loaded.session->expand_keys(loaded.expand_bytes);
    quiz.ask(&row);
    shared.restore();
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
  std::vector<Spec> specs = specs_of(options);
  if (!options.html.empty() && !std::ofstream(options.html, std::ios::app))
    throw Error(ErrorKind::io, str(options.html, ": cannot write the page there"));
  options.answer.stop = &watch_interrupt();
  options.inputs.method = "none";
  Loaded loaded = load(options.inputs, context);
  std::vector<Recipe> methods;
  for (Spec& spec : specs)
    methods.push_back(load_recipe(std::move(spec), options.inputs, loaded.model->info()));
  for (const Recipe& method : methods) warn_of_positions(method, loaded.ids.size());
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
