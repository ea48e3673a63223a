// SPDX-License-Identifier: MIT
#include "kvist/methods/rank/water_fill.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "kvist/core/error.h"

namespace kvist {
namespace {

// Tokens by q, larger first; among equals the earlier.
std::vector<uint32_t> by_salience(std::span<const uint32_t> q) {
  std::vector<uint32_t> order(q.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return q[a] > q[b]; });
  return order;
}

void require_feasible(const FillLimits& l, size_t n) {
  const auto tokens = static_cast<int64_t>(n);
  KVIST_ASSERT(l.least >= 0 && l.least <= l.most && l.most <= 65535);
  KVIST_ASSERT(l.total >= l.least * tokens && l.total <= l.most * tokens);
}

// The part of water_fill above the floor, in granules: extra[i] <= span, in sum `left` unless
// rounded up.
std::vector<uint64_t> divide(std::span<const uint32_t> q, uint64_t left, uint64_t span,
                             bool round_up) {
  const std::vector<uint32_t> order = by_salience(q);
  const size_t positive = static_cast<size_t>(
      std::partition_point(order.begin(), order.end(), [&](uint32_t i) { return q[i] > 0; }) -
      order.begin());
  std::vector<uint64_t> extra(q.size(), 0);
  uint64_t sum = 0;
  for (const uint32_t x : q) sum += x;
  size_t begin = 0;
  for (; begin < positive && left * q[order[begin]] > span * sum; ++begin) {
    extra[order[begin]] = span;
    left -= span;
    sum -= q[order[begin]];
  }
  if (begin < positive) {
    struct Rest {
      uint64_t remainder;
      uint32_t token;
    };
    std::vector<Rest> rests;
    uint64_t given = 0;
    for (size_t i = begin; i < positive; ++i) {
      const uint32_t token = order[i];
      const uint64_t product = left * q[token];
      extra[token] = product / sum;
      given += extra[token];
      if (product % sum != 0 && round_up) ++extra[token];
      rests.push_back({product % sum, token});
    }
    if (round_up) return extra;
    // The order of `rests` is by q, then position: a stable sort keeps that among equals.
    std::stable_sort(rests.begin(), rests.end(),
                     [](const Rest& a, const Rest& b) { return a.remainder > b.remainder; });
    for (size_t i = 0; i < left - given; ++i) ++extra[rests[i].token];
  } else if (left > 0) {
    const uint64_t others = q.size() - positive;
    uint64_t number = 0;
    for (size_t i = 0; i < q.size(); ++i) {
      if (q[i] > 0) continue;
      const bool one_more = round_up ? left % others != 0 : number < left % others;
      extra[i] = left / others + (one_more ? 1 : 0);
      ++number;
    }
  }
  return extra;
}

// A segment of a token's majorant.
struct Segment {
  uint32_t key;  // bits of the weighted slope: not below 0, so their order is that of the numbers
  uint32_t token;
  uint32_t length;
};

constexpr int kStep = 8;  // coefficients between the points of an energy curve

struct Point {
  int rank;
  double energy;
};

// Whether b lies on or below the line from a to c.
bool is_below(const Point& a, const Point& b, const Point& c) {
  return (b.energy - a.energy) * (c.rank - b.rank) <= (c.energy - b.energy) * (b.rank - a.rank);
}

// x[0]^2 + ... + x[n - 1]^2, n <= 8, by pairs.
double squares(const float* x, int n) {
  double s[kStep] = {};
  for (int i = 0; i < n; ++i) s[i] = static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

// Appends the majorant's segments of one token, steepest first. hull: scratch.
void add_segments(const float* coefficients, double weight, uint32_t token, const FillLimits& l,
                  std::vector<Point>* hull, std::vector<Segment>* out) {
  hull->assign(1, {l.least, 0});
  double energy = 0;
  for (int r = l.least; r < l.most; r += kStep) {
    const int end = std::min(r + kStep, l.most);
    energy += squares(coefficients + r, end - r);
    const Point p{end, energy};
    while (hull->size() > 1 && is_below((*hull)[hull->size() - 2], hull->back(), p))
      hull->pop_back();
    hull->push_back(p);
  }
  for (size_t i = 1; i < hull->size(); ++i) {
    const Point &from = (*hull)[i - 1], &to = (*hull)[i];
    const auto length = static_cast<uint32_t>(to.rank - from.rank);
    const auto slope = static_cast<float>(weight * (to.energy - from.energy) / length);
    out->push_back({std::bit_cast<uint32_t>(slope + 0.0f), token, length});
  }
}

}  // namespace

Ranks water_fill(std::span<const uint32_t> q, const FillLimits& l) {
  require_feasible(l, q.size());
  const auto n = static_cast<uint64_t>(q.size());
  const auto granule = static_cast<uint64_t>(l.granule);
  const uint64_t span = static_cast<uint64_t>(l.most - l.least) / granule;
  const uint64_t budget = static_cast<uint64_t>(l.total) - static_cast<uint64_t>(l.least) * n;
  const uint64_t left = std::min(budget / granule, span * n);
  Ranks ranks(q.size(), static_cast<uint16_t>(l.least));
  if (q.empty()) return ranks;
  std::vector<uint32_t> alike;
  if (std::all_of(q.begin(), q.end(), [&](uint32_t x) { return x == q[0]; })) {
    alike.assign(q.size(), 1);
    q = alike;
  }
  const std::vector<uint64_t> extra = divide(q, left, span, l.round_up);
  for (size_t i = 0; i < ranks.size(); ++i)
    ranks[i] = static_cast<uint16_t>(static_cast<uint64_t>(l.least) + granule * extra[i]);
  return ranks;
}

Ranks split_fill(std::span<const uint32_t> q, const FillLimits& l) {
  require_feasible(l, q.size());
  int64_t left = l.total - l.least * static_cast<int64_t>(q.size());
  Ranks ranks(q.size(), static_cast<uint16_t>(l.least));
  for (const uint32_t token : by_salience(q)) {
    const int64_t extra = std::min<int64_t>(left, l.most - l.least);
    ranks[token] = static_cast<uint16_t>(l.least + extra);
    left -= extra;
  }
  return ranks;
}

Ranks energy_fill(const float* coefficients, int64_t stride, std::span<const double> weights,
                  const FillLimits& l, ThreadPool& pool) {
  require_feasible(l, weights.size());
  constexpr size_t kChunk = 256;  // tokens of a worker at a time
  std::vector<std::vector<Segment>> chunks((weights.size() + kChunk - 1) / kChunk);
  pool.parallel_for(std::ssize(chunks), [&](int64_t chunk) {
    const auto begin = static_cast<size_t>(chunk) * kChunk;
    std::vector<Segment>& out = chunks[static_cast<size_t>(chunk)];
    out.reserve(kChunk * static_cast<size_t>((l.most - l.least) / kStep + 1));
    std::vector<Point> hull;
    for (size_t i = begin; i < std::min(begin + kChunk, weights.size()); ++i)
      add_segments(coefficients + static_cast<int64_t>(i) * stride, weights[i],
                   static_cast<uint32_t>(i), l, &hull, &out);
  });
  // All segments above the bucket in which the budget ends are taken; only that one is sorted.
  constexpr int kShift = 16;
  std::vector<uint64_t> lengths(size_t{1} << (32 - kShift), 0);
  for (const auto& segments : chunks)
    for (const Segment& s : segments) lengths[s.key >> kShift] += s.length;
  auto left = static_cast<uint64_t>(l.total - l.least * static_cast<int64_t>(weights.size()));
  size_t bucket = lengths.size();
  while (bucket > 0 && lengths[bucket - 1] <= left) left -= lengths[--bucket];
  Ranks ranks(weights.size(), static_cast<uint16_t>(l.least));
  std::vector<Segment> last;
  for (const auto& segments : chunks) {
    for (const Segment& s : segments) {
      if (s.key >> kShift >= bucket) {
        ranks[s.token] = static_cast<uint16_t>(ranks[s.token] + s.length);
      } else if ((s.key >> kShift) + 1 == bucket) {
        last.push_back(s);
      }
    }
  }
  std::stable_sort(last.begin(), last.end(),
                   [](const Segment& a, const Segment& b) { return a.key > b.key; });
  for (const Segment& s : last) {
    const auto taken = std::min<uint64_t>(left, s.length);
    ranks[s.token] = static_cast<uint16_t>(ranks[s.token] + taken);
    left -= taken;
    if (left == 0) break;
  }
  return ranks;
}

}  // namespace kvist
