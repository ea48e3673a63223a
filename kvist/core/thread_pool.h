// SPDX-License-Identifier: MIT
// A fixed set of threads for loops over independent items. One pool is made in main and handed
// down.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace kvist {

// Who takes part in a cooperative call: worker `index` of `count`.
struct Worker {
  int index = 0;
  int count = 1;
};

class ThreadPool {
 public:
  // n_threads >= 1; the calling thread is one of them.
  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int n_threads() const { return n_threads_; }

  // Calls body(item) for every item in [0, n), in any order, and returns when all are done. The
  // first exception is carried to the caller; items not yet begun are then skipped. Not reentrant:
  // one caller at a time.
  void parallel_for(int64_t n, const std::function<void(int64_t)>& body);

  // Calls body once on each thread of the pool.
  void run(const std::function<void(Worker)>& body);

 private:
  struct State;
  int n_threads_;
  std::unique_ptr<State> state_;
};

}  // namespace kvist
