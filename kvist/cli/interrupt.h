// SPDX-License-Identifier: MIT
// Ctrl-C: the first sets a flag that long work looks at, the second ends the program.
#pragma once

#include <atomic>

namespace kvist {

// Starts watching SIGINT and returns the flag; calling it again returns the same one. Reads of a
// terminal are cut short.
std::atomic<bool>& watch_interrupt();

}  // namespace kvist
