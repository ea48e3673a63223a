// SPDX-License-Identifier: MIT
// A clock around each call.
#include "kvist/runtime/timed_observer.h"

#include <chrono>

namespace kvist {
namespace {

template <typename Fn>
double ms_of(const Fn& fn) {
  using Clock = std::chrono::steady_clock;
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

}  // namespace kvist
