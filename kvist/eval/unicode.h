// SPDX-License-Identifier: MIT
// Letters and blanks beyond ASCII, as far as scorers and generators need them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvist {

// Simple lower case of ASCII, Latin-1, Latin Extended-A, Greek and Cyrillic; the rest stays.
std::string lower_case(std::string_view text);
// Without blanks at either end; blanks are those of split_words().
std::string_view stripped(std::string_view text);
// Cut at runs of blanks: ASCII 09-0D and 1C-20, U+0085, U+00A0, U+1680, U+2000-200A, U+2028,
// U+2029, U+202F, U+205F, U+3000. Views into `text`.
std::vector<std::string_view> split_words(std::string_view text);

}  // namespace kvist
