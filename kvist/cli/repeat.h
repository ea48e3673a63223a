// SPDX-License-Identifier: MIT
// The words that ask a model to repeat its document, for methods that read it twice.
#pragma once

#include <vector>

#include "kvist/cli/prompt.h"
#include "kvist/model/tokenizer.h"
#include "kvist/runtime/session.h"

namespace kvist {

// Requests to repeat the document `ids` chunk by chunk, as KVzip asks: an instruction, the last
// tokens of the chunk before, the end of the user's turn, then the chunk itself. The head of the
// chat template is not repeated.
std::vector<Repeat> repeat_requests(const Tokenizer& tokenizer, const Prompt& prompt,
                                    std::span<const int32_t> ids, int chunk);

}  // namespace kvist
