// SPDX-License-Identifier: MIT
// Permuted counts and matched replacements.
#include "kvist/methods/select/twinkv_controls.h"

#include <algorithm>
#include <array>

#include "kvist/methods/select/topk.h"

namespace kvist::twin {
namespace {

constexpr int kBins = 10;
constexpr uint64_t kPermuteStream = 0, kRemoveStream = 1, kAddStream = 2;

using Positions = std::vector<int32_t>;

// The joint bin of every open position: energy-rank bin, then position bin.
std::vector<int> joint_bins(const Replacement& input) {
  const auto n = static_cast<int64_t>(input.energies.size());
  const std::vector<double> energies(input.energies.begin(), input.energies.end());
  const Positions order = ranked_positions({energies, {}, input.first});
  std::vector<int> bins(input.energies.size());
  for (int64_t rank = 0; rank < n; ++rank) {
    const int64_t index = order[static_cast<size_t>(rank)] - input.first;
    bins[static_cast<size_t>(index)] =
        static_cast<int>(kBins * rank / n * kBins + kBins * index / n);
  }
  return bins;
}

Positions difference(std::span<const int32_t> a, std::span<const int32_t> b) {
  Positions out;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  return out;
}

// For every bin, as many random members of `pool` as `changed` has there.
Positions draw(const Positions& pool, const Positions& changed, const std::vector<int>& bins,
               int first, Rng rng) {
  std::array<Positions, kBins * kBins> members;
  std::array<size_t, kBins * kBins> wanted{};
  const auto bin = [&](int32_t position) {
    return static_cast<size_t>(bins[static_cast<size_t>(position - first)]);
  };
  for (int32_t position : pool) members[bin(position)].push_back(position);
  for (int32_t position : changed) ++wanted[bin(position)];
  Positions drawn;
  for (size_t b = 0; b < members.size(); ++b) {
    for (size_t i = 0; i < wanted[b]; ++i) {  // Fisher-Yates from the front, as far as needed
      std::swap(members[b][i], members[b][i + rng.below(members[b].size() - i)]);
      drawn.push_back(members[b][i]);
    }
  }
  std::sort(drawn.begin(), drawn.end());
  return drawn;
}

}  // namespace

void permute_counts(std::span<int32_t> open_counts, uint64_t seed, uint32_t layer, uint32_t head) {
  Rng rng(seed, layer, head, kPermuteStream);
  shuffle(open_counts, rng);
}

std::vector<int32_t> matched_replacement(const Replacement& input, uint64_t seed, uint32_t layer,
                                         uint32_t head) {
  const std::vector<int> bins = joint_bins(input);
  Positions all(input.energies.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = input.first + static_cast<int32_t>(i);
  const Positions by_value(input.by_value.begin(), input.by_value.end());
  const Positions removed = draw(by_value, difference(input.by_value, input.by_score), bins,
                                 input.first, Rng(seed, layer, head, kRemoveStream));
  const Positions added =
      draw(difference(all, input.by_value), difference(input.by_score, input.by_value), bins,
           input.first, Rng(seed, layer, head, kAddStream));
  const Positions left = difference(by_value, removed);
  Positions out;
  std::merge(left.begin(), left.end(), added.begin(), added.end(), std::back_inserter(out));
  return out;
}

}  // namespace kvist::twin
