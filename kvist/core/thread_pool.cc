// SPDX-License-Identifier: MIT
// Threads that sleep between loops; items are handed out one at a time from an atomic counter.
#include "kvist/core/thread_pool.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "kvist/core/error.h"

namespace kvist {

struct ThreadPool::State {
  std::mutex mutex;
  std::condition_variable wake, done;
  const std::function<void(Worker)>* body = nullptr;
  uint64_t generation = 0;
  int busy = 0;
  bool stop = false;
  std::exception_ptr failure;
  std::vector<std::thread> threads;

  void keep_failure() {
    std::lock_guard lock(mutex);
    if (!failure) failure = std::current_exception();
  }
};

ThreadPool::ThreadPool(int n_threads) : n_threads_(n_threads), state_(std::make_unique<State>()) {
  if (n_threads < 1)
    throw Error(ErrorKind::invalid_argument, str("threads must be at least 1, got ", n_threads));
  for (int index = 1; index < n_threads; ++index) {
    state_->threads.emplace_back([this, index] {
      State& s = *state_;
      uint64_t seen = 0;
      std::unique_lock lock(s.mutex);
      while (true) {
        s.wake.wait(lock, [&] { return s.stop || s.generation != seen; });
        if (s.stop) return;
        seen = s.generation;
        const auto* body = s.body;
        lock.unlock();
        try {
          (*body)({index, n_threads_});
        } catch (...) {
          s.keep_failure();
        }
        lock.lock();
        if (--s.busy == 0) s.done.notify_one();
      }
    });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_all();
  for (auto& thread : state_->threads) thread.join();
}

void ThreadPool::run(const std::function<void(Worker)>& body) {
  State& s = *state_;
  {
    std::lock_guard lock(s.mutex);
    s.body = &body;
    s.busy = n_threads_ - 1;
    s.failure = nullptr;
    ++s.generation;
  }
  s.wake.notify_all();
  try {
    body({0, n_threads_});
  } catch (...) {
    s.keep_failure();
  }
  std::unique_lock lock(s.mutex);
  s.done.wait(lock, [&] { return s.busy == 0; });
  if (s.failure) std::rethrow_exception(std::exchange(s.failure, nullptr));
}

void ThreadPool::parallel_for(int64_t n, const std::function<void(int64_t)>& body) {
  std::atomic<int64_t> next{0};
  run([&](Worker) {
    try {
      for (int64_t item = next++; item < n; item = next++) body(item);
    } catch (...) {
      next = n;
      throw;
    }
  });
}

}  // namespace kvist
