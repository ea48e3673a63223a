// SPDX-License-Identifier: MIT
// Where the workers of a cooperative call hand out jobs among themselves and wait for each other.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <thread>

#include "kvist/core/thread_pool.h"

namespace kvist {

// All workers of a call meet here; the last to come calls last() and puts the job counters back
// to 0. Each worker begins with the jobs of its own share, one after another, and then takes what
// is left of the others': stages that number their jobs in the same order find the memory of the
// stage before in the same worker's caches.
class Meeting {
 public:
  void reset() {
    arrived_ = 0;
    for (Share& share : shares_) share.taken = 0;
  }
  // job(i) for every i < n, shared among the workers; all have returned when it returns.
  template <typename Fn, typename Last>
  void each(int n, Worker worker, const Fn& job, const Last& last) {
    const int n_shares = std::min(worker.count, kMostShares);
    for (int at = 0; at < n_shares; ++at) {
      const int share = (worker.index + at) % n_shares;
      const auto edge = [=](int i) { return static_cast<int>(int64_t{n} * i / n_shares); };
      const int begin = edge(share), end = edge(share + 1);
      std::atomic<int>& taken = shares_[static_cast<size_t>(share)].taken;
      for (int i = begin + draw(taken); i < end; i = begin + draw(taken)) job(i);
    }
    wait(worker.count, last);
  }
  template <typename Fn>
  void each(int n, Worker worker, const Fn& job) {
    each(n, worker, job, [] {});
  }

 private:
  static constexpr int kMostShares = 32;  // more workers than that begin together
  struct alignas(64) Share {
    std::atomic<int> taken{0};
  };

  static int draw(std::atomic<int>& from) { return from.fetch_add(1, std::memory_order_relaxed); }

  template <typename Last>
  void wait(int n_workers, const Last& last) {
    const uint32_t now = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == n_workers) {
      last();
      arrived_.store(0, std::memory_order_relaxed);
      for (int i = 0; i < std::min(n_workers, kMostShares); ++i)
        shares_[static_cast<size_t>(i)].taken.store(0, std::memory_order_relaxed);
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

  alignas(64) std::atomic<int> arrived_{0};
  std::array<Share, kMostShares> shares_;
  alignas(64) std::atomic<uint32_t> round_{0};
};

}  // namespace kvist
