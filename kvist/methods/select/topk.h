// SPDX-License-Identifier: MIT
// Scores to slots: the one place where ties are decided. Deterministic on every machine: floats are
// compared as integers.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace kvist {

// Integers in the order of the numbers: -0 equals +0, and NaN is below -infinity.
inline uint32_t ordered(float x) {
  if (x != x) return 0;
  const uint32_t u = std::bit_cast<uint32_t>(x + 0.0f);  // -0 + 0 is +0
  return u >> 31 ? ~u : u | 0x80000000u;
}
inline uint64_t ordered(double x) {
  if (x != x) return 0;
  const uint64_t u = std::bit_cast<uint64_t>(x + 0.0);
  return u >> 63 ? ~u : u | uint64_t{1} << 63;
}

// What a head's candidates are ranked by: score descending, then tiebreak descending, then position
// ascending. Candidate i is position first + i.
struct Ranking {
  std::span<const double> scores;
  std::span<const float> tiebreak;  // as long as scores, or empty
  int first = 0;
};

// The k best positions, ascending. O(n): a partial selection on packed keys. 0 <= k <= n.
std::vector<int32_t> top_positions(const Ranking& ranking, int k);

// All positions, best first.
std::vector<int32_t> ranked_positions(const Ranking& ranking);

// The other rule, of methods whose heads share a budget: which of flat [heads * n] scores stay when
// the n_pruned smallest go, among equals the smaller index first. Ascending. O(size).
std::vector<int32_t> survivors(std::span<const double> scores, int64_t n_pruned);

}  // namespace kvist
