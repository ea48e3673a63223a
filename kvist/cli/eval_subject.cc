// SPDX-License-Identifier: MIT
// One session; every method is put over the same prefill, which is set aside meanwhile.
#include "kvist/cli/eval_subject.h"

#include <map>

#include "kvist/cli/answer.h"
#include "kvist/cli/repeat.h"
#include "kvist/cli/report.h"
#include "kvist/core/error.h"
#include "kvist/core/sha256.h"
#include "kvist/runtime/read_share.h"
#include "kvist/runtime/shared_prefill.h"

namespace kvist {
struct ModelSubject::Impl {
  Inputs inputs;
  std::unique_ptr<Model> model;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Prompt> prompt;
  std::unique_ptr<Session> session;
  std::unique_ptr<SharedPrefill> prefill;
  std::map<std::string, Recipe> recipes;  // by the text of the spec
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
  s.prefill =
      std::make_unique<SharedPrefill>(*s.session, [&s](std::span<const int32_t> ids, int chunk) {
        return repeat_requests(*s.tokenizer, *s.prompt, ids, chunk);
      });
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

std::string ModelSubject::tokenizer_hash() const {
  std::string all;
  for (int32_t id = 0; id < impl_->tokenizer->vocab(); ++id)
    all += str(impl_->tokenizer->piece(id, true), "\n");
  return sha256_hex(std::string_view(all));
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

double ModelSubject::read(std::span<const int32_t> context, std::span<const Spec> specs,
                          const std::atomic<bool>* stop) {
  Impl& s = *impl_;
  std::vector<Recipe> recipes;
  for (const Spec& spec : specs) {
    auto known = s.recipes.find(spec.text);
    if (known == s.recipes.end())
      known = s.recipes.emplace(spec.text, load_recipe(spec, s.inputs, info())).first;
    recipes.push_back(known->second);
  }
  return s.prefill->read(context, recipes, {{}, stop});
}

Placed ModelSubject::place(size_t i) {
  Impl& s = *impl_;
  Placed placed;
  const auto [construct_ms, construct_bytes] = s.prefill->place(i);
  placed.construct_ms = construct_ms;
  placed.construct_bytes = construct_bytes;
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
  Answer answer = question.empty()
                      ? answer_on(*s.session, *s.tokenizer, s.prefill->last_logits(), options)
                      : answer_one(*s.session, *s.tokenizer, question, options, {});
  if (stop != nullptr && stop->load())
    throw Error(ErrorKind::interrupted, "stopped in the middle of an answer, which is not kept");
  Reply reply;
  reply.first_ms = answer.first_token_ms;
  reply.decode_ms = answer.decode_tok_s > 0 ? 1e3 / answer.decode_tok_s : 0;
  reply.stop = answer.unseen ? "limit" : "eos";
  reply.text = std::move(answer.text);
  reply.token_ids = std::move(answer.token_ids);
  std::vector<int> suffix;  // of each row: the question's, then each token that was fed back
  const size_t n_fed = reply.token_ids.empty() ? 0 : reply.token_ids.size() - !!answer.unseen;
  for (size_t i = 0; i < question.size() + n_fed; ++i) suffix.push_back(static_cast<int>(i) + 1);
  const ReadShare share = read_share(*s.session, suffix);
  reply.read_share = share.logical;
  reply.touched_share = share.touched;
  reply.answering_bytes = s.session->answering_bytes();
  reply.peak_rss_bytes = s.prefill->placed_rss_bytes();
  return reply;
}

void ModelSubject::restore() { impl_->prefill->restore(); }
uint64_t ModelSubject::digest() const { return impl_->session->prefix_digest(); }

uint64_t ModelSubject::peak_rss_bytes() const { return impl_->prefill->peak_rss_bytes(); }

}  // namespace kvist
