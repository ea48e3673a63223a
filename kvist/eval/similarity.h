// SPDX-License-Identifier: MIT
// How alike two lines of code are, as LongBench measures it.
#pragma once

#include <string>
#include <string_view>

namespace kvist {

// The first line that has neither ` nor # nor //, once leading line breaks are gone; "" for none.
std::string code_line(std::string_view text);

// Twice the code points in matching blocks over all of both, rounded half to even at a hundredth:
// blocks by Ratcliff and Obershelp as Python's difflib finds them, the earliest longest one first
// and then what lies left and right of it. From 200 code points of `gold` on, those that make up
// more than a hundredth of it begin no block.
double similarity(std::string_view text, std::string_view gold);

}  // namespace kvist
