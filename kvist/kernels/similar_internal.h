// SPDX-License-Identifier: MIT
// What the two ways of counting similar keys share, and the way by AMX tiles.
#pragma once

#include <cstdint>

#include "kvist/kernels/similar.h"

namespace kvist::kernels::internal {

inline constexpr int kPanel = 32;  // keys side by side in a panel

// The canonical predicate for keys i and j; norms [n] as canonical_norms() gives them.
bool decide(const float* keys, const double* norms, int head_dim, int i, int j) noexcept;
// out[t] = |key t|^2 in fp64 in coordinate order, for t in [begin, end).
void canonical_norms(const float* keys, int begin, int end, int head_dim, double* out);

// One head's keys as bf16 unit keys, for AMX. A pair is two coordinates, the first one low.
struct Bf16Keys {
  const float* keys = nullptr;    // [n][head_dim]
  const double* norms = nullptr;  // [n] |k|^2, canonical
  int n = 0, head_dim = 0, ell = 0;
  int pairs = 0;               // of a row, a multiple of 16
  uint32_t* rows = nullptr;    // [n_panels * 32][pairs]
  uint32_t* panels = nullptr;  // [n_panels][pairs][32]
  float maybe = 0;             // a product above this may be similar
  float surely = 0;            // from here on it is
};

// Only where cpu_has_amx():
// Fills panel b and its rows; returns the longest rounding error of a unit key in it.
float pack_panel_amx(const Bf16Keys& p, int b) noexcept;
// Counts pairs of keys i in [row_begin, row_end), multiples of 32, with keys of panels
// [panel_begin, panel_end) into counts [n_panels * 32].
void count_block_amx(const Bf16Keys& p, int row_begin, int row_end, int panel_begin, int panel_end,
                     int32_t* counts, CountStats* stats) noexcept;

// count_similar() without AMX.
void count_similar_fixed(const float* keys, int n, int head_dim, int ell, ThreadPool& pool,
                         int32_t* counts, CountStats* stats);

}  // namespace kvist::kernels::internal
