// SPDX-License-Identifier: MIT
// Sets of documents that a user names: files, and folders of them.
#pragma once

#include <string>
#include <vector>

#include "kvist/model/tokenizer.h"

namespace kvist {

// Files as named; of a folder all that end in .txt or .md, in the order of their paths. Throws
// not_found where a folder has none.
std::vector<std::string> text_files(const std::vector<std::string>& texts);
// Their token ids, one entry a file. Throws like read_document().
std::vector<std::vector<int32_t>> tokenized(const std::vector<std::string>& texts,
                                            const Tokenizer& tokenizer);

}  // namespace kvist
