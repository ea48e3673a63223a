// SPDX-License-Identifier: MIT
// Eight full AMX tiles for the time of a kernel; the thread's own configuration comes back
// afterwards.
#pragma once

#include <cstdint>

#include "kvist/core/amx_state.h"

namespace kvist::kernels::internal {

// Tiles 0 to 3 are for sums, 4 and 5 for rows of the left factor, 6 and 7 for the right. Written as
// an instruction, as gcc 12's intrinsics do not tell the compiler which memory they read and write.
inline void configure_tiles() noexcept {
  static constexpr struct {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } kConfig;
  static_assert(sizeof(kConfig) == 64);
  __asm__ volatile("ldtilecfg %0" : : "m"(kConfig) : "memory");
}

class TileScope {
 public:
  TileScope() noexcept { configure_tiles(); }

 private:
  const KeepAmxState before_;
};

// gcc's tile intrinsics do not say that they read and write memory: after this all of it is
// settled.
inline void settle_memory(const void* p) { __asm__ volatile("" : : "r"(p) : "memory"); }

}  // namespace kvist::kernels::internal
