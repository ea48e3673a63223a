// SPDX-License-Identifier: MIT
// Several methods over one prefill, one after another: each document is read once for all, and what
// they watch or score alike is watched and scored once.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kvist/methods/select/scorers.h"
#include "kvist/runtime/recipe.h"
#include "kvist/runtime/session.h"

namespace kvist {

struct ReadHooks {
  std::function<void(const char* what, const Progress&)> on_progress;  // "reading", "repeating"
  const std::atomic<bool>* stop = nullptr;  // interrupted when it becomes true
};

class SharedPrefill {
 public:
  // Requests to repeat a document in chunks of so many tokens, for methods that read it twice.
  using Repeats = std::function<std::vector<Repeat>(std::span<const int32_t> document, int chunk)>;

  // The session outlives it.
  SharedPrefill(Session& session, Repeats repeats);
  ~SharedPrefill();

  // Reads the document, which may be empty, while what the recipes need is recorded, and again
  // where one asks for that. Returns the milliseconds of the model alone. Throws what
  // Session::prefill does.
  double read(std::span<const int32_t> document, std::span<const Recipe> recipes,
              const ReadHooks& hooks = {});

  // After the last token of the document, of the uncompressed read; empty for an empty document.
  std::span<const float> last_logits() const { return logits_; }

  struct Placed {
    // What the method adds to a prefill, as if it had been alone: watching, a repetition, scoring,
    // coding.
    double construct_ms = 0;
    uint64_t construct_bytes = 0;  // Buffers taken meanwhile beside all that was there, at most
  };
  // Puts recipes[i] over the prefix; nothing else is in place. Each once after a read().
  Placed place(size_t i, const std::function<void(const Progress&)>& on_progress = {});
  void restore();

  // Of the process since place() began; 0 where the system does not say. It holds the weights and
  // the uncompressed prefix as well.
  uint64_t placed_rss_bytes() const;
  uint64_t peak_rss_bytes() const;  // of the process so far

 private:
  struct Waiting;  // a method between read() and place()
  Observer* watcher(const Waiting& waiting) const;
  void charge(Observer* watcher, double ms);
  void repeat(std::span<const int32_t> document, const ReadHooks& hooks);

  Session& session_;
  Repeats repeats_;
  std::unique_ptr<Scorers> scorers_;
  std::vector<Waiting> waiting_;
  std::vector<float> logits_;
  bool rss_is_reset_ = false;
  uint64_t rss_before_ = 0;  // the peak when it was reset
};

}  // namespace kvist
