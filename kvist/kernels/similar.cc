// SPDX-License-Identifier: MIT
// Counts of similar keys: the canonical predicate, and the choice between AMX tiles and fixed
// point.
#include "kvist/kernels/similar.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kvist/core/buffer.h"
#include "kvist/kernels/attend_internal.h"
#include "kvist/kernels/similar_blocks.h"
#include "kvist/kernels/similar_internal.h"

namespace kvist::kernels {
namespace {

using internal::Block;
using internal::kPanel;
using internal::Tally;

bool is_similar(double dot, double aa, double bb) {
  return dot > 0 && 400 * dot * dot > 289 * aa * bb;
}

double dot_in_order(const float* a, const float* b, int d) {
  double sum = 0;
  for (int k = 0; k < d; ++k) sum += static_cast<double>(a[k]) * static_cast<double>(b[k]);
  return sum;
}

// Unit keys x = k / |k| + e as bf16: |x.y - cos| <= 2 E + E^2, and the fp32 sums round by less than
// head_dim 2^-23.
void set_thresholds(internal::Bf16Keys& p, float worst_rounding) {
  const double e = 1.0001 * static_cast<double>(worst_rounding) + 0x1p-22;
  const double guard = 2 * e + e * e + (p.head_dim + 40) * 0x1p-23;
  p.maybe = std::nextafter(static_cast<float>(0.85 - guard), 0.0f);
  p.surely = std::nextafter(static_cast<float>(0.85 + guard), 2.0f);
}

void count_similar_amx(const float* keys, int n, int head_dim, int ell, ThreadPool& pool,
                       int32_t* counts, CountStats* stats) {
  internal::Bf16Keys p;
  p.keys = keys;
  p.n = n;
  p.head_dim = head_dim;
  p.ell = ell;
  p.pairs = (head_dim + 31) / 32 * 16;
  const int n_panels = (n + kPanel - 1) / kPanel;
  const size_t padded = static_cast<size_t>(n_panels) * kPanel;
  Buffer<uint32_t> rows(padded * static_cast<size_t>(p.pairs)), panels(rows.size());
  Buffer<double> norms(padded);
  std::vector<float> rounding(static_cast<size_t>(n_panels));
  p.rows = rows.data();
  p.panels = panels.data();
  p.norms = norms.data();
  const auto pack = [&](int begin, int end) {
    internal::canonical_norms(keys, begin * kPanel, std::min(n, end * kPanel), head_dim,
                              norms.data());
    for (int b = begin; b < end; ++b) {
      rounding[static_cast<size_t>(b)] = internal::pack_panel_amx(p, b);
    }
  };
  const auto prepare = [&] {
    set_thresholds(p, *std::max_element(rounding.begin(), rounding.end()));
  };
  const auto count = [&](const Block& block, Tally& tally) {
    internal::count_block_amx(p, block.row_begin, block.row_end, block.panel_begin, block.panel_end,
                              tally.counts.data(), &tally.stats);
  };
  internal::pack_and_count(n, p.pairs, ell, pool, pack, prepare, count, counts, stats);
}

}  // namespace

bool internal::decide(const float* keys, const double* norms, int head_dim, int i, int j) noexcept {
  const float* a = keys + static_cast<int64_t>(i) * head_dim;
  const float* b = keys + static_cast<int64_t>(j) * head_dim;
  return is_similar(dot_in_order(a, b, head_dim), norms[i], norms[j]);
}

bool similar(const float* a, const float* b, int head_dim) noexcept {
  return is_similar(dot_in_order(a, b, head_dim), dot_in_order(a, a, head_dim),
                    dot_in_order(b, b, head_dim));
}

void count_similar(const float* keys, int n, int head_dim, int ell, ThreadPool& pool,
                   int32_t* counts, CountStats* stats) {
  if (!internal::amx_allowed()) {
    return internal::count_similar_fixed(keys, n, head_dim, ell, pool, counts, stats);
  }
  if (internal::has_pairs(n, ell, counts, stats)) {
    count_similar_amx(keys, n, head_dim, ell, pool, counts, stats);
  }
}

}  // namespace kvist::kernels
