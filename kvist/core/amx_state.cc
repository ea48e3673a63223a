// SPDX-License-Identifier: MIT
// Keeps one library's AMX tile configuration through the calls of another on the same thread.
#include "kvist/core/amx_state.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace kvist {

#if defined(__x86_64__) && defined(__linux__)

bool amx_tiles_usable() noexcept {
  static const bool usable = [] {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl(2)
    unsigned a = 0, b = 0, c = 0, d = 0;
    const bool has_tiles = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 24 & 1) != 0;
    return has_tiles && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return usable;
}

// Written as instructions: gcc 12's intrinsic for ldtilecfg hands the compiler a wrong operand.
KeepAmxState::KeepAmxState() noexcept {
  if (amx_tiles_usable()) __asm__ volatile("sttilecfg %0" : "=m"(config_));
}

KeepAmxState::~KeepAmxState() {
  if (!amx_tiles_usable()) return;
  if (config_[0] == 0) {  // no palette: nothing was configured
    __asm__ volatile("tilerelease" : : : "memory");
  } else {
    __asm__ volatile("ldtilecfg %0" : : "m"(config_) : "memory");
  }
}

#else

bool amx_tiles_usable() noexcept { return false; }
KeepAmxState::KeepAmxState() noexcept = default;
KeepAmxState::~KeepAmxState() = default;

#endif

}  // namespace kvist
