// SPDX-License-Identifier: MIT
// Figures of a paper that follow from its rules, computed anew beside the printed ones.
#pragma once

#include "kvist/cli/command.h"

namespace kvist {

// Prints the 154 read and capacity figures of ReadKV's Tables 2 and 6; kBoundNotMet where one
// differs from the print.
int bench_paper_readkv(const Context& context);
// The figures in VarRate's text that its rules determine, likewise.
int bench_paper_varrate(const Context& context);

}  // namespace kvist
