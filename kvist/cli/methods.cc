// SPDX-License-Identifier: MIT
// kvist methods: the methods there are, their papers and options.
#include <CLI/Option.hpp>
#include <cstdio>
#include <string>

#include "kvist/cli/command.h"
#include "kvist/core/error.h"
#include "kvist/methods/describe.h"

namespace kvist {
namespace {

struct MethodsOptions {
  std::string name;
  bool markdown = false;
};

std::string render(const MethodsOptions& options, bool json) {
  if (options.markdown && json) {
    throw Error(ErrorKind::invalid_argument, "--markdown and --json are both given; choose one");
  }
  if (options.name.empty()) {
    return json ? methods_json() : options.markdown ? methods_markdown() : methods_text();
  }
  const Method& method = find_method(options.name);
  return json               ? method_json(method)
         : options.markdown ? method_markdown(method)
                            : method_text(method);
}

Action add(CLI::App& app) {
  const auto options = std::make_shared<MethodsOptions>();
  app.add_option("name", options->name, "show this method with its options");
  app.add_flag("--markdown", options->markdown, "print docs/methods.md");
  return [options](const Context& context) -> int {
    const std::string text = render(*options, context.json);
    std::fwrite(text.data(), 1, text.size(), stdout);
    return kDone;
  };
}

}  // namespace

extern constinit const Command methods_command = {
    "methods", "list compression methods and their options", add};

}  // namespace kvist
