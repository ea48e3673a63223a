// SPDX-License-Identifier: MIT
// One session; every method is put over the same prefill, which is set aside meanwhile.
#include "kvist/cli/eval_subject.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>

#include "kvist/cli/answer.h"
#include "kvist/cli/observing.h"
#include "kvist/cli/report.h"
#include "kvist/core/error.h"
#include "kvist/runtime/calibrate.h"

namespace kvist {
namespace {

using Clock = std::chrono::steady_clock;
double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// A method between read() and place().
struct Waiting {
  Spec spec;
  std::unique_ptr<Selector> selector;
  double watch_ms = 0;
};

}  // namespace

struct ModelSubject::Impl {
  void watch(std::span<const int32_t> context, const std::atomic<bool>* stop, double* prefill_ms);
  void repeat(std::span<const int32_t> context, const std::atomic<bool>* stop);

  Inputs inputs;
  std::unique_ptr<Model> model;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Prompt> prompt;
  std::unique_ptr<Session> session;
  std::vector<Waiting> waiting;
  // Calibrations by the text of the method; they live as long as the subject.
  std::map<std::string, std::shared_ptr<const CodedModel>> codes;
  std::map<std::string, std::shared_ptr<const RankedModel>> bases;
  bool coded = false;  // what is in place
};

ModelSubject::ModelSubject(const Inputs& inputs, const Context& context)
    : impl_(std::make_unique<Impl>()) {
  Impl& s = *impl_;
  s.inputs = inputs;
  const std::string path = model_path(inputs);
  s.model = Model::load(path, model_options(inputs, context));
  s.tokenizer = Tokenizer::load(path);
  s.prompt = std::make_unique<Prompt>(*s.tokenizer, inputs.raw);
  if (!inputs.raw && !s.prompt->has_template()) {
    throw Error(ErrorKind::unsupported,
                str(path, " has no chat template that libllama knows; --raw asks without one"));
  }
  s.session = std::make_unique<Session>(*s.model, *context.pool, session_options(inputs));
}

ModelSubject::~ModelSubject() = default;

const ModelInfo& ModelSubject::info() const { return impl_->model->info(); }
std::string ModelSubject::model_hash() const { return info().hash; }

int ModelSubject::count_tokens(std::string_view text) const {
  return static_cast<int>(impl_->tokenizer->encode(text, false).size());
}

std::string ModelSubject::template_text() const {
  if (impl_->inputs.raw) return "none";
  const auto parts = impl_->tokenizer->chat_parts();
  return str(parts.head, "{context}|{question}", parts.tail, "{answer_prefix}");
}

PromptIds ModelSubject::prompt(const EvalRow& row, Mode mode) const {
  const Prompt& p = *impl_->prompt;
  if (mode == Mode::aware)
    return {p.document(row.context + row.question), p.question("", row.answer_prefix)};
  return {p.document(row.context), p.question(row.question, row.answer_prefix)};
}

uint64_t ModelSubject::reference_bytes(int n_tokens) const {
  return kvist::reference_bytes(info(), n_tokens);
}

// The prefill that all selectors watch; each is charged for what it does meanwhile.
void ModelSubject::Impl::watch(std::span<const int32_t> context, const std::atomic<bool>* stop,
                               double* prefill_ms) {
  std::deque<TimedObserver> timed;
  std::vector<Observer*> observers;
  for (Waiting& w : waiting)
    if (w.selector) observers.push_back(&timed.emplace_back(*w.selector));
  const auto begin = Clock::now();
  Watch watch(observers);
  for (const Waiting& w : waiting) {
    if (const auto ranking = w.spec.ranking())
      watch.needs.window_queries = std::max(watch.needs.window_queries, ranking->window_queries());
  }
  if (context.empty()) {
    session->start_empty();
  } else {
    session->prefill(context, watch, {}, stop);
  }
  *prefill_ms = ms_since(begin);
  size_t at = 0;
  for (Waiting& w : waiting) {
    if (!w.selector) continue;
    w.watch_ms = timed[at++].ms();
    *prefill_ms -= w.watch_ms;
  }
}

// One repetition for all selectors that ask for the same; each is charged for all of it but the
// work of the others.
void ModelSubject::Impl::repeat(std::span<const int32_t> context, const std::atomic<bool>* stop) {
  std::map<int, std::vector<Waiting*>> by_chunk;
  for (Waiting& w : waiting) {
    const int chunk = w.selector ? w.selector->needs().repeat_chunk : 0;
    if (chunk > 0) by_chunk[chunk].push_back(&w);
  }
  for (auto& [chunk, all] : by_chunk) {
    std::deque<TimedObserver> timed;
    std::vector<Observer*> observers;
    for (Waiting* w : all) observers.push_back(&timed.emplace_back(*w->selector));
    const auto begin = Clock::now();
    session->repeat(repeat_requests(*tokenizer, *prompt, context, chunk), observers, {}, stop);
    double model_ms = ms_since(begin);
    for (const TimedObserver& one : timed) model_ms -= one.ms();
    for (size_t i = 0; i < all.size(); ++i) all[i]->watch_ms += model_ms + timed[i].ms();
  }
}

double ModelSubject::read(std::span<const int32_t> context, std::span<const Spec> specs,
                          const std::atomic<bool>* stop) {
  Impl& s = *impl_;
  s.waiting.clear();
  for (const Spec& spec : specs) {
    const auto reading = spec.reading();
    if (reading && !reading->calibrate_on_prompt && !s.codes.contains(spec.text))
      s.codes[spec.text] = load_code(s.inputs.calibration, *reading, info());
    const auto ranking = spec.ranking();
    if (ranking && !s.bases.contains(spec.text))
      s.bases[spec.text] = load_ranked(s.inputs.basis, *ranking, info());
    s.waiting.push_back({spec, spec.make_selector(), 0});
  }
  double prefill_ms = 0;
  s.watch(context, stop, &prefill_ms);
  s.repeat(context, stop);
  s.coded = false;
  return prefill_ms;
}

Placed ModelSubject::place(size_t i) {
  Impl& s = *impl_;
  Waiting& w = s.waiting[i];
  Placed placed;
  placed.construct_ms = w.watch_ms;
  const auto begin = Clock::now();
  s.session->set_aside();
  if (const auto reading = w.spec.reading()) {
    auto code = s.codes[w.spec.text];
    if (reading->calibrate_on_prompt) {
      code = std::make_shared<CodedModel>(
          calibrate_on_prefix(*s.session, read_source(info()), reading->basis));
    }
    if (w.selector) s.session->compress(*w.selector);
    s.session->encode(reading->plan, code);
    s.coded = true;
  } else if (const auto ranking = w.spec.ranking()) {
    s.session->encode(*ranking, s.bases[w.spec.text]);
  } else if (w.selector) {
    s.session->compress(*w.selector);
  }
  placed.construct_ms += ms_since(begin);
  w.selector.reset();
  placed.bytes = s.session->prefix().bytes();
  placed.kept = kept_counts(s.session->prefix());
  return placed;
}

Reply ModelSubject::ask(std::span<const int32_t> question, int limit,
                        const std::atomic<bool>* stop) {
  Impl& s = *impl_;
  s.session->read_trace() = {};
  AnswerOptions options;
  options.limit = limit;
  options.stop = stop;
  Answer answer = answer_one(*s.session, *s.tokenizer, question, options, {});
  if (stop != nullptr && stop->load())
    throw Error(ErrorKind::interrupted, "stopped in the middle of an answer, which is not kept");
  Reply reply;
  reply.first_ms = answer.first_token_ms;
  reply.decode_ms = answer.decode_tok_s > 0 ? 1e3 / answer.decode_tok_s : 0;
  reply.stop = answer.unseen ? "limit" : "eos";
  reply.text = std::move(answer.text);
  reply.token_ids = std::move(answer.token_ids);
  reply.read_share = read_share(question.size(), reply.token_ids.size());
  return reply;
}

// Calls: the question in one, then each token that is fed back. A coded cache counts what its
// reader read; a plain one is read whole. Suffixes count on both sides.
double ModelSubject::read_share(size_t n_question, size_t n_answer) const {
  const Session& session = *impl_->session;
  const auto all = static_cast<double>(reference_bytes(session.n_prompt()));
  if (impl_->coded) {
    const ReadCounts& reads = impl_->session->read_trace();
    if (reads.numbers == 0) return 0;
    double kept = 0, heads = 0;
    for (const auto& layer : kept_counts(session.prefix()))
      for (int n : layer) kept += n, ++heads;
    const double held = kept / heads / std::max(1, session.n_prompt());
    const auto bits =
        static_cast<double>(reads.key_bits + reads.value_bits + 8 * reads.dense_bytes);
    return held * bits / (16 * static_cast<double>(reads.numbers));
  }
  const auto held = static_cast<double>(session.prefix().bytes().payload);
  double read = 0, whole = 0;
  for (size_t call = 0; call < std::max<size_t>(1, n_answer); ++call) {
    const auto suffix = static_cast<double>(reference_bytes(static_cast<int>(n_question + call)));
    read += held + suffix;
    whole += all + suffix;
  }
  return read / whole;
}

void ModelSubject::restore() {
  impl_->session->restore();
  impl_->coded = false;
}

}  // namespace kvist
