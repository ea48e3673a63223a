// SPDX-License-Identifier: MIT
// kvist run: reads a document once, compresses it once, and answers questions from what is left.
#include <unistd.h>

#include <CLI/Option.hpp>
#include <CLI/Validators.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "kvist/cli/answer.h"
#include "kvist/cli/chat.h"
#include "kvist/cli/command.h"
#include "kvist/cli/document.h"
#include "kvist/cli/inputs.h"
#include "kvist/cli/interrupt.h"
#include "kvist/cli/report.h"
#include "kvist/cli/terminal.h"
#include "kvist/core/error.h"

namespace kvist {
namespace {

struct RunOptions {
  Inputs inputs;
  std::vector<std::string> questions;
  std::vector<std::string> answer_prefixes;  // none, one for all questions, or one each
  AnswerOptions answer;
  bool together = false, compare = false;
  int max_cache = 0;  // entries a head of a cache that grows; 0: the document is a prefix
};

const std::string& prefix_of(const RunOptions& options, size_t question) {
  static const std::string kNone;
  if (options.answer_prefixes.empty()) return kNone;
  return options.answer_prefixes[options.answer_prefixes.size() == 1 ? 0 : question];
}

void check(const RunOptions& options, const Context& context) {
  for (const std::string& question : options.questions) require_utf8(question, "--question");
  for (const std::string& prefix : options.answer_prefixes) {
    require_utf8(prefix, "--answer-prefix");
  }
  if (options.max_cache > 0 && (options.together || options.compare || options.questions.empty())) {
    throw Error(
        ErrorKind::invalid_argument,
        options.questions.empty()
            ? "--max-cache needs a question: -q TEXT"
            : str("--max-cache holds one conversation, the document and then question after "
                  "question: it goes without ",
                  options.together ? "--together" : "--compare"));
  }
  const size_t n_prefixes = options.answer_prefixes.size(), n_questions = options.questions.size();
  if (n_prefixes > 1 && n_prefixes != n_questions) {
    throw Error(ErrorKind::invalid_argument,
                str("--answer-prefix: ", n_prefixes, " were given for ", n_questions,
                    " questions; expected one for all, or one each"));
  }
  if (!options.questions.empty()) return;
  if (options.inputs.document == "-") {
    throw Error(ErrorKind::invalid_argument,
                "-f - reads the document from standard input: a question is needed, -q TEXT");
  }
  if (context.json) throw Error(ErrorKind::invalid_argument, "--json needs a question: -q TEXT");
  if (options.compare)
    throw Error(ErrorKind::invalid_argument, "--compare needs a question: -q TEXT");
  if (!is_terminal(STDIN_FILENO)) {
    throw Error(
        ErrorKind::invalid_argument,
        "no question: give -q TEXT (more than once if you like), or run on a terminal to chat");
  }
}

// A text on one line, for people.
std::string shown(const std::string& text) {
  std::string line = text.substr(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

void put(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// The question and the start of the answer that the user gave go to stderr: stdout carries what the
// model adds.
void announce(const std::string& question, const std::string& prefix) {
  if (!is_terminal(STDERR_FILENO)) return;
  std::fprintf(stderr, "%s\n%s", paint(2, Shade::strong, "> " + shown(question)).c_str(),
               paint(2, Shade::dim, prefix).c_str());
  std::fflush(stderr);
}

std::vector<std::vector<int32_t>> question_ids(const Loaded& loaded, const RunOptions& options) {
  std::vector<std::vector<int32_t>> all;
  for (size_t i = 0; i < options.questions.size(); ++i) {
    all.push_back(loaded.prompt->question(options.questions[i], prefix_of(options, i)));
  }
  return all;
}

// Asks everything of the cache as it is now. `stream`: show answers as they come.
Stage ask(Loaded& loaded, const RunOptions& options, const std::string& label, bool stream) {
  Stage stage;
  stage.label = label;
  stage.bytes = loaded.session->prefix().bytes();
  const auto ids = question_ids(loaded, options);
  if (options.together) {
    Together together = answer_together(*loaded.session, *loaded.tokenizer, ids, options.answer);
    stage.answers = std::move(together.answers);
    stage.tok_s = together.total_tok_s;
  }
  for (size_t i = 0; i < ids.size() && !*options.answer.stop; ++i) {
    if (stream) announce(options.questions[i], prefix_of(options, i));
    if (!options.together) {
      stage.answers.push_back(answer_one(*loaded.session, *loaded.tokenizer, ids[i], options.answer,
                                         stream ? OnPiece(put) : OnPiece()));
    } else if (stream) {
      put(stage.answers[i].text);
    }
    if (stream) put("\n");
  }
  for (size_t i = 0; i < stage.answers.size(); ++i)
    stage.answers[i].question = options.questions[i];
  if (!options.together) stage.tok_s = median_tok_s(stage.answers);
  stage.reads = loaded.session->read_trace();
  return stage;
}

void print_side_by_side(const Report& report, const RunOptions& options) {
  const int width =
      std::max(display_width(report.uncompressed->label), display_width(report.stage.label));
  for (size_t i = 0; i < report.stage.answers.size(); ++i) {
    put(paint(1, Shade::strong, shown(report.stage.answers[i].question)) + "\n");
    for (const Stage* stage : {&*report.uncompressed, &report.stage}) {
      const std::string pad(static_cast<size_t>(width - display_width(stage->label)), ' ');
      const std::string answer = shown(prefix_of(options, i) + stage->answers[i].text);
      put(str("  ", paint(1, Shade::dim, stage->label + pad), "  ", answer, "\n"));
    }
  }
}

std::vector<std::vector<int>> entries_of(const ModelInfo& info, int entries) {
  return std::vector(static_cast<size_t>(info.n_layers),
                     std::vector(static_cast<size_t>(info.kv_heads), entries));
}

// Reads the document into a sequence of its own, in which entries are evicted on the way.
void read_growing(Loaded& loaded, int sequence, Timings* timings) {
  constexpr size_t kStep = 512;  // tokens between two looks at Ctrl-C
  ProgressBar bar("reading", false);
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const std::span<const int32_t> ids = loaded.ids;
  for (size_t at = 0; at < ids.size(); at += kStep) {
    if (watch_interrupt())
      throw Error(ErrorKind::interrupted, str("stopped after ", at, " of ", ids.size(),
                                              " prompt tokens; nothing was kept"));
    loaded.session->extend(sequence, ids.subspan(at, std::min(kStep, ids.size() - at)));
    bar.update(static_cast<int>(std::min(at + kStep, ids.size())), static_cast<int>(ids.size()),
               seconds(), "tokens");
  }
  timings->prefill_ms = 1e3 * seconds();
}

// The document and all that follows are one sequence of a bounded cache.
int run_growing(const RunOptions& options, Loaded& loaded, const Context& context) {
  const auto evictor = loaded.recipe.spec.make_evictor();
  Session& session = *loaded.session;
  session.start_empty();
  const int sequence = session.open_bounded(*evictor, options.max_cache);
  Report report;
  read_growing(loaded, sequence, &report.timings);
  report.stage.label = str(loaded.recipe.spec.text, ", at most ", options.max_cache);
  std::optional<int32_t> unseen;
  for (size_t i = 0; i < options.questions.size() && !*options.answer.stop; ++i) {
    std::optional<std::vector<int32_t>> ids;
    if (i > 0) ids = loaded.prompt->follow_up(options.questions[i], prefix_of(options, i));
    if (!ids) ids = loaded.prompt->question(options.questions[i], prefix_of(options, i));
    if (unseen) ids->insert(ids->begin(), *unseen);
    if (!context.json) announce(options.questions[i], prefix_of(options, i));
    report.stage.answers.push_back(answer_in(session, *loaded.tokenizer, sequence, *ids,
                                             options.answer,
                                             context.json ? OnPiece() : OnPiece(put)));
    unseen = report.stage.answers.back().unseen;
    report.stage.answers.back().question = options.questions[i];
    if (!context.json) put("\n");
  }
  if (*options.answer.stop) return kInterrupted;
  report.stage.bytes = session.suffix_bytes();
  report.stage.tok_s = median_tok_s(report.stage.answers);
  report.n_tokens = session.suffix_length(sequence);
  report.kept = entries_of(loaded.model->info(), session.suffix_entries(sequence));
  if (context.json) {
    put(to_json(loaded, context, report).dump(2) + "\n");
  } else {
    std::fprintf(stderr, "\n%s", summary(loaded, report).c_str());
  }
  return kDone;
}

int run(RunOptions options, const Context& context) {
  check(options, context);
  const std::atomic<bool>& stop = watch_interrupt();
  options.answer.stop = &stop;
  if (options.max_cache > 0) parse_spec(options.inputs.method).make_evictor();
  Loaded loaded = load(options.inputs, context);
  if (options.max_cache > 0) return run_growing(options, loaded, context);
  const auto selector = loaded.recipe.spec.make_selector();
  Report report;
  prefill(loaded, selector.get(), &report.timings);
  const bool compare = options.compare && !loaded.recipe.spec.none();
  if (compare) report.uncompressed = ask(loaded, options, "uncompressed", false);
  if (stop) return kInterrupted;
  compress(loaded, selector.get(), nullptr, &report.timings);
  report.kept = kept_counts(loaded.session->prefix());
  report.n_tokens = loaded.session->n_prompt();
  if (options.questions.empty()) return chat(loaded, options.answer, prefix_of(options, 0));
  report.stage = ask(loaded, options, loaded.recipe.spec.none() ? "none" : loaded.recipe.spec.text,
                     !compare && !context.json);
  if (stop) return kInterrupted;
  if (context.json) {
    put(to_json(loaded, context, report).dump(2) + "\n");
    return kDone;
  }
  if (compare) print_side_by_side(report, options);
  std::fprintf(stderr, "\n%s", summary(loaded, report).c_str());
  return kDone;
}

Action add(CLI::App& app) {
  auto options = std::make_shared<RunOptions>();
  add_inputs(app, &options->inputs);
  add_questions(app, &options->questions);
  app.add_option("--answer-prefix", options->answer_prefixes,
                 "how answers begin: given once for all questions, or once for each")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  add_answer_limit(app, &options->answer.limit);
  app.add_option("--temp", options->answer.sampling.temperature, "0 is greedy")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app.add_option("--top-k", options->answer.sampling.top_k, "sample among so many; 0 is all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--top-p", options->answer.sampling.top_p, "sample among this much probability")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--seed", options->answer.sampling.seed, "of the sampling")->capture_default_str();
  app.add_option(
         "--max-cache", options->max_cache,
         "a cache that grows within so many entries a head: document, questions and answers "
         "are one conversation, and the method (streamingllm, keydiff or h2o) decides what "
         "leaves")
      ->type_name("N")
      ->check(CLI::Range(16, std::numeric_limits<int>::max()));
  app.add_flag("--together", options->together, "decode all questions as one batch");
  app.add_flag("--compare", options->compare, "ask before and after compression, side by side");
  return [options](const Context& context) { return run(*options, context); };
}

}  // namespace

extern constinit const Command run_command = {
    "run", "answer questions about a document from a compressed cache", add};

}  // namespace kvist
