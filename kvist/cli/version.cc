// SPDX-License-Identifier: MIT
// Version and commit come from CMake, the rest from what is linked.
#include "kvist/cli/version.h"

#include "kvist/core/error.h"
#include "kvist/kernels/targets.h"
#include "kvist/model/model.h"

namespace kvist {

std::string version() { return KVIST_VERSION; }
std::string commit() { return KVIST_COMMIT; }

std::string version_text() {
  return str("kvist ", version(), " (", commit(), ")\nSIMD target ", kernels::current_target(),
             "\nggml ", Model::ggml_version_text());
}

}  // namespace kvist
