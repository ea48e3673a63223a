// SPDX-License-Identifier: MIT
// A whole model, timed in turn with libllama on the same tokens: time to first token, construction,
// decoding, eight questions at once. Figures of other programs come from a file that their own
// script wrote.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <memory>

#include "kvist/cli/bench.h"
#include "kvist/cli/document.h"
#include "kvist/core/rng.h"
#include "kvist/model/peer.h"
#include "kvist/model/tokenizer.h"
#include "kvist/runtime/session.h"

namespace kvist {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kTogether = 8;

double seconds_of(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int32_t best(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Prose-like text for users who name no document: speed depends on its length, hardly on its words.
std::string made_up_prose(int n_words) {
  static constexpr const char* kWords[] = {
      "the",   "river", "of",    "stone",  "and",     "a",      "winter", "market",
      "under", "light", "which", "people", "carried", "toward", "old",    "harbour",
      "while", "birds", "over",  "green",  "hills",   "spoke",  "about",  "letters"};
  Rng rng(7);
  std::string text;
  for (int i = 0; i < n_words; ++i) {
    text += kWords[rng.below(std::size(kWords))];
    text += i % 13 == 12 ? ". " : " ";
  }
  return text;
}

std::vector<int32_t> prompt_tokens(const Tokenizer& tokenizer, const std::string& document,
                                   int most) {
  const std::string text = document.empty() ? made_up_prose(most) : read_document(document);
  std::vector<int32_t> tokens = tokenizer.encode(text, false);
  const size_t length = tokens.size();
  while (tokens.size() < static_cast<size_t>(most))
    tokens.push_back(tokens[tokens.size() - length]);
  return tokens;
}

std::string length_name(int n) { return str((n + 500) / 1000, "k"); }

struct Bench {
  const ModelBenchOptions& options;
  ThreadPool& pool;
  const RowSink& sink;
  std::unique_ptr<Model> model;
  std::unique_ptr<LlamaPeer> peer;
  std::vector<int32_t> tokens;
  std::vector<nlohmann::json> others;  // lines of the peer file

  void first_token(int n);
  void decode(int n, int n_sequences);
  void report_decode(int n, int n_sequences, const std::string& variant, const Sample& ours,
                     const Sample& theirs);
  void beside_others(const std::string& id, int n, const char* key, double value, double spread,
                     const char* unit, RatioKind kind, double target, bool questions);
};

// Rows against the programs of the peer file, where they were measured at about n tokens.
void Bench::beside_others(const std::string& id, int n, const char* key, double value,
                          double spread, const char* unit, RatioKind kind, double target,
                          bool questions) {
  for (const auto& line : others) {
    const int at = line.value(questions ? "n_prefix" : "n_prompt", 0);
    if (!line.contains(key) || std::abs(at - n) > n / 10) continue;
    const std::string name = line.value("peer", "peer");
    sink({str(id, "/", name), value, spread, unit, name, line[key].get<double>(), kind, target});
  }
}

void Bench::first_token(int n) {
  const std::span<const int32_t> prompt(tokens.data(), n);
  const Spec spec = parse_spec("twinkv(ratio=0.5)");
  Sample ours, theirs, construct;
  int32_t first_ours = 0, first_theirs = 0;
  for (int r = 0; r < options.repeats; ++r) {
    options.log(str("first token at ", n, ": ", r + 1, " of ", options.repeats));
    Session session(*model, pool, {});
    const auto selector = spec.make_selector();
    ours.seconds.push_back(
        seconds_of([&] { first_ours = best(session.prefill(prompt, selector->needs())); }));
    construct.seconds.push_back(seconds_of([&] { session.compress(*selector); }));
    peer->clear();
    theirs.seconds.push_back(seconds_of([&] { first_theirs = best(peer->prefill(prompt)); }));
  }
  if (first_ours != first_theirs) {
    options.log(
        str("note: the first tokens differ (ours ", first_ours, ", libllama ", first_theirs, ")"));
  }
  const std::string id = str("ttft/", length_name(n));
  sink({id + "/libllama", ours.median() * 1e3, ours.spread(), "ms", "libllama",
        theirs.median() * 1e3, RatioKind::fraction, n < 4000 ? 0.28 : 0.24});
  beside_others(id, n, "ttft_ms", ours.median() * 1e3, ours.spread(), "ms", RatioKind::fraction,
                1.1, false);
  sink({str("construct/twinkv0.5/", length_name(n)), construct.median() * 1e3, construct.spread(),
        "ms", "our prefill", ours.median() * 1e3, RatioKind::fraction, 0.08});
}

// Seconds a step of `steps` greedy steps; step(last, &logits) runs one, and last [sequences] goes
// on to the tokens it chose.
template <typename Step>
double seconds_a_step(int steps, std::vector<int32_t>* last, const Step& step) {
  std::vector<float> logits;
  const double seconds = seconds_of([&] {
    for (int i = 0; i < steps; ++i) {
      step(*last, &logits);
      const size_t vocab = logits.size() / last->size();
      for (size_t s = 0; s < last->size(); ++s)
        (*last)[s] = best(std::span(logits).subspan(s * vocab, vocab));
    }
  });
  return seconds / steps;
}

// Decoding `n_sequences` continuations together over the first n tokens, uncompressed and then
// compressed, each in turn with libllama.
void Bench::decode(int n, int n_sequences) {
  const std::span<const int32_t> prompt(tokens.data(), n);
  peer->clear();
  const int32_t peer_first = best(peer->prefill(prompt));
  if (n_sequences > 1) peer->share_prefix();
  const Spec compressed = parse_spec("twinkv(ratio=0.75)");
  const auto selector = compressed.make_selector();
  Session session(*model, pool, {});
  const int32_t first = best(session.prefill(prompt, selector->needs()));
  for (const char* variant : {"none", "twinkv0.75"}) {
    const bool whole = std::string_view(variant) == "none";
    options.log(str("decoding ", n_sequences, " over ", n, ", ", variant));
    if (!whole) session.compress(*selector);
    std::vector<int32_t> sequences, ours_last, theirs_last;
    for (int i = 0; i < n_sequences; ++i) {
      sequences.push_back(session.open());
      ours_last.push_back(first + i);  // different continuations
      theirs_last.push_back(peer_first + i);
    }
    const auto step_ours = [&](const std::vector<int32_t>& last, std::vector<float>* logits) {
      session.decode(sequences, last, logits);
    };
    const auto step_theirs = [&](const std::vector<int32_t>& last, std::vector<float>* logits) {
      peer->decode(last, logits);
    };
    seconds_a_step(options.decode_steps, &ours_last, step_ours);  // warm
    Sample ours, theirs;
    for (int r = 0; r < options.repeats; ++r) {
      ours.seconds.push_back(seconds_a_step(options.decode_steps, &ours_last, step_ours));
      theirs.seconds.push_back(seconds_a_step(options.decode_steps, &theirs_last, step_theirs));
    }
    for (int32_t sequence : sequences) session.close(sequence);
    report_decode(n, n_sequences, variant, ours, theirs);
  }
}

void Bench::report_decode(int n, int n_sequences, const std::string& variant, const Sample& ours,
                          const Sample& theirs) {
  struct Goal {
    double libllama, other;
  };
  const bool whole = variant == "none", many = n_sequences > 1;
  const Goal goal =
      many ? (whole ? Goal{3.5, 1.7} : Goal{4.0, 2.0}) : (whole ? Goal{2.1, 1.5} : Goal{3.0, 2.1});
  const bool judged = many || n > 7000;  // shorter single decodes are shown without a goal
  const std::string id =
      str(many ? str("together", n_sequences) : "decode", "/", length_name(n), "/", variant);
  const double rate = n_sequences / ours.median();
  sink({id + "/libllama", rate, ours.spread(), "tok/s", "libllama", n_sequences / theirs.median(),
        RatioKind::rate, judged ? std::optional(goal.libllama) : std::nullopt});
  if (judged) {
    beside_others(id, n, many ? "decode_tok_s_total" : "decode_tok_s", rate, ours.spread(), "tok/s",
                  RatioKind::rate, goal.other, many);
  }
}

std::vector<nlohmann::json> read_lines(const std::string& path) {
  std::vector<nlohmann::json> lines;
  if (path.empty()) return lines;
  std::ifstream in(path);
  if (!in) throw Error(ErrorKind::not_found, str(path, ": cannot be read"));
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.empty()) continue;
    nlohmann::json parsed = nlohmann::json::parse(line, nullptr, false);
    if (!parsed.is_object())
      throw Error(ErrorKind::corrupt, str(path, ":", number, ": not a JSON object"));
    lines.push_back(std::move(parsed));
  }
  return lines;
}

}  // namespace

void bench_model(const ModelBenchOptions& options, ThreadPool& pool, const RowSink& sink,
                 nlohmann::json* about) {
  Bench bench{options, pool, sink, nullptr, nullptr, {}, read_lines(options.peer_file)};
  const auto tokenizer = Tokenizer::load(options.model);
  ModelOptions mo;
  mo.n_threads = pool.n_threads();
  bench.model = Model::load(options.model, mo);
  const ModelInfo& info = bench.model->info();
  int most = options.together_prompt;
  for (int n : options.prompts) most = std::max(most, n);
  if (most + 256 > info.context) {
    throw Error(ErrorKind::invalid_argument,
                str("prompts of ", most, " tokens and 256 more do not fit into the context of ",
                    info.context, " tokens of ", info.path));
  }
  bench.tokens = prompt_tokens(*tokenizer, options.document, most);
  PeerOptions po;
  po.n_threads = pool.n_threads();
  po.context = std::max(most, options.together_prompt) + kTogether * 128 + 256;
  po.context =
      std::min(po.context, std::max(info.context, options.together_prompt + kTogether * 128));
  po.n_sequences = kTogether;
  po.extra_buffers = !options.plain_llama && LlamaPeer::extra_buffers_work();
  bench.peer = std::make_unique<LlamaPeer>(options.model, po);
  (*about)["model"] = info.path;
  (*about)["model_hash"] = info.hash;
  (*about)["architecture"] = info.architecture;
  (*about)["libllama_repacked_weights"] = po.extra_buffers;
  // Wide copies of weights are made at the first batch, once per process: not part of any figure.
  const std::span<const int32_t> start(bench.tokens.data(),
                                       std::min<size_t>(64, bench.tokens.size()));
  Session(*bench.model, pool, {}).prefill(start);
  bench.peer->prefill(start);
  for (int n : options.prompts) {
    bench.first_token(n);
    bench.decode(n, 1);
  }
  if (options.together_prompt > 0) bench.decode(options.together_prompt, kTogether);
}

}  // namespace kvist
