// SPDX-License-Identifier: MIT
// One option's value as text: is it allowed, and how is it written canonically.
#pragma once

#include <string>
#include <string_view>

#include "kvist/methods/method.h"

namespace kvist {

// What `spec` expects, for messages and docs: "an integer of at least 1", "one of log|inv".
std::string expected_value(const OptionSpec& spec);

// The canonical form of `value`, or "" where `spec` does not allow it: ratios in lowest terms,
// integers without leading zeros.
std::string canonical_value(const OptionSpec& spec, std::string_view value);

// The methods that fill Method::score: their names, and the one called `name` or null.
std::string scorer_names(std::string_view separator);
const Method* find_scorer(std::string_view name);

}  // namespace kvist
