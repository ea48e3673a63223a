// SPDX-License-Identifier: MIT
// Methods that watch the document being read, or repeated: what they are shown, and what it costs.
#pragma once

#include <vector>

#include "kvist/cli/prompt.h"
#include "kvist/methods/method.h"
#include "kvist/model/tokenizer.h"
#include "kvist/runtime/session.h"

namespace kvist {

// Passes everything on and adds up the time it takes.
class TimedObserver final : public Observer {
 public:
  explicit TimedObserver(Observer& inner) : inner_(inner) {}
  Needs needs() const override { return inner_.needs(); }
  void observe(const LayerInput& layer) override;
  void observe_repetition(const LayerInput& layer, const Repetition& repetition) override;
  double ms() const { return ms_; }

 private:
  Observer& inner_;
  double ms_ = 0;
};

// Requests to repeat the document `ids` chunk by chunk, as KVzip asks: an instruction, the last
// tokens of the chunk before, the end of the user's turn, then the chunk itself. The head of the
// chat template is not repeated.
std::vector<Repeat> repeat_requests(const Tokenizer& tokenizer, const Prompt& prompt,
                                    std::span<const int32_t> ids, int chunk);

}  // namespace kvist
