// SPDX-License-Identifier: MIT
// The program: parses the command line, makes the thread pool, and maps what went wrong to exit
// codes.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <CLI/Validators.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kvist/cli/command.h"
#include "kvist/cli/terminal.h"
#include "kvist/cli/version.h"
#include "kvist/core/error.h"
#include "kvist/kernels/targets.h"
#include "kvist/methods/spec.h"

namespace kvist {
namespace {

constexpr int kMostThreads = 1024;

int complain(const std::string& message, int code) {
  std::fprintf(stderr, "%s %s\n", paint(2, Shade::error, "kvist:").c_str(), message.c_str());
  return code;
}

int exit_code(ErrorKind kind) {
  if (kind == ErrorKind::invalid_argument) return kWrongUsage;
  if (kind == ErrorKind::interrupted) return kInterrupted;
  return kFailed;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  const std::string near = nearest(word, known);
  return near.empty() ? "" : str("; did you mean '", near, "'?");
}

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    for (const std::string& name : option->get_snames()) flags.push_back("-" + name);
  }
  return flags;
}

// A flag among `rest` that no option has; the parser tells a missing option first, though it may be
// just misspelt.
std::optional<std::string> unknown_flag(const std::vector<std::string>& rest) {
  for (const std::string& word : rest) {
    if (word.size() > 1 && word[0] == '-') return word.substr(0, word.find('='));
  }
  return std::nullopt;
}

// What is wrong with the command line, and where to read on.
std::string wrong_usage(const CLI::App& app, const CLI::ParseError& error) {
  const auto used = app.get_subcommands();
  const CLI::App& at = used.empty() ? app : *used.front();
  const std::string name = used.empty() ? "" : at.get_name() + ": ";
  const std::string help = str("; see kvist ", used.empty() ? "" : at.get_name() + " ", "--help");
  const std::vector<std::string> rest = app.remaining(true);
  if (const auto flag = unknown_flag(rest)) {
    const auto known = flags_of(at);
    if (std::find(known.begin(), known.end(), *flag) != known.end()) {
      return str(name, "option '", *flag, "' goes after the command: kvist ", at.get_name(), " ",
                 *flag, " ...", help);
    }
    return str(name, "unknown option '", *flag, "'", did_you_mean(*flag, flags_of(at)), help);
  }
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !rest.empty()) {
    return str(name, "unexpected argument '", rest.front(), "'", help);
  }
  return str(name, error.what(), help);
}

struct Row {
  const Command* command;
  CLI::App* app;
  Action action;
};

int run_program(int argc, char** argv) {
  kernels::apply_environment();
  CLI::App app("kvist: long documents in a fraction of the KV cache, on a CPU", "kvist");
  app.set_version_flag("--version", version_text);
  app.require_subcommand(0, 1);
  Context context;
  context.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::vector<Row> rows;
  std::vector<std::string> names;
  for (const Command* command : commands()) {
    CLI::App* sub = app.add_subcommand(command->name, command->summary);
    rows.push_back({command, sub, command->add(*sub)});
    names.push_back(command->name);
    sub->add_option("--threads", context.threads, "threads to use")
        ->capture_default_str()
        ->check(CLI::Range(1, kMostThreads));
    sub->add_flag("--json", context.json, "print one JSON document");
  }
  if (argc > 1 && argv[1][0] != '-' &&
      std::find(names.begin(), names.end(), argv[1]) == names.end()) {
    return complain(
        str("unknown command '", argv[1], "'", did_you_mean(argv[1], names), "; see kvist --help"),
        kWrongUsage);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return complain(wrong_usage(app, error), kWrongUsage);
  }
  for (const Row& row : rows) {
    if (!row.app->parsed()) continue;
    ThreadPool pool(context.threads);
    context.pool = &pool;
    const int code = row.action(context);
    if (std::fflush(stdout) != 0) throw Error(ErrorKind::io, "standard output: write failed");
    return code;
  }
  std::fputs(app.help().c_str(), stderr);
  return kWrongUsage;
}

}  // namespace
}  // namespace kvist

int main(int argc, char** argv) {
  using namespace kvist;
  try {
    return run_program(argc, argv);
  } catch (const Error& error) {
    return complain(error.what(), exit_code(error.kind()));
  } catch (const std::bad_alloc&) {
    return complain("out of memory", kFailed);
  } catch (const std::exception& error) {
    return complain(error.what(), kFailed);
  }
}
