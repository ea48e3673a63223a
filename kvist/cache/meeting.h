// SPDX-License-Identifier: MIT
// Where the workers of a cooperative call hand out jobs among themselves and wait for each other.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "kvist/core/thread_pool.h"

namespace kvist {

// All workers of a call meet here; the last to come calls last() and puts the job counter back to
// 0.
class Meeting {
 public:
  void reset() {
    arrived_ = 0;
    next_ = 0;
  }
  // job(i) for every i < n, shared among the workers; all have returned when it returns.
  template <typename Fn, typename Last>
  void each(int n, Worker worker, const Fn& job, const Last& last) {
    for (int i = draw(); i < n; i = draw()) job(i);
    wait(worker.count, last);
  }
  template <typename Fn>
  void each(int n, Worker worker, const Fn& job) {
    each(n, worker, job, [] {});
  }

 private:
  template <typename Last>
  void wait(int n_workers, const Last& last) {
    const uint32_t now = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == n_workers) {
      last();
      arrived_.store(0, std::memory_order_relaxed);
      next_.store(0, std::memory_order_relaxed);
      round_.store(now + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; round_.load(std::memory_order_acquire) == now; ++spins) {
      if (spins < 4096) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      } else {
        std::this_thread::yield();
      }
    }
  }

  int draw() { return next_.fetch_add(1, std::memory_order_relaxed); }

  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> next_{0};
  alignas(64) std::atomic<uint32_t> round_{0};
};

}  // namespace kvist
