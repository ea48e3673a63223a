// SPDX-License-Identifier: MIT
// UTF-8: where a text stops being it, and cutting a stream of bytes into pieces that are whole
// characters.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace kvist {

// Byte offset of the first byte that does not belong to well-formed UTF-8 (no overlong forms, no
// surrogates).
std::optional<size_t> first_invalid_utf8(std::string_view text);

// Tokens end inside characters: holds the unfinished bytes back until the rest has come.
class Utf8Stream {
 public:
  // What can be shown now; bytes that can no longer become a character turn into U+FFFD.
  std::string push(std::string_view bytes);
  // The rest, unfinished characters as U+FFFD.
  std::string finish();

 private:
  std::string held_;
};

}  // namespace kvist
