// SPDX-License-Identifier: MIT
// A control: the same questions over contexts that do not hold their answers.
#pragma once

#include <vector>

#include "kvist/eval/row.h"

namespace kvist {

// Within each (suite, task, length) every row gets the context of the next group that differs, the
// last that of the first. The suite's name ends in "-shuffled". Throws invalid_argument where all
// rows of a cell share one context.
std::vector<EvalRow> shuffled_contexts(const std::vector<EvalRow>& rows);

}  // namespace kvist
