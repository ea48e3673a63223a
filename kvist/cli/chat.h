// SPDX-License-Identifier: MIT
// Talking about a document on a terminal.
#pragma once

#include <string>

#include "kvist/cli/answer.h"
#include "kvist/cli/inputs.h"

namespace kvist {

// Reads lines from standard input until its end, /exit, or Ctrl-C at the prompt; the conversation
// is one suffix over the compressed document. Returns the exit code.
int chat(Loaded& loaded, AnswerOptions options, const std::string& answer_prefix);

}  // namespace kvist
