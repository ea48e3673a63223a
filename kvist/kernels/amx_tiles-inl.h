// SPDX-License-Identifier: MIT
// Eight full AMX tiles for the time of a kernel; the thread's own configuration comes back
// afterwards.
#pragma once

#include <cstdint>

namespace kvist::kernels::internal {

// ggml configures a thread's tiles once and relies on that for ever, so whoever borrows the thread
// puts them back. Tiles 0 to 3 are for sums, 4 and 5 for rows of the left factor, 6 and 7 for the
// right. Written as instructions: gcc 12's intrinsics do not tell the compiler which memory they
// read and write.
class TileScope {
 public:
  TileScope() noexcept {
    static constexpr struct {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } kConfig;
    static_assert(sizeof(kConfig) == 64);
    __asm__ volatile("sttilecfg %0" : "=m"(before_));
    __asm__ volatile("ldtilecfg %0" : : "m"(kConfig) : "memory");
  }
  ~TileScope() {
    if (before_[0] == 0) {  // no palette: nothing was configured
      __asm__ volatile("tilerelease" : : : "memory");
    } else {
      __asm__ volatile("ldtilecfg %0" : : "m"(before_) : "memory");
    }
  }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;

 private:
  alignas(64) unsigned char before_[64] = {};
};

}  // namespace kvist::kernels::internal
