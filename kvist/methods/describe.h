// SPDX-License-Identifier: MIT
// The table of methods as people read it: text, Markdown (docs/methods.md) and JSON, all from the
// rows.
#pragma once

#include <string>

#include "kvist/methods/method.h"

namespace kvist {

std::string methods_text();                     // one line a method
std::string method_text(const Method& method);  // with its options
std::string methods_markdown();                 // docs/methods.md
std::string method_markdown(const Method& method);
std::string methods_json();  // {"methods": [...]}
std::string method_json(const Method& method);

}  // namespace kvist
