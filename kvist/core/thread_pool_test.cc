// SPDX-License-Identifier: MIT
// Tests of the pool: every item once, every worker once, and the first failure reaches the caller.
#include "kvist/core/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "kvist/core/error.h"

namespace kvist {
namespace {

TEST(ThreadPool, CallsEveryItemOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.n_threads(), threads);
    for (int64_t n : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
      pool.parallel_for(n, [&](int64_t item) { ++seen[static_cast<size_t>(item)]; });
      for (const auto& count : seen) EXPECT_EQ(count, 1);
    }
  }
}

TEST(ThreadPool, RunsOnEachWorkerOnceAndWaits) {
  ThreadPool pool(4);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::atomic<int>> seen(4);
    pool.run([&](Worker worker) {
      EXPECT_EQ(worker.count, 4);
      ++seen[static_cast<size_t>(worker.index)];
    });
    for (const auto& count : seen) ASSERT_EQ(count, 1);
  }
}

TEST(ThreadPool, TheCallerIsWorkerZero) {
  ThreadPool pool(3);
  const auto caller = std::this_thread::get_id();
  std::atomic<bool> same{false};
  pool.run([&](Worker worker) {
    if (worker.index == 0) same = std::this_thread::get_id() == caller;
  });
  EXPECT_TRUE(same);
}

TEST(ThreadPool, CarriesTheFailureAndServesOn) {
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    std::atomic<int> begun{0};
    EXPECT_THROW(pool.parallel_for(100000,
                                   [&](int64_t item) {
                                     ++begun;
                                     if (item == 5) throw Error(ErrorKind::io, "five");
                                   }),
                 Error);
    EXPECT_LT(begun, 100000);
    std::atomic<int> done{0};
    pool.parallel_for(10, [&](int64_t) { ++done; });
    EXPECT_EQ(done, 10);
  }
}

TEST(ThreadPool, RefusesNoThreads) { EXPECT_THROW(ThreadPool(0), Error); }

}  // namespace
}  // namespace kvist
