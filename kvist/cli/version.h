// SPDX-License-Identifier: MIT
// Which kvist this is, and what it stands on.
#pragma once

#include <string>

namespace kvist {

std::string version();       // "0.1.0"
std::string commit();        // of the tree at configure time; "-dirty" where it was changed
std::string version_text();  // what `kvist --version` prints, without the last newline

}  // namespace kvist
