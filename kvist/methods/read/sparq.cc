// SPDX-License-Identifier: MIT
#include "kvist/methods/read/sparq.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvist {
namespace {

// Puts the n best of x, by index, at the front of order.
void best_first(std::span<const float> x, size_t n, std::span<uint32_t> order) {
  std::iota(order.begin(), order.end(), 0u);
  if (n >= x.size()) return;
  std::nth_element(order.begin(), order.begin() + static_cast<int64_t>(n), order.end(),
                   [&](uint32_t a, uint32_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); });
}

}  // namespace

void choose_channels(std::span<const float> sums, int n, std::span<uint8_t> chosen,
                     std::span<uint32_t> order) noexcept {
  const size_t most = std::min(sums.size(), static_cast<size_t>(n));
  best_first(sums, most, order.first(sums.size()));
  std::fill(chosen.begin(), chosen.end(), uint8_t{0});
  for (const uint32_t c : order.first(most)) chosen[c] = 1;
}

double chosen_share(std::span<const float> q, std::span<const uint8_t> chosen) noexcept {
  double part = 0, whole = 0;
  for (size_t c = 0; c < q.size(); ++c) {
    const double size = std::abs(double{q[c]});
    whole += size;
    part += chosen[c] != 0 ? size : 0;
  }
  return whole > 0 ? part / whole : 1;
}

int choose_tokens(std::span<const float> scores, int n, std::span<uint32_t> order) noexcept {
  if (scores.empty()) return 0;
  const size_t others = scores.size() - 1, some = std::min(others, static_cast<size_t>(n));
  best_first(scores.first(others), some, order.first(others));
  order[some] = static_cast<uint32_t>(others);
  std::sort(order.begin(), order.begin() + static_cast<int64_t>(some));
  return static_cast<int>(some) + 1;
}

}  // namespace kvist
