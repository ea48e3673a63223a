// SPDX-License-Identifier: MIT
// For tests: a subcommand run in this process, as main would.
#pragma once

#include <gtest/gtest.h>

#include <CLI/Config.hpp>
#include <CLI/Error.hpp>
#include <CLI/Formatter.hpp>
#include <CLI/Option.hpp>
#include <CLI/Validators.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "kvist/cli/command.h"

namespace kvist {

// Runs a command; returns its exit code and what it printed. Where it throws, it has printed
// nothing.
inline int run_command(const Command& command, std::vector<std::string> args,
                       std::string* out = nullptr, bool json = false) {
  CLI::App app("test");
  const Action action = command.add(app);
  std::reverse(args.begin(), args.end());
  app.parse(args);
  ThreadPool pool(2);
  ::testing::internal::CaptureStdout();
  int code = -1;
  try {
    code = action({2, json, &pool});
  } catch (...) {
    std::fflush(stdout);
    EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
    throw;
  }
  std::fflush(stdout);
  const std::string text = ::testing::internal::GetCapturedStdout();
  if (out != nullptr) *out = text;
  return code;
}

}  // namespace kvist
