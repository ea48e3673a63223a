// SPDX-License-Identifier: MIT
// kvist calibrate: measures a model on held-out text, so that readkv and varrate can code its keys
// and values.
#include "kvist/runtime/calibrate.h"

#include <CLI/Option.hpp>
#include <CLI/Validators.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kvist/cli/command.h"
#include "kvist/cli/inputs.h"
#include "kvist/cli/interrupt.h"
#include "kvist/cli/terminal.h"
#include "kvist/cli/texts.h"
#include "kvist/core/error.h"

namespace kvist {
namespace {

namespace fs = std::filesystem;

struct CalibrateOptions {
  Inputs inputs;
  std::vector<std::string> texts;
  std::string out, transform = "both";
  int documents = 32, window = 2048, span = 0;
  uint64_t seed = ReadBasis{}.seed;
  bool layer_signs = false, where = false, missing = false;
  // Of a basis for varrate, in place of readkv's calibrations.
  bool basis = false, show = false;
  int stride = RankPlan{}.stride, neighbours = RankPlan{}.neighbours, rows = 1024;
  double value_scale = 1;
  std::string kind = "all";
};

// The first windows of all documents, then their second ones, until there are enough.
std::vector<std::vector<int32_t>> windows_of(const CalibrateOptions& options,
                                             const Tokenizer& tokenizer, int context) {
  const auto documents = tokenized(options.texts, tokenizer);
  const auto length = static_cast<size_t>(std::min(options.window, context));
  std::vector<std::vector<int32_t>> windows;
  for (size_t begin = 0, before = 1; before != windows.size(); begin += length) {
    before = windows.size();
    for (const auto& document : documents) {
      if (windows.size() == static_cast<size_t>(options.documents)) return windows;
      // A rest is used where it is all there is of a document, or long enough to matter.
      const size_t left = document.size() - std::min(begin, document.size());
      if (left == 0 || (begin > 0 && left < length / 2)) continue;
      const auto from = document.begin() + static_cast<std::ptrdiff_t>(begin);
      windows.emplace_back(from, from + static_cast<std::ptrdiff_t>(std::min(left, length)));
    }
  }
  return windows;
}

void make_folder(const fs::path& folder) {
  if (folder.empty()) return;
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure)
    throw Error(ErrorKind::io, str(folder.string(), ": cannot be made: ", failure.message()));
}

// How many directions hold 50, 90 and 99 % of the energy.
std::vector<int> ranks_of(const std::vector<float>& eigenvalues) {
  std::vector<int> ranks;
  for (const double share : {0.5, 0.9, 0.99}) ranks.push_back(rank_of_energy(eigenvalues, share));
  return ranks;
}

// Energy of whole tokens about their mean.
double raw_energy(const RankBasisLayer& layer) {
  double sum = 0;
  for (const float x : layer.raw_eigenvalues) sum += static_cast<double>(x);
  return sum;
}

nlohmann::ordered_json layers_json(const RankBasis& basis) {
  auto rows = nlohmann::ordered_json::array();
  for (const RankBasisLayer& layer : basis.layers) {
    auto row = nlohmann::ordered_json{{"residual_energy", layer.residual_energy},
                                      {"variance", raw_energy(layer)},
                                      {"energy", layer.total_energy}};
    if (basis.kind == RankPlan::Basis::residual)
      row["residual_ranks"] = ranks_of(layer.eigenvalues);
    row["whole_ranks"] = ranks_of(layer.raw_eigenvalues);
    rows.push_back(row);
  }
  return rows;
}

nlohmann::ordered_json basis_json(const RankBasis& basis, const std::string& file) {
  return {{"model", basis.source.model},
          {"kind", name(basis.kind)},
          {"file", file},
          {"stride", basis.stride},
          {"neighbours", basis.neighbours},
          {"value_scale", basis.value_scale},
          {"width", basis.layers.front().width},
          {"rows", basis.layers.front().n_rows},
          {"residuals", basis.residuals},
          {"charged_bytes", basis.charged_bytes()},
          {"shares", {0.5, 0.9, 0.99}},
          {"layers", layers_json(basis)}};
}

void print_basis(const RankBasis& basis, const std::string& file) {
  std::printf("%s: %d of %d directions a layer, from %s tokens; %s of shared state\n", file.c_str(),
              basis.layers.front().n_rows, basis.layers.front().width,
              human_count(static_cast<uint64_t>(basis.residuals)).c_str(),
              human_bytes(basis.charged_bytes()).c_str());
  if (basis.kind != RankPlan::Basis::residual) return;
  const auto text = [](const std::vector<int>& ranks) {
    return fmt::format("{} / {} / {}", ranks[0], ranks[1], ranks[2]);
  };
  Table table({"layer", "residual energy", "of 50 / 90 / 99 %", "whole tokens 50 / 90 / 99 %"});
  for (size_t i = 0; i < basis.layers.size(); ++i) {
    const RankBasisLayer& layer = basis.layers[i];
    const double share = layer.residual_energy / raw_energy(layer);
    table.add({str(i), fmt::format("{:.1f} %", 100 * share), text(ranks_of(layer.eigenvalues)),
               text(ranks_of(layer.raw_eigenvalues))});
  }
  std::printf(
      "Residuals against the variance of whole tokens, and directions that hold so much of "
      "each:\n%s",
      table.text().c_str());
}

std::vector<RankPlan::Basis> kinds_of(const CalibrateOptions& options) {
  std::vector<RankPlan::Basis> kinds;
  for (const auto kind :
       {RankPlan::Basis::residual, RankPlan::Basis::token, RankPlan::Basis::heads}) {
    if (options.kind == "all" || options.kind == name(kind)) kinds.push_back(kind);
  }
  return kinds;
}

// The bases that a run made or showed, as one document or as text.
void print_bases(std::span<const RankBasis> bases, std::span<const std::string> files,
                 const Context& context) {
  auto all = nlohmann::ordered_json::array();
  for (size_t i = 0; i < bases.size(); ++i) {
    if (context.json)
      all.push_back(basis_json(bases[i], files[i]));
    else
      print_basis(bases[i], files[i]);
  }
  if (context.json) std::printf("%s\n", nlohmann::ordered_json{{"bases", all}}.dump(2).c_str());
}

// Whether `load` can read the file.
template <typename Load>
bool is_there(const std::string& file, const Load& load) {
  try {
    load(file);
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::not_found && error.kind() != ErrorKind::corrupt) throw;
    return false;
  }
}

// With --missing: leaves only what no file of `files` holds yet.
template <typename What, typename Load>
void leave_missing(const CalibrateOptions& options, std::vector<What>* whats,
                   std::vector<std::string>* files, const Load& load) {
  if (!options.missing) return;
  std::vector<What> missing;
  std::vector<std::string> there;
  for (size_t i = 0; i < files->size(); ++i) {
    if (is_there((*files)[i], load)) continue;
    missing.push_back((*whats)[i]);
    there.push_back((*files)[i]);
  }
  *whats = std::move(missing);
  *files = std::move(there);
}

int run_basis(const CalibrateOptions& options, const Context& context) {
  const std::atomic<bool>& stop = watch_interrupt();
  RankPlan plan;
  plan.stride = options.stride;
  plan.neighbours = options.neighbours;
  plan.value_scale = options.value_scale;
  check(plan);
  const std::string path = model_path(options.inputs);
  const auto model = Model::load(path, model_options(options.inputs, context));
  const ReadSource source = read_source(model->info());
  std::vector<RankPlan::Basis> kinds = kinds_of(options);
  std::vector<std::string> files;
  for (const RankPlan::Basis kind : kinds)
    files.push_back(options.out.empty() ? basis_path(source, kind) : options.out);
  leave_missing(options, &kinds, &files, load_basis);
  if (options.where) {
    for (const std::string& file : files) std::printf("%s\n", file.c_str());
    return kDone;
  }
  if (options.show) {
    std::vector<RankBasis> bases;
    for (size_t i = 0; i < kinds.size(); ++i) {
      bases.push_back(load_basis(files[i]));
      plan.basis = kinds[i];
      bases.back().check_fits(source, plan);
    }
    print_bases(bases, files, context);
    return kDone;
  }
  if (kinds.empty()) return kDone;
  const auto tokenizer = Tokenizer::load(path);
  const auto windows = windows_of(options, *tokenizer, model->info().context);
  make_folder(fs::path(files.front()).parent_path());
  SessionOptions session_options;
  session_options.cache_type = Scalar::f32;
  Session session(*model, *context.pool, session_options);
  ProgressBar bar("learning directions", false);
  const std::vector<RankBasis> bases = learn_bases(
      session, source, plan, kinds, options.rows, windows,
      [&](const Progress& p) { bar.update(p.done, p.total, p.seconds, "tokens"); }, &stop);
  bar.clear();
  for (size_t i = 0; i < bases.size(); ++i) save(bases[i], files[i]);
  print_bases(bases, files, context);
  return kDone;
}

int run_calibrate(const CalibrateOptions& options, const Context& context) {
  if (options.texts.empty() && !options.where && !options.show)
    throw Error(ErrorKind::invalid_argument,
                "--text is missing: documents to measure the model on");
  if (options.basis && !options.out.empty() && options.kind == "all") {
    throw Error(ErrorKind::invalid_argument,
                "--out names one file: choose --kind residual, token or heads with it");
  }
  if (options.basis) return run_basis(options, context);
  if (!options.out.empty() && options.transform == "both") {
    throw Error(ErrorKind::invalid_argument,
                "--out names one file: choose --transform hadamard or --transform klt with it");
  }
  const std::atomic<bool>& stop = watch_interrupt();
  const std::string path = model_path(options.inputs);
  const auto model = Model::load(path, model_options(options.inputs, context));
  const ReadSource source = read_source(model->info());
  std::vector<ReadBasis> bases;
  for (bool klt : {false, true}) {
    if (options.transform == "both" || (options.transform == "klt") == klt)
      bases.push_back({options.seed, options.layer_signs, klt});
  }
  std::vector<std::string> files;
  for (const ReadBasis& basis : bases) {
    files.push_back(options.out.empty() ? calibration_path(source, basis) : options.out);
  }
  leave_missing(options, &bases, &files, load_calibration);
  if (options.where) {
    for (const std::string& file : files) std::printf("%s\n", file.c_str());
    return kDone;
  }
  if (bases.empty()) return kDone;
  const auto tokenizer = Tokenizer::load(path);
  const auto windows = windows_of(options, *tokenizer, model->info().context);
  for (const std::string& file : files) make_folder(fs::path(file).parent_path());
  // Keys and values as the graph makes them, so that a figure is rounded once.
  SessionOptions session_options;
  session_options.cache_type = Scalar::f32;
  Session session(*model, *context.pool, session_options);
  std::vector<ReadCalibration> calibrations;
  {
    ProgressBar bar("calibrating", false);
    calibrations = calibrate(
        session, source, bases, windows,
        options.span > 0 ? std::min(options.span, model->info().context) : model->info().context,
        [&](const Progress& p) { bar.update(p.done, p.total, p.seconds, "tokens"); }, &stop);
  }
  auto rows = nlohmann::ordered_json::array();
  for (size_t i = 0; i < files.size(); ++i) {
    const ReadCalibration& made = calibrations[i];
    save(made, files[i]);
    rows.push_back({{"file", files[i]},
                    {"transform", made.basis.klt ? "klt" : "hadamard"},
                    {"seed", made.basis.seed},
                    {"tokens", made.tokens},
                    {"charged_bytes", made.charged_bytes()}});
    if (context.json) continue;
    std::printf("%s: %s tokens in %zu windows, %s of shared state\n", files[i].c_str(),
                human_count(static_cast<uint64_t>(made.tokens)).c_str(), windows.size(),
                human_bytes(made.charged_bytes()).c_str());
  }
  if (context.json) {
    std::printf("%s\n",
                nlohmann::ordered_json{
                    {"model", source.model}, {"windows", windows.size()}, {"calibrations", rows}}
                    .dump(2)
                    .c_str());
  }
  return kDone;
}

Action add(CLI::App& app) {
  auto options = std::make_shared<CalibrateOptions>();
  app.add_option("--text", options->texts,
                 "held-out documents: files, or folders of .txt and .md files")
      ->type_name("DIR|FILE");
  app.add_flag("--where", options->where, "only print where the calibrations of this model go");
  app.add_flag("--missing", options->missing,
               "only what is not there yet, or another version of kvist made");
  CLI::Option* basis = app.add_flag("--basis", options->basis,
                                    "learn the directions that varrate keeps, not readkv's scales");
  app.add_flag("--show", options->show, "of --basis: only print what the one of this model holds")
      ->needs(basis);
  app.add_option("--stride", options->stride, "of --basis: tokens from anchor to anchor")
      ->check(CLI::Range(1, 1 << 20))
      ->needs(basis)
      ->capture_default_str();
  app.add_option("--neighbours", options->neighbours, "of --basis: anchors averaged for a token")
      ->check(CLI::Range(1, 64))
      ->needs(basis)
      ->capture_default_str();
  app.add_option("--value-scale", options->value_scale,
                 "of --basis: values are multiplied by it beside keys")
      ->needs(basis)
      ->capture_default_str();
  app.add_option("--kind", options->kind,
                 "of --basis: what it is learned from, as in varrate's option basis")
      ->check(CLI::IsMember({"residual", "token", "heads", "all"}))
      ->needs(basis)
      ->capture_default_str();
  app.add_option("--rows", options->rows, "of --basis: most directions kept a layer")
      ->check(CLI::Range(1, 65535))
      ->needs(basis)
      ->capture_default_str();
  app.add_option("-o,--out", options->out,
                 "where the calibration goes; without it to where the method looks for it")
      ->type_name("FILE");
  app.add_option("--transform", options->transform, "of keys, as in the method's options")
      ->check(CLI::IsMember({"hadamard", "klt", "both"}))
      ->capture_default_str();
  app.add_option("--seed", options->seed, "of the transforms' random signs")->capture_default_str();
  app.add_flag("--layer-signs", options->layer_signs, "each layer has signs of its own");
  app.add_option("--documents", options->documents, "most windows used")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--window", options->window, "tokens of a window")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--span", options->span,
                 "of readkv's scales: positions that prompts will have; windows count as if they "
                 "stood all over them (default: the model's context)")
      ->type_name("TOKENS")
      ->check(CLI::Range(1, 1 << 24))
      ->excludes(basis);
  add_model_options(app, &options->inputs);
  return [options](const Context& context) { return run_calibrate(*options, context); };
}

}  // namespace

extern constinit const Command calibrate_command = {
    "calibrate", "measure a model on held-out text, for methods that need it (readkv, varrate)",
    add};

}  // namespace kvist
