// SPDX-License-Identifier: MIT
// The cut among all gains is found by one histogram of the weights, which serves every level since
// a gain is weight * Delta; what lies too close to the cut for the histogram is ranked exactly.
#include "kvist/methods/read/choose_depths.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "kvist/core/error.h"
#include "kvist/kernels/depth_cut.h"
#include "kvist/kernels/tree_code.h"

namespace kvist {
namespace {

using kernels::kTreeDepth;
using kernels::kTreeGains;

constexpr int kInfinityBits = 0x7F800000;

// A bin is 1/64 of an octave. Bins are those of doubles, where a subnormal float is as fine as any
// other: so 4 bins never span two gains of one item, which differ by 2.5 and more.
constexpr int kBinShift = 46;
constexpr int kFloatShift = kBinShift - 29;  // a float has 29 bits less of a fraction
static_assert(kFloatShift == kernels::kWeightBinShift);
int bin_of(double x) { return static_cast<int>(std::bit_cast<uint64_t>(x) >> kBinShift); }
double edge_of(int bin) { return std::bit_cast<double>(static_cast<uint64_t>(bin) << kBinShift); }
constexpr int kBins = (149 + 128) * 64;  // of positive floats

double gain(int level) { return static_cast<double>(kTreeGains[level - 1]); }
int bits_of(float x) { return std::bit_cast<int>(x); }
float float_of(int bits) { return std::bit_cast<float>(bits); }

using Range = kernels::WeightRange;

Range range_of(std::span<const float> weights) {
  return kernels::weight_range(weights.data(), static_cast<int64_t>(weights.size()));
}

// Bins of normal floats are the same bits, shifted.
constexpr int kFirstNormal = 64;  // bins below are those of subnormals, which are coarser
constexpr int kFloatBins = kernels::kWeightBins;
constexpr int kFloatOffset = (1023 - 127) * 64;  // of a float's bin to bin_of()

// How many positive weights lie in a bin or above it.
class Histogram {
 public:
  // counts [n_bins + 1], the number in each bin from `first` on, become sums.
  Histogram(int first, int n_bins, uint32_t* counts) : first_(first), bins_(n_bins), from_(counts) {
    counts[n_bins] = 0;
    for (int bin = n_bins - 1; bin >= 0; --bin) counts[bin] += counts[bin + 1];
  }

  Histogram(std::span<const float> weights, const Range& range, uint32_t* counts)
      : first_(bin_of(static_cast<double>(float_of(range.least)))),
        bins_(bin_of(static_cast<double>(float_of(range.most))) - first_ + 1),
        from_(counts) {
    // Two tables, since equal neighbours would wait for each other's increments.
    uint32_t* const even = counts;
    uint32_t* const odd = counts + kBins + 1;
    std::fill_n(even, bins_ + 1, 0u);
    std::fill_n(odd, bins_ + 1, 0u);
    if (float_of(range.least) >= std::numeric_limits<float>::min()) {
      // Bins of normal floats: the same bits, shifted; what is not positive goes to bin 0.
      const int first = range.least >> kFloatShift;
      count(weights, even, odd,
            [=](float w) { return (std::max(bits_of(w), range.least) >> kFloatShift) - first; });
    } else {
      const float least = float_of(range.least);
      count(weights, even, odd, [=, this](float w) {
        return bin_of(static_cast<double>(std::max(w, least))) - first_;
      });
    }
    const size_t n = weights.size();
    even[0] -= static_cast<uint32_t>(static_cast<int64_t>(n) - range.positive);
    for (int bin = bins_ - 1; bin >= 0; --bin) even[bin] += odd[bin] + even[bin + 1];
  }

  template <typename Bin>
  static void count(std::span<const float> weights, uint32_t* even, uint32_t* odd, const Bin& bin) {
    const size_t n = weights.size();
    for (size_t i = 0; i + 1 < n; i += 2) {
      ++even[bin(weights[i])];
      ++odd[bin(weights[i + 1])];
    }
    if (n % 2 == 1) ++even[bin(weights[n - 1])];
  }

  int64_t at_least(int bin) const { return from_[std::clamp(bin - first_, 0, bins_)]; }

 private:
  int first_, bins_;
  const uint32_t* from_;  // [bins_ + 1]
};

// The smallest x in [begin, end) that has the property, or end; once true it stays true.
template <typename Property>
int first_with(int begin, int end, Property property) {
  while (begin < end) {
    const int middle = begin + (end - begin) / 2;
    if (property(middle)) {
      end = middle;
    } else {
      begin = middle + 1;
    }
  }
  return begin;
}

// Gains at or above `above` number at most `wanted`, those at or above `below` more than that. An
// item with weight >= x / Delta lies in the bin of the rounded quotient or higher, since weights
// are doubles themselves; one in a higher bin has it.
struct Bracket {
  double below, above;
};

Bracket bracket(const Histogram& histogram, const Range& range, int least_level, int max_depth,
                int64_t wanted) {
  const auto count = [&](int edge, int sure) {
    int64_t n = 0;
    for (int level = least_level; level <= max_depth; ++level)
      n += histogram.at_least(bin_of(edge_of(edge) / gain(level)) + sure);
    return n;
  };
  const int begin = bin_of(static_cast<double>(float_of(range.least)) * gain(max_depth));
  const int end = bin_of(static_cast<double>(float_of(range.most)) * gain(least_level)) + 1;
  const int above = first_with(begin, end, [&](int e) { return count(e, 0) <= wanted; });
  const int past = first_with(begin, end, [&](int e) { return count(e, 1) <= wanted; });
  return {edge_of(std::max(begin, past - 1)), edge_of(above)};
}

// Bits of the smallest weight whose gain at each level is >= x; infinity's at levels not in use.
using Thresholds = std::array<int, kTreeDepth>;

int least_weight(double x, double gain_of_level) {
  constexpr auto kMost = static_cast<double>(std::numeric_limits<float>::max());
  const auto gain_at = [&](int bits) {
    return static_cast<double>(float_of(bits)) * gain_of_level;
  };
  int bits = std::max(1, bits_of(static_cast<float>(std::min(x / gain_of_level, kMost))));
  while (bits > 1 && gain_at(bits - 1) >= x) --bits;
  while (bits < kInfinityBits && gain_at(bits) < x) ++bits;
  return bits;
}

Thresholds thresholds(double x, int least_level, int max_depth) {
  Thresholds out;
  out.fill(kInfinityBits);
  for (int level = least_level; level <= max_depth; ++level)
    out[static_cast<size_t>(level) - 1] = least_weight(x, gain(level));
  return out;
}

// Where the element of rank k, 0 the largest, lies among 2^kDigit bins between the least key and
// the largest, and its rank within its bin.
template <int kDigit>
class BinOfRank {
 public:
  BinOfRank(const uint64_t* keys, int64_t n, int64_t k) : rank_(k) {
    const auto [least, most] = std::minmax_element(keys, keys + n);
    least_ = *least;
    width_ = *most - least_;
    shift_ = std::max(0, static_cast<int>(std::bit_width(width_)) - kDigit);
    std::array<uint32_t, size_t{1} << kDigit> counts{};
    for (int64_t i = 0; i < n; ++i) ++counts[of(keys[i])];
    bin_ = counts.size() - 1;
    for (; rank_ >= counts[bin_]; --bin_) rank_ -= counts[bin_];
  }
  size_t of(uint64_t key) const { return (key - least_) >> shift_; }
  size_t bin() const { return bin_; }
  int64_t rank() const { return rank_; }
  bool all_equal() const { return width_ == 0; }

 private:
  uint64_t least_ = 0, width_ = 0;
  int shift_ = 0;
  size_t bin_ = 0;
  int64_t rank_;
};

// The element of rank k, 0 the largest; keys are permuted and cut down.
uint64_t select(uint64_t* keys, int64_t n, int64_t k) {
  while (n > 256) {
    const BinOfRank<11> at(keys, n, k);
    if (at.all_equal()) return keys[0];
    n = std::remove_if(keys, keys + n, [&](uint64_t key) { return at.of(key) != at.bin(); }) - keys;
    k = at.rank();
  }
  std::nth_element(keys, keys + k, keys + n, std::greater<>());
  return keys[k];
}

// Gives `left` > 0 increments to the items at the cut: larger gain first, then smaller index. One
// histogram of the gains tells which surely get one; the items of the bin where they run out are
// ordered.
void settle_cut(std::span<const float> weights, int64_t n, int64_t left, std::span<uint8_t> depths,
                DepthWorkspace& workspace) {
  int32_t* const items = workspace.items.data();
  uint64_t* const keys = workspace.keys.data();
  const auto key_of = [&](int64_t at) {
    const auto i = static_cast<size_t>(items[at]);
    return std::bit_cast<uint64_t>(static_cast<double>(weights[i]) * gain(depths[i] + 1));
  };
  for (int64_t at = 0; at < n; ++at) keys[at] = key_of(at);
  const BinOfRank<8> last(keys, n, left - 1);
  left = last.rank() + 1;
  int64_t kept = 0;
  for (int64_t at = 0; at < n; ++at) {
    const uint64_t key = keys[at];
    const int32_t item = items[at];
    depths[static_cast<size_t>(item)] += last.of(key) > last.bin();
    keys[kept] = key, items[kept] = item;
    kept += last.of(key) == last.bin();
  }
  const uint64_t cut = select(keys, kept, left - 1);
  for (int64_t at = 0; at < kept; ++at) left -= key_of(at) > cut;
  for (int64_t at = 0; at < kept; ++at) {
    const uint64_t key = key_of(at);
    depths[static_cast<size_t>(items[at])] += key > cut || (key == cut && left-- > 0);
  }
}

bool fits(std::span<const float> weights, std::span<uint8_t> depths, const DepthWorkspace& memory) {
  return weights.size() == depths.size() && weights.size() < memory.items.size();
}

}  // namespace

void DepthWorkspace::reserve(int64_t n_items) {
  KVIST_ASSERT(n_items >= 0 && n_items <= std::numeric_limits<int32_t>::max());
  const auto n = static_cast<size_t>(n_items);
  // Past the end: the list is written before it is known whether an item belongs to it.
  if (items.size() < n + 16) items = Buffer<int32_t>(n + 16);
  if (keys.size() < n) keys = Buffer<uint64_t>(n);
  if (counts.empty()) counts = Buffer<uint32_t>(2 * (kBins + 1));
}

int64_t choose_depths(std::span<const float> weights, int max_depth, int min_depth, int64_t budget,
                      std::span<uint8_t> depths, DepthWorkspace& workspace) noexcept {
  KVIST_ASSERT(max_depth >= 1 && max_depth <= kTreeDepth && min_depth >= 0 &&
               min_depth <= max_depth && fits(weights, depths, workspace));
  const Range range = range_of(weights);
  if (!range.valid) return -1;
  const auto n = static_cast<int64_t>(weights.size());
  const int64_t wanted = budget - min_depth * n;
  const int64_t most = range.positive * (max_depth - min_depth);
  if (wanted <= 0 || most == 0) {
    std::fill(depths.begin(), depths.end(), static_cast<uint8_t>(min_depth));
    return min_depth * n;
  }
  if (wanted >= most) {
    for (size_t i = 0; i < weights.size(); ++i)
      depths[i] = static_cast<uint8_t>(weights[i] > 0 ? max_depth : min_depth);
    return min_depth * n + most;
  }
  const int least_level = min_depth + 1;
  const Histogram histogram(weights, range, workspace.counts.data());
  const Bracket cut = bracket(histogram, range, least_level, max_depth, wanted);
  // Depths by the upper end of the bracket, and the items that the lower end would read deeper.
  const Thresholds above = thresholds(cut.above, least_level, max_depth);
  const Thresholds below = thresholds(cut.below, least_level, max_depth);
  const kernels::DepthSplit found =
      kernels::split_depths(weights.data(), n, above.data(), below.data(), min_depth, depths.data(),
                            workspace.items.data());
  if (found.levels < wanted)
    settle_cut(weights, found.items, wanted - found.levels, depths, workspace);
  return budget;
}

void SharedDepths::reserve(int64_t n_items, int n_workers) {
  const int pieces = n_pieces(static_cast<size_t>(n_items));
  workspace_.reserve(n_items + 16 * pieces);
  if (found_.size() < static_cast<size_t>(pieces)) found_.resize(static_cast<size_t>(pieces));
  if (tallies_.size() < static_cast<size_t>(n_workers)) {
    tallies_.assign(static_cast<size_t>(n_workers), {});
    bins_ = Buffer<uint32_t>(static_cast<size_t>(n_workers) * 2 * kFloatBins);
  }
}

void SharedDepths::forget() noexcept {
  for (size_t w = 0; w < tallies_.size(); ++w) {
    const Range& range = tallies_[w].range;
    uint32_t* const bins = bins_.data() + w * 2 * kFloatBins;
    std::fill_n(bins, range.valid && range.positive == 0 ? 2 : 2 * kFloatBins, 0u);
    tallies_[w] = {};
  }
}

void SharedDepths::count(int worker, std::span<const float> weights) noexcept {
  Range& all = tallies_[static_cast<size_t>(worker)].range;
  const Range range =
      kernels::count_weights(weights.data(), static_cast<int64_t>(weights.size()),
                             bins_.data() + static_cast<size_t>(worker) * 2 * kFloatBins);
  all.valid &= range.valid;
  all.positive += range.positive;
  all.least = std::min(all.least, range.least);
  all.most = std::max(all.most, range.most);
}

void SharedDepths::cut(std::span<const float> weights, int max_depth, int min_depth,
                       int64_t budget) noexcept {
  const auto n = static_cast<int64_t>(weights.size());
  max_depth_ = max_depth, min_depth_ = min_depth, budget_ = budget;
  Range all;
  for (const Tally& tally : tallies_) {
    all.valid &= tally.range.valid;
    all.positive += tally.range.positive;
    all.least = std::min(all.least, tally.range.least);
    all.most = std::max(all.most, tally.range.most);
  }
  positive_ = all.positive;
  wanted_ = budget - min_depth * n;
  const int64_t most = all.positive * (max_depth - min_depth);
  kind_ = !all.valid                                ? Kind::refused
          : wanted_ <= 0 || most == 0               ? Kind::least
          : wanted_ >= most                         ? Kind::most
          : all.least >> kFloatShift < kFirstNormal ? Kind::alone
                                                    : Kind::cut;
  if (kind_ == Kind::cut) {
    const int first = all.least >> kFloatShift, n_bins = (all.most >> kFloatShift) - first + 1;
    uint32_t* const counts = workspace_.counts.data();
    std::fill_n(counts, n_bins + 1, 0u);
    for (size_t w = 0; w < tallies_.size(); ++w) {
      if (tallies_[w].range.positive == 0) continue;
      const uint32_t* bins = bins_.data() + (w * kFloatBins + static_cast<size_t>(first)) * 2;
      for (int i = 0; i < n_bins; ++i) counts[i] += bins[2 * i] + bins[2 * i + 1];
    }
    const Histogram histogram(first + kFloatOffset, n_bins, counts);
    const Bracket found = bracket(histogram, all, min_depth + 1, max_depth, wanted_);
    above_ = thresholds(found.above, min_depth + 1, max_depth);
    below_ = thresholds(found.below, min_depth + 1, max_depth);
  }
  for (size_t w = 0; w < tallies_.size(); ++w) {
    Range& range = tallies_[w].range;
    uint32_t* const bins = bins_.data() + w * 2 * kFloatBins;
    bins[0] = bins[1] = 0;  // weights of 0
    if (!all.valid) {
      std::fill_n(bins, 2 * kFloatBins, 0u);
    } else if (range.positive > 0) {
      const int first = range.least >> kFloatShift, last = range.most >> kFloatShift;
      std::fill_n(bins + 2 * first, 2 * (last - first + 1), 0u);
    }
    range = {};
  }
}

void SharedDepths::split(int piece, std::span<const float> weights,
                         std::span<uint8_t> depths) noexcept {
  const auto begin = static_cast<size_t>(piece * kPiece);
  const std::span<const float> w =
      weights.subspan(begin).first(std::min<size_t>(kPiece, weights.size() - begin));
  uint8_t* const to = depths.data() + begin;
  if (kind_ == Kind::cut) {
    found_[static_cast<size_t>(piece)] = kernels::split_depths(
        w.data(), static_cast<int64_t>(w.size()), above_.data(), below_.data(), min_depth_, to,
        workspace_.items.data() + piece * (kPiece + 16));
  } else if (kind_ != Kind::alone) {
    const int most = kind_ == Kind::most ? max_depth_ : min_depth_;
    for (size_t i = 0; i < w.size(); ++i)
      to[i] = static_cast<uint8_t>(w[i] > 0 ? most : min_depth_);
  }
}

int64_t SharedDepths::settle(std::span<const float> weights, std::span<uint8_t> depths) noexcept {
  const auto n = static_cast<int64_t>(weights.size());
  switch (kind_) {
    case Kind::refused:
      return -1;
    case Kind::least:
      return min_depth_ * n;
    case Kind::most:
      return min_depth_ * n + positive_ * (max_depth_ - min_depth_);
    case Kind::alone:
      return choose_depths(weights, max_depth_, min_depth_, budget_, depths, workspace_);
    case Kind::cut:
      break;
  }
  int64_t levels = 0, items = 0;
  int32_t* const all = workspace_.items.data();
  for (int piece = 0; piece < n_pieces(weights.size()); ++piece) {
    const kernels::DepthSplit& found = found_[static_cast<size_t>(piece)];
    const int32_t* own = all + piece * (kPiece + 16);
    for (int64_t i = 0; i < found.items; ++i)
      all[items++] = own[i] + static_cast<int32_t>(piece * kPiece);
    levels += found.levels;
  }
  if (levels < wanted_) settle_cut(weights, items, wanted_ - levels, depths, workspace_);
  return budget_;
}

uint64_t SharedDepths::allocated_bytes() const {
  return bins_.allocated_bytes() + workspace_.items.allocated_bytes() +
         workspace_.keys.allocated_bytes() + workspace_.counts.allocated_bytes();
}

int64_t two_depth(std::span<const float> weights, int max_depth, int low, int64_t budget,
                  std::span<uint8_t> depths, DepthWorkspace& workspace) noexcept {
  KVIST_ASSERT(low >= 0 && low < max_depth && max_depth <= kTreeDepth &&
               fits(weights, depths, workspace));
  if (!range_of(weights).valid) return -1;
  const auto n = static_cast<int64_t>(weights.size());
  const int64_t k = std::clamp<int64_t>((budget - low * n) / (max_depth - low), 0, n);
  std::fill(depths.begin(), depths.end(), static_cast<uint8_t>(low));
  if (k == 0) return low * n;
  const auto key_of = [&](size_t i) {
    return static_cast<uint64_t>(std::max(0, bits_of(weights[i])));
  };
  for (size_t i = 0; i < weights.size(); ++i) workspace.keys[i] = key_of(i);
  const uint64_t cut = select(workspace.keys.data(), n, k - 1);
  int64_t equal = k;
  for (size_t i = 0; i < weights.size(); ++i) equal -= key_of(i) > cut;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (key_of(i) > cut || (key_of(i) == cut && equal-- > 0))
      depths[i] = static_cast<uint8_t>(max_depth);
  }
  return low * n + k * (max_depth - low);
}

}  // namespace kvist
