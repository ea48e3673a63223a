// SPDX-License-Identifier: MIT
// kvist eval perplexity: next-token distributions beside those of the uncompressed cache.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "kvist/cli/eval.h"
#include "kvist/cli/interrupt.h"
#include "kvist/cli/terminal.h"
#include "kvist/cli/texts.h"
#include "kvist/core/error.h"
#include "kvist/eval/perplexity.h"

namespace kvist {
namespace {

// One window from the start of every document that is long enough.
std::vector<std::vector<int32_t>> windows_of(const EvalOptions& options,
                                             const Tokenizer& tokenizer) {
  std::vector<std::vector<int32_t>> windows;
  const auto length = static_cast<size_t>(options.tokens);
  for (auto& tokens : tokenized(options.texts, tokenizer)) {
    if (tokens.size() < length || windows.size() == static_cast<size_t>(options.documents))
      continue;
    tokens.resize(length);
    windows.push_back(std::move(tokens));
  }
  if (windows.empty()) {
    throw Error(ErrorKind::invalid_argument,
                str("no document of --text has ", options.tokens, " tokens (--tokens)"));
  }
  return windows;
}

nlohmann::ordered_json json_of(const Contestant& contestant, const PerplexityResult& r) {
  return {{"method", contestant.spec.none() ? "none" : contestant.spec.text},
          {"targets", r.stats.targets()},
          {"perplexity", r.stats.perplexity()},
          {"base_perplexity", r.stats.base_perplexity()},
          {"log_ratio", {{"mean", r.stats.log_ratio().mean}, {"se", r.stats.log_ratio().se}}},
          {"kl",
           {{"mean", r.stats.kl().mean},
            {"se", r.stats.kl().se},
            {"median", r.stats.kl_percentile(0.5)},
            {"p99", r.stats.kl_percentile(0.99)},
            {"max", r.stats.kl_percentile(1)}}},
          {"same_top", r.stats.same_top().mean},
          {"stored_bytes", r.bytes.stored()},
          {"plain_bytes", r.plain_bytes},
          {"read_bits", r.reads.bits_per_number()}};
}

}  // namespace

int eval_perplexity(const EvalOptions& options, const Context& context) {
  if (options.methods.empty())
    throw Error(ErrorKind::invalid_argument, "--methods is missing: what is to be measured");
  if (options.texts.empty())
    throw Error(ErrorKind::invalid_argument, "--text is missing: documents to measure on");
  const std::atomic<bool>& stop = watch_interrupt();
  std::vector<Contestant> contestants;
  for (Spec& spec : specs_of(options)) contestants.push_back({std::move(spec), {}});
  const std::string path = model_path(options.inputs);
  const auto model = Model::load(path, model_options(options.inputs, context));
  for (Contestant& c : contestants) {
    if (const auto reading = c.spec.reading())
      c.code = load_code(options.inputs.calibration, *reading, model->info());
  }
  const auto tokenizer = Tokenizer::load(path);
  const auto windows = windows_of(options, *tokenizer);
  const Protocol protocol = options.protocol == "causal" ? Protocol::causal : Protocol::prefix;
  std::vector<PerplexityResult> results;
  {
    ProgressBar bar("measuring", false);
    results = perplexity(
        *model, *context.pool, protocol, contestants, windows,
        [&](const Progress& p) { bar.update(p.done, p.total, p.seconds, "tokens"); }, &stop);
  }
  if (context.json) {
    auto rows = nlohmann::ordered_json::array();
    for (size_t i = 0; i < results.size(); ++i) rows.push_back(json_of(contestants[i], results[i]));
    std::printf("%s\n", nlohmann::ordered_json{{"suite", options.suite},
                                               {"protocol", options.protocol},
                                               {"model", path},
                                               {"documents", windows.size()},
                                               {"tokens", options.tokens},
                                               {"rows", rows}}
                            .dump(2)
                            .c_str());
    return kDone;
  }
  Table table(
      {"method", "perplexity", "change", "KL", "±", "KL p99", "same top", "factor", "bits read"});
  for (size_t i = 0; i < results.size(); ++i) {
    const PerplexityResult& r = results[i];
    table.add(
        {contestants[i].spec.none() ? "none" : contestants[i].spec.text,
         fmt::format("{:.3f}", r.stats.perplexity()),
         fmt::format("{:+.2f} %", 100 * (r.stats.perplexity() / r.stats.base_perplexity() - 1)),
         fmt::format("{:.5f}", r.stats.kl().mean), fmt::format("{:.5f}", r.stats.kl().se),
         fmt::format("{:.4f}", r.stats.kl_percentile(0.99)),
         fmt::format("{:.1f} %", 100 * r.stats.same_top().mean),
         fmt::format("{:.2f}x", static_cast<double>(r.plain_bytes) /
                                    static_cast<double>(std::max<uint64_t>(1, r.bytes.stored()))),
         r.reads.numbers == 0 ? "–" : fmt::format("{:.2f}", r.reads.bits_per_number())});
  }
  std::printf("%s, %zu documents of %d tokens, uncompressed perplexity %.3f\n%s",
              options.protocol.c_str(), windows.size(), options.tokens,
              results.front().stats.base_perplexity(), table.text().c_str());
  return kDone;
}

}  // namespace kvist
