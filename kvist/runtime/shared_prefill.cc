// SPDX-License-Identifier: MIT
// Who watches, who repeats, and who is charged for it.
#include "kvist/runtime/shared_prefill.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>

#include "kvist/core/buffer.h"
#include "kvist/core/error.h"
#include "kvist/core/peak_rss.h"
#include "kvist/runtime/timed_observer.h"

namespace kvist {
namespace {

using Clock = std::chrono::steady_clock;
double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

std::function<void(const Progress&)> told_as(const char* what, const ReadHooks& hooks) {
  if (!hooks.on_progress) return {};
  return [what, &hooks](const Progress& p) { hooks.on_progress(what, p); };
}

}  // namespace

struct SharedPrefill::Waiting {
  Recipe recipe;
  std::unique_ptr<Selector> selector;
  double ms = 0;  // so far
};

SharedPrefill::SharedPrefill(Session& session, Repeats repeats)
    : session_(session), repeats_(std::move(repeats)) {}
SharedPrefill::~SharedPrefill() = default;

Observer* SharedPrefill::watcher(const Waiting& waiting) const {
  return waiting.selector ? &waiting.selector->watcher() : nullptr;
}

void SharedPrefill::charge(Observer* who, double ms) {
  for (Waiting& w : waiting_)
    if (watcher(w) == who) w.ms += ms;
}

double SharedPrefill::read(std::span<const int32_t> document, std::span<const Recipe> recipes,
                           const ReadHooks& hooks) {
  scorers_ = std::make_unique<Scorers>();
  waiting_.clear();
  for (const Recipe& recipe : recipes)
    waiting_.push_back({recipe, recipe.spec.make_selector(*scorers_), 0});
  std::deque<TimedObserver> timed;
  std::vector<Observer*> watchers;
  Watch watch;
  for (const Waiting& w : waiting_) {
    watch.needs.also(w.recipe.spec.needs());
    Observer* one = watcher(w);
    if (one == nullptr || std::find(watchers.begin(), watchers.end(), one) != watchers.end())
      continue;
    watchers.push_back(one);
    watch.observers.push_back(&timed.emplace_back(*one));
  }
  const auto begin = Clock::now();
  if (document.empty()) {
    session_.start_empty();
    logits_.clear();
  } else {
    logits_ = session_.prefill(document, watch, told_as("reading", hooks), hooks.stop);
  }
  double model_ms = ms_since(begin);
  for (size_t i = 0; i < watchers.size(); ++i) {
    charge(watchers[i], timed[i].ms());
    model_ms -= timed[i].ms();
  }
  repeat(document, hooks);
  return model_ms;
}

// One repetition for all watchers that ask for the same; each is charged for all of it but the work
// of the others.
void SharedPrefill::repeat(std::span<const int32_t> document, const ReadHooks& hooks) {
  std::map<int, std::vector<Observer*>> by_chunk;
  for (const Waiting& w : waiting_) {
    Observer* one = watcher(w);
    const int chunk = one == nullptr ? 0 : one->needs().repeat_chunk;
    if (chunk == 0) continue;
    auto& all = by_chunk[chunk];
    if (std::find(all.begin(), all.end(), one) == all.end()) all.push_back(one);
  }
  for (const auto& [chunk, watchers] : by_chunk) {
    if (!repeats_) {
      throw Error(ErrorKind::unsupported,
                  "a method reads the document twice, and nobody says how to ask for that");
    }
    std::deque<TimedObserver> timed;
    std::vector<Observer*> observers;
    for (Observer* one : watchers) observers.push_back(&timed.emplace_back(*one));
    const auto begin = Clock::now();
    session_.repeat(repeats_(document, chunk), observers, told_as("repeating", hooks), hooks.stop);
    double model_ms = ms_since(begin);
    for (const TimedObserver& one : timed) model_ms -= one.ms();
    for (size_t i = 0; i < watchers.size(); ++i) charge(watchers[i], model_ms + timed[i].ms());
  }
}

SharedPrefill::Placed SharedPrefill::place(
    size_t i, const std::function<void(const Progress&)>& on_progress) {
  Waiting& w = waiting_[i];
  rss_before_ = peak_rss_bytes();
  rss_is_reset_ = reset_peak_rss();
  reset_buffer_peak();
  const uint64_t before = buffer_totals().live_bytes;
  const double spared = scorers_->spared_ms();
  const auto begin = Clock::now();
  session_.set_aside();
  apply(session_, w.recipe, w.selector.get(), nullptr, on_progress);
  w.ms += ms_since(begin) + scorers_->spared_ms() - spared;
  w.selector.reset();
  return {w.ms, buffer_totals().peak_bytes - before};
}

void SharedPrefill::restore() { session_.restore(); }

uint64_t SharedPrefill::placed_rss_bytes() const {
  return rss_is_reset_ ? kvist::peak_rss_bytes() : 0;
}
uint64_t SharedPrefill::peak_rss_bytes() const {
  return std::max(rss_before_, kvist::peak_rss_bytes());
}

}  // namespace kvist
