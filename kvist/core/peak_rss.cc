// SPDX-License-Identifier: MIT
// Two files of /proc.
#include "kvist/core/peak_rss.h"

#include <fstream>
#include <string>

namespace kvist {

uint64_t peak_rss_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    uint64_t kib = 0;
    if (word == "VmHWM:" && status >> kib) return kib * 1024;
  }
  return 0;
}

bool reset_peak_rss() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5";  // of the high-water mark alone
  file.flush();
  return file.good();
}

}  // namespace kvist
