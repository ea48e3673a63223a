// SPDX-License-Identifier: MIT
// Tells the thread sanitizer of barriers inside libraries that were built without it.
#pragma once

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace kvist {

// Work that a library's barriers keep apart from all other such work: what came before, on any
// thread, is seen by what comes after. Nothing but in a sanitizer build.
class KnownBarrier {
 public:
#if defined(__SANITIZE_THREAD__)
  KnownBarrier() noexcept { __tsan_acquire(&passed); }
  ~KnownBarrier() { __tsan_release(&passed); }
#else
  KnownBarrier() noexcept {}
  ~KnownBarrier() {}
#endif
  KnownBarrier(const KnownBarrier&) = delete;
  KnownBarrier& operator=(const KnownBarrier&) = delete;

 private:
  static inline char passed = 0;
};

}  // namespace kvist
