// SPDX-License-Identifier: MIT
// Put in front of every C++ file while the set-up builds ggml: replaces an intrinsic that gcc 12
// declares wrongly.
//
// gcc's _tile_loadconfig tells the compiler that `ldtilecfg` reads one pointer (8 bytes) at its
// argument, while it reads the 64 bytes of a tile configuration. From -O2 up gcc 12 then drops the
// stores to the other 56, the configuration is garbage, and the next tile instruction ends the
// program on a CPU with AMX. Here the operand is all 64 bytes.
#pragma once

#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

static inline __attribute__((always_inline)) void kvist_tile_loadconfig(const void* config) {
  typedef const char Config[64];
  __asm__ volatile("ldtilecfg %0" : : "m"(*static_cast<Config*>(config)));
}

#undef _tile_loadconfig
#define _tile_loadconfig kvist_tile_loadconfig
#endif
