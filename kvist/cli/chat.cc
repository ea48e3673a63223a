// SPDX-License-Identifier: MIT
// The chat loop: a line in, an answer out, and the words that start over or leave.
#include "kvist/cli/chat.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <vector>

#include "kvist/cli/interrupt.h"
#include "kvist/cli/terminal.h"
#include "kvist/cli/utf8.h"
#include "kvist/core/error.h"

namespace kvist {
namespace {

// A line without its break; nothing at the end of input or after Ctrl-C.
std::optional<std::string> read_line() {
  std::string line;
  for (char c = 0;;) {
    const ssize_t n = ::read(STDIN_FILENO, &c, 1);
    if (n < 0 && errno == EINTR) return std::nullopt;
    if (n <= 0) return line.empty() ? std::nullopt : std::optional(line);
    if (c == '\n') return line;
    line += c;
  }
}

void say(Shade shade, const std::string& text) {
  std::fprintf(stderr, "%s", paint(2, shade, text).c_str());
  std::fflush(stderr);
}

// The conversation so far: a sequence over the document, and the token that is not in it yet.
class Conversation {
 public:
  Conversation(Loaded& loaded, const std::string& prefix) : loaded_(loaded), prefix_(prefix) {}
  ~Conversation() { forget(); }
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;

  void forget() {
    if (sequence_) loaded_.session->close(*sequence_);
    sequence_.reset();
    unseen_.reset();
  }

  Answer ask(const std::string& line, const AnswerOptions& options) {
    const std::vector<int32_t> ids = next_ids(line);
    const int room = loaded_.session->room(*sequence_);
    if (static_cast<int>(ids.size()) >= room) {
      throw Error(ErrorKind::exhausted, str("the question has ", ids.size(),
                                            " tokens and the context has room for ", room));
    }
    Answer answer = answer_in(*loaded_.session, *loaded_.tokenizer, *sequence_, ids, options,
                              [](std::string_view piece) {
                                std::fwrite(piece.data(), 1, piece.size(), stdout);
                                std::fflush(stdout);
                              });
    unseen_ = answer.unseen;
    return answer;
  }

 private:
  // Opens a sequence where there is none, or where the template does not show how a message follows
  // an answer.
  std::vector<int32_t> next_ids(const std::string& line) {
    if (sequence_) {
      if (auto more = loaded_.prompt->follow_up(line, prefix_)) {
        if (unseen_) more->insert(more->begin(), *unseen_);
        return *more;
      }
      forget();
    }
    sequence_ = loaded_.session->open();
    return loaded_.prompt->question(line, prefix_);
  }

  Loaded& loaded_;
  const std::string& prefix_;
  std::optional<int> sequence_;
  std::optional<int32_t> unseen_;
};

}  // namespace

int chat(Loaded& loaded, AnswerOptions options, const std::string& answer_prefix) {
  std::atomic<bool>& stop = watch_interrupt();
  Conversation conversation(loaded, answer_prefix);
  say(Shade::dim,
      "Ask about the document. /new forgets the conversation, /exit leaves, Ctrl-C stops an "
      "answer.\n");
  for (;;) {
    say(Shade::strong, "> ");
    const std::optional<std::string> line = read_line();
    if (!line || *line == "/exit") break;
    if (line->empty()) continue;
    if (*line == "/new") {
      conversation.forget();
      continue;
    }
    if (first_invalid_utf8(*line)) {
      say(Shade::error, "that line is not UTF-8 text\n");
      continue;
    }
    try {
      say(Shade::dim, answer_prefix);
      const Answer answer = conversation.ask(*line, options);
      std::fputs("\n", stdout);
      std::fflush(stdout);
      say(Shade::dim,
          fmt::format("{} tokens, first after {:.0f} ms, {:.0f} tok/s\n", answer.token_ids.size(),
                      answer.first_token_ms, answer.decode_tok_s));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::exhausted) throw;
      say(Shade::error, str("\n", error.what(), "; starting anew\n"));
      conversation.forget();
    }
    stop = false;
  }
  std::fputs("\n", stderr);
  return stop ? kInterrupted : kDone;
}

}  // namespace kvist
