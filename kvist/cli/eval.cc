// SPDX-License-Identifier: MIT
// kvist eval: what a compressed cache still knows, measured beside the uncompressed one.
#include "kvist/cli/eval.h"

#include <CLI/Option.hpp>
#include <CLI/Validators.hpp>
#include <algorithm>
#include <fstream>

#include "kvist/cli/comparison.h"
#include "kvist/core/error.h"
#include "kvist/core/sha256.h"
#include "kvist/eval/suite.h"

namespace kvist {
namespace {

std::vector<Ratio> ratios_of(const std::string& text) {
  std::vector<Ratio> ratios;
  if (text.empty()) return ratios;
  for (const std::string& one : split_specs(text)) {
    ratios.push_back(Ratio::parse(one));
    if (ratios.back().num >= ratios.back().den) {
      throw Error(ErrorKind::invalid_argument,
                  str("--ratios ", text, ": expected from 0 to below 1 (shares removed)"));
    }
  }
  return ratios;
}

std::string suite_names() {
  std::string names;
  for (const Suite* suite : suites()) names += str(suite->name, ", ");
  return names +
         "sotu-prefix, sotu-2048, austen-prefix, perplexity, a file of rows (.jsonl), or score";
}

// Perplexity on texts of ours: one window a State of the Union message, or novels as one corpus,
// each protocol and length as the suite says; what was given on the command line stays.
EvalOptions text_options(const EvalOptions& given, const CLI::App& app) {
  EvalOptions options = given;
  const bool novels = options.suite == "austen-prefix";
  options.hashed_order = !novels;
  if (options.texts.empty()) options.texts = {options.data + (novels ? "/austen" : "/sotu/test")};
  if (app.count("--protocol") == 0)
    options.protocol = novels ? "windowed" : options.suite == "sotu-2048" ? "causal" : "prefix";
  if (app.count("--tokens") == 0) options.tokens = 2048;
  if (app.count("--documents") == 0) options.documents = 32;
  return options;
}

int run_eval(const EvalOptions& options, const CLI::App& app, const Context& context) {
  if (options.suite.starts_with("sotu-") || options.suite == "austen-prefix")
    return eval_perplexity(text_options(options, app), context);
  if (options.suite == "perplexity") return eval_perplexity(options, context);
  if (options.suite == "score") return eval_score(options, context);
  return eval_rows(options, context);
}

void add_row_options(CLI::App& app, EvalOptions* options) {
  app.add_option("-o,--output", options->folder,
                 "folder of rows, predictions, results and the page; a run that was stopped goes "
                 "on there")
      ->type_name("DIR");
  app.add_option("--lengths", options->lengths, "tokens of a prompt and its answer")
      ->delimiter(',')
      ->check(CLI::Range(64, 1 << 20))
      ->type_name("N,N")
      ->capture_default_str();
  app.add_option("--tasks", options->tasks, "of suites that have several; all where none is given")
      ->delimiter(',')
      ->type_name("T,T");
  app.add_option("--limit", options->limit, "most rows of a task and length")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app.add_option("--seed", options->seed, "of the rows")->capture_default_str();
  app.add_option("--data", options->data, "folder of prose, words and facts")
      ->type_name("DIR")
      ->capture_default_str();
  app.add_option(
         "--mode", options->mode,
         "agnostic: the context is compressed before the question is known; aware: both are "
         "compressed together")
      ->check(CLI::IsMember({"agnostic", "aware"}))
      ->capture_default_str();
  app.add_option("--boundary", options->boundary,
                 "compressed-question: the question reads the compressed context; dense-prefill: "
                 "the whole prompt is read uncompressed and gives the answer's first token, then "
                 "all of it is compressed")
      ->check(CLI::IsMember({"compressed-question", "dense-prefill"}))
      ->capture_default_str();
  app.add_option("--pin-tail", options->inputs.pin_tail,
                 "last tokens of what is compressed that every selector keeps, within its budget")
      ->type_name("N")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--control", options->control,
                 "shuffled: every question is asked of another row's context, and must be lost")
      ->check(CLI::IsMember({"shuffled"}));
  app.add_option("--bootstrap", options->replicates, "replicates of the intervals")
      ->check(CLI::Range(100, 1000000))
      ->capture_default_str();
  app.add_flag("--copy-model", options->copy_model,
               "no model: what survived of the answer is copied, which scores a selection exactly");
  app.add_flag("--raw", options->inputs.raw, "no chat template");
}

void add_perplexity_options(CLI::App& app, EvalOptions* options) {
  app.add_option("--text", options->texts,
                 "for perplexity: documents, files or folders of .txt and .md files")
      ->type_name("DIR|FILE");
  app.add_option(
         "--protocol", options->protocol,
         "for perplexity. prefix: the first half is compressed, the second scored; causal: "
         "compressed "
         "from the first token on; windowed: prefix over all texts as one, cut into windows")
      ->check(CLI::IsMember({"prefix", "causal", "windowed"}))
      ->capture_default_str();
  app.add_option(
         "--at-bytes", options->at_bytes,
         "for perplexity: find the budget at which each method stores as much as this share "
         "of f16, or as this method; nothing is printed where they differ by more than "
         "0.1 %")
      ->type_name("SHARE|SPEC");
  app.add_option("--documents", options->documents, "for perplexity: most documents used")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--tokens", options->tokens, "for perplexity: of each document, from its start")
      ->check(CLI::Range(4, 1 << 20))
      ->capture_default_str();
}

Action add(CLI::App& app) {
  auto options = std::make_shared<EvalOptions>();
  app.add_option("suite", options->suite, suite_names())->required();
  app.add_option("--methods,--method", options->methods,
                 "method specs, with commas between; may be given more than once")
      ->type_name("SPECS")
      ->allow_extra_args(false);
  app.add_option("--ratios", options->ratios,
                 "shares removed, with commas between, where a spec does not say")
      ->type_name("R,R");
  add_row_options(app, options.get());
  add_perplexity_options(app, options.get());
  app.add_option("--calibration", options->inputs.calibration,
                 "for readkv: a file of kvist calibrate (default: where it puts them)")
      ->type_name("FILE");
  app.add_option("--basis", options->inputs.basis,
                 "for varrate: a file of kvist calibrate --basis (default: where it puts them)")
      ->type_name("FILE");
  add_model_options(app, &options->inputs);
  return [options, &app](const Context& context) { return run_eval(*options, app, context); };
}

}  // namespace

std::vector<Spec> specs_of(const EvalOptions& options) {
  const std::vector<Ratio> ratios = ratios_of(options.ratios);
  std::vector<Spec> specs;
  const auto add = [&](const std::string& text) {
    Spec spec = parse_spec(text);
    const bool there =
        std::any_of(specs.begin(), specs.end(), [&](const Spec& s) { return s.text == spec.text; });
    if (!there) specs.push_back(std::move(spec));
  };
  for (const std::string& list : options.methods) {
    for (const std::string& text : split_specs(list)) {
      if (ratios.empty()) add(text);
      for (Ratio ratio : ratios) add(parse_spec(text).text_at(ratio));
    }
  }
  return specs;
}

nlohmann::ordered_json measured_hashes(const Inputs& inputs, std::span<const Spec> specs,
                                       const ModelInfo& info) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const Spec& spec : specs) {
    const std::string path = measured_file(inputs, spec, info);
    if (path.empty()) continue;
    std::ifstream in(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    out[spec.text] = sha256_hex(std::string_view(bytes));
  }
  return out;
}

extern constinit const Command eval_command = {
    "eval", "measure what compressed caches lose, beside the uncompressed one", add};

}  // namespace kvist
