// SPDX-License-Identifier: MIT
// What a subcommand is: a row with its name, its options and what it does. commands.cc lists the
// rows.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <memory>
#include <span>

#include "kvist/core/thread_pool.h"

namespace kvist {

// What main hands to every subcommand; the options --threads and --json belong to all of them.
struct Context {
  int threads = 1;
  bool json = false;           // stdout carries one JSON document instead of text
  ThreadPool* pool = nullptr;  // of `threads` threads
};

// Does the work after parsing and returns the exit code. Failures are thrown as Error.
using Action = std::function<int(const Context&)>;

struct Command {
  const char* name;
  const char* summary;
  // Adds options to `app` and returns the action that reads what was parsed: it owns the variables
  // the options point to.
  Action (*add)(CLI::App& app);
};

// All subcommands, in the order they are shown.
std::span<const Command* const> commands();

enum ExitCode { kDone = 0, kFailed = 1, kWrongUsage = 2, kBoundNotMet = 3, kInterrupted = 130 };

}  // namespace kvist
