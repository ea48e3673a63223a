// SPDX-License-Identifier: MIT
// What the kernel says this process occupied at most.
#pragma once

#include <cstdint>

namespace kvist {

// Largest resident size since the process began or the last reset_peak_rss() that worked, in bytes;
// 0 where the system does not say (VmHWM of Linux).
uint64_t peak_rss_bytes();
// The peak becomes what is resident now; false where the system does not allow that.
bool reset_peak_rss();

}  // namespace kvist
