// SPDX-License-Identifier: MIT
// Reads the document a user names: a file or standard input, whole, as UTF-8 text.
#pragma once

#include <string>

namespace kvist {

// "-" is standard input. Throws Error naming the path for a missing or unreadable file, a
// directory, an empty one, one above 256 MiB, and bytes that are not UTF-8 (with the offset). A
// byte order mark at the start is left out.
std::string read_document(const std::string& path);

// Throws invalid_argument naming `what` and the byte where `text` is not UTF-8.
void require_utf8(const std::string& text, const std::string& what);

}  // namespace kvist
