// SPDX-License-Identifier: MIT
#include "kvist/methods/rank/row_depths.h"

#include <algorithm>

namespace kvist {
namespace {

constexpr int kParts = 16;  // partial sums, which any compiler keeps in order

// Of |q|^2 / 2 of the pair that each channel of a KV head belongs to, summed over its heads; 0 for
// channels that do not turn.
void pair_weights(const RowQuery& query, int kv_head, float* channels) {
  const int d = query.head_dim, f = query.n_frequencies;
  std::fill_n(channels, d, 0.0f);
  for (int h = 0; h < query.group; ++h) {
    const float* q = query.q + int64_t{kv_head * query.group + h} * d;
    for (int i = 0; i < f; ++i) {
      const int a = query.adjacent ? 2 * i : i, b = query.adjacent ? a + 1 : i + f;
      const float half = 0.5f * (q[a] * q[a] + q[b] * q[b]);
      channels[a] += half;
      channels[b] += half;
    }
  }
}

float weighted_square(const float* v, const float* w, int n) {
  float part[kParts] = {};
  int i = 0;
  for (; i + kParts <= n; i += kParts)
    for (int k = 0; k < kParts; ++k) part[k] += v[i + k] * v[i + k] * w[i + k];
  for (; i < n; ++i) part[0] += v[i] * v[i] * w[i];
  float sum = 0;
  for (const float p : part) sum += p;
  return sum;
}

// Squared products of the channels that do not turn.
float still_square(const RowQuery& query, const float* row) {
  const int d = query.head_dim, first = 2 * query.n_frequencies;
  float sum = 0;
  for (int h = 0; h < query.kv_heads * query.group; ++h) {
    const float* v = row + h / query.group * d;
    float dot = 0;
    for (int c = first; c < d; ++c) dot += query.q[int64_t{h} * d + c] * v[c];
    sum += dot * dot;
  }
  return sum;
}

int64_t cost_of(std::span<const uint8_t> depths, std::span<const uint32_t> tokens) {
  int64_t bits = 0;
  for (size_t j = 0; j < depths.size(); ++j) bits += int64_t{depths[j]} * tokens[j];
  return bits;
}

}  // namespace

void row_importance(const RankBasisLayer& basis, const RowQuery& query, std::span<float> channels,
                    std::span<float> out) noexcept {
  const int d = query.head_dim, width = query.kv_heads * d;
  for (int head = 0; head < query.kv_heads; ++head)
    pair_weights(query, head, channels.data() + int64_t{head} * d);
  const bool all_turn = 2 * query.n_frequencies == d;
  for (int j = 0; j < static_cast<int>(out.size()); ++j) {
    float& sum = out[static_cast<size_t>(j)];
    sum = weighted_square(basis.row(j), channels.data(), width);
    if (!all_turn) sum += still_square(query, basis.row(j));
  }
}

int64_t choose_row_depths(std::span<const float> weights, std::span<const uint32_t> tokens,
                          int most, int64_t budget, std::span<uint8_t> depths,
                          DepthWorkspace& workspace) noexcept {
  // A budget of n increments buys the n best: the most that cost no more bits than there are.
  int64_t fits = 0, too_many = most * static_cast<int64_t>(weights.size()) + 1;
  const auto buy = [&](int64_t n) {
    return choose_depths(weights, most, 0, n, depths, workspace) >= 0;
  };
  if (!buy(0)) {
    std::fill(depths.begin(), depths.end(), static_cast<uint8_t>(most));
    return cost_of(depths, tokens);
  }
  while (too_many - fits > 1) {
    const int64_t n = fits + (too_many - fits) / 2;
    buy(n);
    (cost_of(depths, tokens) <= budget ? fits : too_many) = n;
  }
  buy(fits);
  return cost_of(depths, tokens);
}

}  // namespace kvist
