// SPDX-License-Identifier: MIT
// The list of all subcommands.
#include "kvist/cli/command.h"

namespace kvist {

extern const Command run_command, inspect_command, methods_command, apply_command, compare_command,
    calibrate_command, eval_command, bench_command;

std::span<const Command* const> commands() {
  static constexpr const Command* kAll[] = {&run_command,   &inspect_command, &methods_command,
                                            &apply_command, &compare_command, &calibrate_command,
                                            &eval_command,  &bench_command};
  return kAll;
}

}  // namespace kvist
