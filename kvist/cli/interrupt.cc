// SPDX-License-Identifier: MIT
// The SIGINT handler: one lock-free store, and the default action for the second signal.
#include "kvist/cli/interrupt.h"

#include <csignal>

namespace kvist {
namespace {

std::atomic<bool> interrupted{false};  // a signal handler can reach nothing else
static_assert(std::atomic<bool>::is_always_lock_free);

void on_interrupt(int signal) {
  if (interrupted.exchange(true)) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}

}  // namespace

std::atomic<bool>& watch_interrupt() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  return interrupted;
}

}  // namespace kvist
