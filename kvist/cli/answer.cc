// SPDX-License-Identifier: MIT
// The loops that pick a token, show it and feed it back.
#include "kvist/cli/answer.h"

#include <chrono>
#include <deque>
#include <utility>

#include "kvist/cli/utf8.h"

namespace kvist {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// One answer on its way.
class Writer {
 public:
  Writer(const Tokenizer& tokenizer, const AnswerOptions& options, Clock::time_point begin)
      : tokenizer_(tokenizer), options_(options), sampler_(options.sampling), begin_(begin) {}

  // Takes the next token from `logits`; the piece to show goes to `on_piece`. False when the answer
  // is over.
  bool take(std::span<const float> logits, int room, const OnPiece& on_piece) {
    const int32_t token = sampler_.pick(logits);
    if (answer_.token_ids.empty()) {
      first_ = Clock::now();
      answer_.first_token_ms = 1e3 * std::chrono::duration<double>(first_ - begin_).count();
    }
    last_ = Clock::now();
    if (tokenizer_.is_end(token)) return false;
    answer_.token_ids.push_back(token);
    show(stream_.push(tokenizer_.piece(token)), on_piece);
    if (static_cast<int>(answer_.token_ids.size()) < options_.limit && room > 0 && !stopped())
      return true;
    answer_.unseen = token;
    return false;
  }

  int32_t token() const { return answer_.token_ids.back(); }

  Answer finish(const OnPiece& on_piece) {
    show(stream_.finish(), on_piece);
    const double seconds = std::chrono::duration<double>(last_ - first_).count();
    if (answer_.token_ids.size() > 1 && seconds > 0) {
      answer_.decode_tok_s = static_cast<double>(answer_.token_ids.size() - 1) / seconds;
    }
    return std::move(answer_);
  }

 private:
  bool stopped() const { return options_.stop != nullptr && options_.stop->load(); }
  void show(const std::string& piece, const OnPiece& on_piece) {
    if (piece.empty()) return;
    answer_.text += piece;
    if (on_piece) on_piece(piece);
  }

  const Tokenizer& tokenizer_;
  const AnswerOptions& options_;
  Sampler sampler_;
  Utf8Stream stream_;
  Answer answer_;
  Clock::time_point begin_, first_, last_;
};

// Closes what it opened, also when something is thrown.
class OpenSequences {
 public:
  OpenSequences(Session& session, size_t n) : session_(session) {
    for (size_t i = 0; i < n; ++i) ids_.push_back(session.open());
  }
  ~OpenSequences() {
    for (int id : ids_) session_.close(id);
  }
  OpenSequences(const OpenSequences&) = delete;
  OpenSequences& operator=(const OpenSequences&) = delete;
  int operator[](size_t i) const { return ids_[i]; }

 private:
  Session& session_;
  std::vector<int> ids_;
};

// Feeds each token back until the answer is over.
Answer written(Session& session, int sequence, std::vector<float> logits, Writer& writer,
               const OnPiece& on_piece) {
  while (writer.take(logits, session.room(sequence), on_piece)) {
    const int32_t token = writer.token();
    session.decode({&sequence, 1}, {&token, 1}, &logits);
  }
  return writer.finish(on_piece);
}

}  // namespace

Answer answer_in(Session& session, const Tokenizer& tokenizer, int sequence,
                 std::span<const int32_t> ids, const AnswerOptions& options,
                 const OnPiece& on_piece) {
  Writer writer(tokenizer, options, Clock::now());
  return written(session, sequence, session.extend(sequence, ids), writer, on_piece);
}

Answer answer_on(Session& session, const Tokenizer& tokenizer, std::span<const float> logits,
                 const AnswerOptions& options) {
  const OpenSequences open(session, 1);
  Writer writer(tokenizer, options, Clock::now());
  return written(session, open[0], {logits.begin(), logits.end()}, writer, {});
}

Answer answer_one(Session& session, const Tokenizer& tokenizer, std::span<const int32_t> ids,
                  const AnswerOptions& options, const OnPiece& on_piece) {
  const OpenSequences open(session, 1);
  return answer_in(session, tokenizer, open[0], ids, options, on_piece);
}

Together answer_together(Session& session, const Tokenizer& tokenizer,
                         const std::vector<std::vector<int32_t>>& questions,
                         const AnswerOptions& options) {
  const OpenSequences open(session, questions.size());
  const auto begin = Clock::now();
  std::deque<Writer> writers;
  std::vector<size_t> active;
  for (size_t i = 0; i < questions.size(); ++i) {
    writers.emplace_back(tokenizer, options, begin);
    const std::vector<float> logits = session.extend(open[i], questions[i]);
    if (writers[i].take(logits, session.room(open[i]), {})) active.push_back(i);
  }
  const auto decode_begin = Clock::now();
  size_t n_steps = 0;
  std::vector<float> logits;
  while (!active.empty()) {
    std::vector<int32_t> sequences, tokens;
    for (size_t i : active) {
      sequences.push_back(open[i]);
      tokens.push_back(writers[i].token());
    }
    session.decode(sequences, tokens, &logits);
    n_steps += active.size();
    const size_t width = logits.size() / active.size();
    std::vector<size_t> still;
    for (size_t row = 0; row < active.size(); ++row) {
      const size_t i = active[row];
      if (writers[i].take({logits.data() + row * width, width}, session.room(open[i]), {}))
        still.push_back(i);
    }
    active = std::move(still);
  }
  Together together;
  const double seconds = seconds_since(decode_begin);
  if (n_steps > 0 && seconds > 0) together.total_tok_s = static_cast<double>(n_steps) / seconds;
  for (Writer& writer : writers) together.answers.push_back(writer.finish({}));
  return together;
}

}  // namespace kvist
