// SPDX-License-Identifier: MIT
// Timing, and the words that ask for a repetition.
#include "kvist/cli/observing.h"

#include <algorithm>
#include <chrono>

namespace kvist {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kLead = 8;  // tokens of the chunk before, which say where to begin

template <typename Fn>
double ms_of(const Fn& fn) {
  const auto begin = Clock::now();
  fn();
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

}  // namespace

void TimedObserver::observe(const LayerInput& layer) {
  ms_ += ms_of([&] { inner_.observe(layer); });
}
void TimedObserver::observe_repetition(const LayerInput& layer, const Repetition& repetition) {
  ms_ += ms_of([&] { inner_.observe_repetition(layer, repetition); });
}

std::vector<Repeat> repeat_requests(const Tokenizer& tokenizer, const Prompt& prompt,
                                    std::span<const int32_t> ids, int chunk) {
  const std::vector<int32_t> whole =
      tokenizer.encode("\n\nRepeat the previous context exactly.", false);
  const std::vector<int32_t> part =
      tokenizer.encode("\n\nRepeat the part of the previous context exactly, starting with", false);
  const std::vector<int32_t> turn = prompt.question("", "");
  const std::vector<int32_t> head = prompt.document("");  // the template's, and no word of the user
  const auto first = static_cast<size_t>(
      std::mismatch(head.begin(), head.end(), ids.begin(), ids.end()).first - head.begin());
  std::vector<Repeat> repeats;
  for (size_t begin = first; begin < ids.size(); begin += static_cast<size_t>(chunk)) {
    const size_t end = std::min(begin + static_cast<size_t>(chunk), ids.size());
    Repeat& r = repeats.emplace_back();
    r.begin = static_cast<int>(begin);
    r.end = static_cast<int>(end);
    r.input = repeats.size() == 1 ? whole : part;
    if (repeats.size() > 1) {
      const size_t lead = std::min(kLead, begin);
      r.input.insert(r.input.end(), ids.begin() + static_cast<std::ptrdiff_t>(begin - lead),
                     ids.begin() + static_cast<std::ptrdiff_t>(begin));
    }
    r.input.insert(r.input.end(), turn.begin(), turn.end());
    r.input.insert(r.input.end(), ids.begin() + r.begin, ids.begin() + r.end);
  }
  return repeats;
}

}  // namespace kvist
