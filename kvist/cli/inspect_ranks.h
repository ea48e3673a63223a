// SPDX-License-Identifier: MIT
// kvist inspect for methods that rank: what each layer spends on its tokens.
#pragma once

#include <string>
#include <vector>

#include "kvist/cli/command.h"
#include "kvist/cli/inputs.h"
#include "kvist/cli/ranks_svg.h"

namespace kvist {

// Of the ranked prefix in place.
Ranks ranks_of(const Loaded& loaded);
// Prefills and codes; prints a table or JSON, and writes pictures.
int inspect_ranks(const std::vector<std::string>& pictures, Loaded& loaded, const Context& context);

}  // namespace kvist
