// SPDX-License-Identifier: MIT
// What `run` and `inspect` share: the options that name a model, a document and a method, and
// loading what they name.
#pragma once

#include <CLI/App.hpp>
#include <memory>
#include <string>
#include <vector>

#include "kvist/cli/command.h"
#include "kvist/cli/prompt.h"
#include "kvist/model/model.h"
#include "kvist/model/tokenizer.h"
#include "kvist/runtime/recipe.h"
#include "kvist/runtime/session.h"

namespace kvist {

// As typed.
struct Inputs {
  std::string model, document, method = "twinkv(ratio=0.5)";
  std::string calibration, basis;  // a file, "" for where kvist calibrate puts it
  int expand_mib = 0;              // for keys that a varrate prefix in use keeps expanded
  std::string batch_weights = "auto", rope_scaling, cache_type = "f16", precision = "fast";
  int chunk = 512;
  int pin_tail = 0;  // last tokens of a prompt that every selector keeps
  bool raw = false, verbose = false;
};
void add_inputs(CLI::App& app, Inputs* inputs);
// The same without --method, for commands that take several.
void add_document_options(CLI::App& app, Inputs* inputs);
// -q, once for each question.
CLI::Option* add_questions(CLI::App& app, std::vector<std::string>* questions);
// -n, at least 1.
void add_answer_limit(CLI::App& app, int* limit);
// -m and what belongs to it alone, for commands that need no document.
void add_model_options(CLI::App& app, Inputs* inputs);

// -m or KVIST_MODEL; throws invalid_argument saying how to get a model where neither is there.
std::string model_path(const Inputs& inputs);
ModelOptions model_options(const Inputs& inputs, const Context& context);
SessionOptions session_options(const Inputs& inputs);

// The calibration that `reading` needs, from `file` or, where that is "", from where kvist
// calibrate puts it. Throws not_found saying how to get one, and invalid_argument where it is of
// another model.
std::shared_ptr<const CodedModel> load_code(const std::string& file, const Reading& reading,
                                            const ModelInfo& info);

// The basis that varrate needs, likewise.
std::shared_ptr<const RankedModel> load_ranked(const std::string& file, const RankPlan& plan,
                                               const ModelInfo& info);
// The file that either comes from: "" for a spec that needs neither.
std::string measured_file(const Inputs& inputs, const Spec& spec, const ModelInfo& info);
// The method with whatever of the two it needs.
Recipe load_recipe(Spec spec, const Inputs& inputs, const ModelInfo& info);

// Says so on stderr where a prompt of n_tokens reaches beyond what the recipe's calibration knows.
void warn_of_positions(const Recipe& recipe, size_t n_tokens);

// Everything a document needs to be asked, ready to prefill.
struct Loaded {
  Recipe recipe;
  std::string text;  // of the document
  std::unique_ptr<Model> model;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Prompt> prompt;
  std::vector<int32_t> ids;  // template head and document
  std::unique_ptr<Session> session;
  uint64_t expand_bytes = 0;
};
// Looks at the cheap things first: a wrong method or a missing document is told before a model is
// read.
Loaded load(const Inputs& inputs, const Context& context);

struct Timings {
  double prefill_ms = 0, construct_ms = 0;
};
// Runs the document through the model; what the selector needs, null where there is none, is
// recorded on the way, and the time that it takes itself is construction. Progress on stderr.
void prefill(Loaded& loaded, Selector* selector, Timings* timings);
// Nobody watches; what `needs` says is recorded for later.
void prefill(Loaded& loaded, Needs needs, Timings* timings);
// The calibration of a spec that codes, from the prefilled prompt where it asks for that.
void calibrate(Loaded& loaded);
// Repeats the document if the selector needs that, then puts the recipe over the prefix.
void compress(Loaded& loaded, Selector* selector, Session::Explanation* explain, Timings* timings);

}  // namespace kvist
