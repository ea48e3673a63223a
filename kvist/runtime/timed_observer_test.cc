// SPDX-License-Identifier: MIT
// What an observer's time is made of.
#include "kvist/runtime/timed_observer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace kvist {
namespace {

class Slow final : public Observer {
 public:
  Needs needs() const override { return {.every_query = true, .repeat_chunk = 7}; }
  void observe(const LayerInput&) override { wait(); }
  void observe_repetition(const LayerInput&, const Repetition& r) override {
    begin = r.begin;
    wait();
  }
  int begin = 0;

 private:
  static void wait() { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }
};

TEST(TimedObserver, PassesOnAndAddsUp) {
  Slow slow;
  TimedObserver timed(slow);
  EXPECT_TRUE(timed.needs().every_query);
  EXPECT_EQ(timed.needs().repeat_chunk, 7);
  EXPECT_EQ(timed.ms(), 0);
  timed.observe({});
  EXPECT_GE(timed.ms(), 5);
  Repetition r;
  r.begin = 3;
  timed.observe_repetition({}, r);
  EXPECT_GE(timed.ms(), 10);
  EXPECT_EQ(slow.begin, 3);
}

}  // namespace
}  // namespace kvist
