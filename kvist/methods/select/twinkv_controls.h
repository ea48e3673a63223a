// SPDX-License-Identifier: MIT
// Controls of TwinKV (arXiv:2608.27128, sec. B.3): what is left of its effect when counts or
// replacements are random.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvist/core/rng.h"

namespace kvist::twin {

// The counts of the open positions of a head, shuffled in place: stream 0 of (seed, layer, head).
void permute_counts(std::span<int32_t> open_counts, uint64_t seed, uint32_t layer, uint32_t head);

// A random change of a value-only set that matches the true one in how many positions it removes
// and adds in every joint bin of energy rank and position (ten bins each).
struct Replacement {
  int first = 0;                      // position of the first open one
  std::span<const float> energies;    // [open]
  std::span<const int32_t> by_value;  // kept by value alone: open positions, ascending
  std::span<const int32_t> by_score;  // kept by the full score; as many
};
// The control set, ascending. Removals draw from stream 1 of (seed, layer, head), additions from
// stream 2.
std::vector<int32_t> matched_replacement(const Replacement& input, uint64_t seed, uint32_t layer,
                                         uint32_t head);

}  // namespace kvist::twin
