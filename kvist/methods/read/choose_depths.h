// SPDX-License-Identifier: MIT
// ChooseDepths of ReadKV (arXiv:2610.11245): which items are read how deep, so that the modelled
// error is least within a budget of increments.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kvist/core/buffer.h"
#include "kvist/kernels/depth_cut.h"
#include "kvist/kernels/tree_code.h"

namespace kvist {

// Memory of one allocation, kept between calls; one call at a time.
struct DepthWorkspace {
  // Room for calls over up to `n_items`; allocates, so it comes before the first call.
  void reserve(int64_t n_items);

  Buffer<int32_t> items;    // [capacity] those whose next level may lie at the cut
  Buffer<uint64_t> keys;    // [capacity] its gain, as the bits of a double
  Buffer<uint32_t> counts;  // two histograms side by side
};

// Minimises sum a_i D(t_i) over min_depth <= t_i <= max_depth with sum t_i <= budget, D the
// distortion of the tree code: exactly what a heap would give that adds one increment at a time to
// the item with the largest positive gain a_i * Delta_{t_i + 1}, equal gains by smaller index.
// Gains are products of two float32 in double, hence exact, and the result does not depend on
// threads or instruction set.
//
//   weights    [n] finite and >= 0
//   max_depth  1..8;  min_depth 0..max_depth, given to every item even past the budget
//   depths     [n], out
//
// Returns sum t_i: less than budget where no positive gain is left, -1 (depths undefined) where a
// weight is negative or not finite. O(n), no allocation.
int64_t choose_depths(std::span<const float> weights, int max_depth, int min_depth, int64_t budget,
                      std::span<uint8_t> depths, DepthWorkspace& workspace) noexcept;

// The same choice made by several workers together, in four steps between which all of them meet.
// Equal depths however the weights are divided. Memory is kept between choices.
class SharedDepths {
 public:
  // Before choices over up to n_items weights by up to n_workers; allocates.
  void reserve(int64_t n_items, int n_workers);
  // Before the first step where the last choice may have been cut short.
  void forget() noexcept;

  // 1. Every worker, of weights that no one else counts; all are counted once, in any pieces.
  void count(int worker, std::span<const float> weights) noexcept;
  // 2. One worker. The other arguments as those of choose_depths().
  void cut(std::span<const float> weights, int max_depth, int min_depth, int64_t budget) noexcept;
  // 3. Any worker, each piece in [0, n_pieces(weights.size())) once. depths as weights.
  void split(int piece, std::span<const float> weights, std::span<uint8_t> depths) noexcept;
  // 4. One worker. Returns what choose_depths() returns.
  int64_t settle(std::span<const float> weights, std::span<uint8_t> depths) noexcept;

  static constexpr int64_t kPiece = 2048;
  static int n_pieces(size_t n) {
    return static_cast<int>((static_cast<int64_t>(n) + kPiece - 1) / kPiece);
  }
  uint64_t allocated_bytes() const;

 private:
  enum class Kind { refused, least, most, cut, alone };
  struct alignas(64) Tally {
    kernels::WeightRange range;
  };

  DepthWorkspace workspace_;
  Buffer<uint32_t> bins_;                   // [workers][bins][2] zero between choices
  std::vector<Tally> tallies_;              // [workers]
  std::vector<kernels::DepthSplit> found_;  // [pieces]
  Kind kind_ = Kind::refused;
  int max_depth_ = 0, min_depth_ = 0;
  int64_t budget_ = 0;
  int64_t positive_ = 0;
  int64_t wanted_ = 0;  // increments beyond min_depth
  std::array<int, kernels::kTreeDepth> above_, below_;
};

// The two-depth control: the k = floor((budget - low n) / (max_depth - low)) items of largest
// weight, equal ones by smaller index, get max_depth, all others `low`. Returns as above;
// low < max_depth.
int64_t two_depth(std::span<const float> weights, int max_depth, int low, int64_t budget,
                  std::span<uint8_t> depths, DepthWorkspace& workspace) noexcept;

}  // namespace kvist
