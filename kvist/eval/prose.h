// SPDX-License-Identifier: MIT
// Text that suites hide things in: documents of the data folder, and where sentences end.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kvist/core/rng.h"

namespace kvist {

struct ProseDocument {
  std::string name;  // of the file, without .txt
  std::string text;  // every run of blanks is one space
};
// The .txt files of DATA/sotu/test, else of DATA/prose, in the order of their names. Throws
// not_found saying how to get some.
std::vector<ProseDocument> prose_documents(const std::string& data);

// Cut after '.', '!' or '?' with closing quotes or brackets, where a space and then a capital, a
// digit or an opening quote follow, unless a single letter or a usual abbreviation stands before
// the dot. Views into `text`, without the spaces between.
std::vector<std::string_view> sentences(std::string_view text);

// Sentences of documents in an order drawn by `rng`, at least n_bytes of them in all; documents
// come again where that is too few.
std::vector<std::string> haystack(const std::vector<ProseDocument>& documents, Rng& rng,
                                  size_t n_bytes);

std::string joined(const std::vector<std::string>& parts, std::string_view between);

}  // namespace kvist
