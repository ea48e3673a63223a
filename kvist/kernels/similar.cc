// SPDX-License-Identifier: MIT
// Counts similar keys in fixed point: unit keys as 16-bit integers, whose products and sums are
// exact, in tiles of 8 x 32 pairs; only pairs within the rounding of 17/20 are decided by the
// canonical predicate.
//
// A key k becomes x = round(S k / |k|) with S = 32767, so x = S k/|k| + e with |e| <= E =
// sqrt(head_dim) / 2 + 0.01, and |x.y - S^2 cos(k, l)| <= 2 S E + E^2. By Cauchy-Schwarz no partial
// sum passes (S + E)^2 < 2^31.
#include "kvist/kernels/similar.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <vector>

#include "kvist/core/buffer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvist/kernels/similar.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kvist/kernels/norms-inl.h"

#ifndef KVIST_KERNELS_SIMILAR_ONCE
#define KVIST_KERNELS_SIMILAR_ONCE
namespace kvist::kernels {
namespace {

constexpr int kTileRows = 8;  // keys i of a tile
constexpr int kPanel = 32;    // keys j of a tile
constexpr double kScale = 32767;

bool is_similar(double dot, double aa, double bb) {
  return dot > 0 && 400 * dot * dot > 289 * aa * bb;
}

double dot_in_order(const float* a, const float* b, int d) {
  double sum = 0;
  for (int k = 0; k < d; ++k) sum += static_cast<double>(a[k]) * static_cast<double>(b[k]);
  return sum;
}

// One head's keys, packed. Pair p of a key is its coordinates 2p and 2p + 1 as int16, the first one
// low.
struct Packed {
  const float* keys = nullptr;
  int n = 0, head_dim = 0, pairs = 0, ell = 0;
  int n_panels = 0;
  int32_t maybe = 0;       // x.y above this may be similar
  int32_t surely = 0;      // x.y from here on is
  Buffer<int32_t> rows;    // [n_panels * 32][pairs]
  Buffer<int32_t> panels;  // [n_panels][pairs][32]
  Buffer<double> norms;    // [n_panels * 32] |k|^2, canonical
};

// What one thread counts.
struct Tally {
  Buffer<int32_t> counts;  // [n_panels * 32]
  CountStats stats;
};

// Tiles (i0 .. i0 + row_count) x panels [panel_begin, panel_end).
struct Block {
  int row_begin, row_end;  // multiples of kTileRows
  int panel_begin, panel_end;
};

}  // namespace
}  // namespace kvist::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using DI = hn::CappedTag<int32_t, 16>;
using VI = hn::Vec<DI>;

// sum + a[2p] * b[2p] + a[2p + 1] * b[2p + 1] in each 32-bit lane.
HWY_INLINE VI multiply_pairs(VI a, VI b, VI sum) {
#if HWY_TARGET == HWY_AVX3_DL
  // This target implies AVX512-VNNI. As assembly, since gcc 12 copies every sum around the
  // intrinsic.
  asm("vpdpwssd %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
  return sum;
#elif HWY_TARGET == HWY_SCALAR
  const auto low = [](int32_t x) { return static_cast<int32_t>(static_cast<int16_t>(x)); };
  return VI{sum.raw + low(a.raw) * low(b.raw) + (a.raw >> 16) * (b.raw >> 16)};
#else
  const hn::Repartition<int16_t, DI> d16;
  VI unused = hn::Zero(DI());
  const VI first =
      hn::ReorderWidenMulAccumulate(DI(), hn::BitCast(d16, a), hn::BitCast(d16, b), sum, unused);
  return hn::RearrangeToOddPlusEven(first, unused);
#endif
}

void quantize_row(const float* key, double norm2, int d, int16_t* out) {
  if (norm2 == 0) {
    std::fill_n(out, d, int16_t{0});
    return;
  }
  const double scale = kScale / std::sqrt(norm2);
  int k = 0;
  if (norm2 > 1e-50 && norm2 < 1e50) {  // the scale is a normal float
    const hn::CappedTag<float, 16> df;
    const hn::Rebind<int16_t, decltype(df)> d16;
    const auto factor = hn::Set(df, static_cast<float>(scale));
    const int lanes = static_cast<int>(hn::Lanes(df));
    for (; k + lanes <= d; k += lanes) {
      hn::StoreU(hn::DemoteTo(d16, hn::NearestInt(hn::Mul(hn::LoadU(df, key + k), factor))), d16,
                 out + k);
    }
  }
  for (; k < d; ++k)
    out[k] = static_cast<int16_t>(std::lround(static_cast<double>(key[k]) * scale));
}

// Fills panels [begin, end) and what belongs to them.
void PackPanels(Packed& p, int begin, int end) {
  const DI di;
  const int lanes = static_cast<int>(hn::Lanes(di));
  const auto index = hn::Mul(hn::Iota(di, 0), hn::Set(di, p.pairs));
  const int last = std::min(p.n, end * kPanel);
  squared_norms(p.keys, begin * kPanel, last, p.head_dim, p.norms.data());
  for (int t = begin * kPanel; t < last; ++t) {
    int32_t* row = p.rows.data() + static_cast<int64_t>(t) * p.pairs;
    row[p.pairs - 1] = 0;
    quantize_row(p.keys + static_cast<int64_t>(t) * p.head_dim, p.norms[static_cast<size_t>(t)],
                 p.head_dim, reinterpret_cast<int16_t*>(row));
  }
  for (int b = begin; b < end; ++b) {
    const int32_t* rows = p.rows.data() + static_cast<int64_t>(b) * kPanel * p.pairs;
    int32_t* panel = p.panels.data() + static_cast<int64_t>(b) * kPanel * p.pairs;
    for (int k = 0; k < p.pairs; ++k) {
      for (int t = 0; t < kPanel; t += lanes) {
        hn::StoreU(hn::GatherIndex(di, rows + static_cast<int64_t>(t) * p.pairs + k, index), di,
                   panel + k * kPanel + t);
      }
    }
  }
}

// A tile's products go to out [kTileRows][kPanel] where any exceeds `maybe`; false where none does.
template <int kRows, int kVecs>
HWY_INLINE bool multiply_strip(const int32_t* HWY_RESTRICT rows, const int32_t* HWY_RESTRICT panel,
                               int pairs, int32_t maybe, int32_t* HWY_RESTRICT out) {
  const DI di;
  const int lanes = static_cast<int>(hn::Lanes(di));
  VI sum[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) sum[r][v] = hn::Zero(di);
  }
  for (int k = 0; k < pairs; ++k) {
    VI column[kVecs];
    for (int v = 0; v < kVecs; ++v) column[v] = hn::LoadU(di, panel + k * kPanel + v * lanes);
    for (int r = 0; r < kRows; ++r) {
      const VI row = hn::Set(di, rows[r * pairs + k]);
      for (int v = 0; v < kVecs; ++v) sum[r][v] = multiply_pairs(row, column[v], sum[r][v]);
    }
  }
  VI most = sum[0][0];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) most = hn::Max(most, sum[r][v]);
  }
  if (hn::AllFalse(di, hn::Gt(most, hn::Set(di, maybe)))) return false;
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) hn::StoreU(sum[r][v], di, out + r * kPanel + v * lanes);
  }
  return true;
}

// Counts the similar pairs (i, j), j > i + ell, of one tile from its products.
void count_tile(const Packed& p, int i0, int j0, const int32_t* products, Tally& tally) {
  for (int r = 0; r < kTileRows; ++r) {
    const int i = i0 + r;
    const int32_t* row = products + r * kPanel;
    for (int c = std::max(0, i + p.ell + 1 - j0); c < kPanel; ++c) {
      if (row[c] <= p.maybe) continue;
      const int j = j0 + c;
      if (row[c] < p.surely) {
        ++tally.stats.borderline;
        const double dot = dot_in_order(p.keys + static_cast<int64_t>(i) * p.head_dim,
                                        p.keys + static_cast<int64_t>(j) * p.head_dim, p.head_dim);
        if (!is_similar(dot, p.norms[static_cast<size_t>(i)], p.norms[static_cast<size_t>(j)]))
          continue;
      }
      ++tally.counts[static_cast<size_t>(i)];
      ++tally.counts[static_cast<size_t>(j)];
    }
  }
}

void CountBlock(const Packed& p, const Block& block, Tally& tally) {
  constexpr int kRows = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL ? 8 : 4;
  constexpr int kVecs = 2;
  HWY_ALIGN int32_t products[kTileRows * kPanel];
  const int strip = kVecs * static_cast<int>(hn::Lanes(DI()));
  for (int i0 = block.row_begin; i0 < block.row_end; i0 += kTileRows) {
    const int32_t* rows = p.rows.data() + static_cast<int64_t>(i0) * p.pairs;
    for (int b = block.panel_begin; b < block.panel_end; ++b) {
      if (b * kPanel + kPanel - 1 <= i0 + p.ell) continue;
      ++tally.stats.tiles;
      const int32_t* panel = p.panels.data() + static_cast<int64_t>(b) * kPanel * p.pairs;
      bool any = false;
      for (int r = 0; r < kTileRows; r += kRows) {
        for (int c = 0; c < kPanel; c += strip) {
          int32_t* out = products + r * kPanel + c;
          if (multiply_strip<kRows, kVecs>(rows + r * p.pairs, panel + c, p.pairs, p.maybe, out)) {
            any = true;
          } else if (kRows * strip < kTileRows * kPanel) {
            for (int q = 0; q < kRows; ++q) std::fill_n(out + q * kPanel, strip, 0);
          }
        }
      }
      if (any) count_tile(p, i0, b * kPanel, products, tally);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvist::kernels {
namespace {
HWY_EXPORT(PackPanels);
HWY_EXPORT(CountBlock);

// L1 holds a block of panels beside the rows that stream past it.
constexpr int kPanelBytes = 32 * 1024;
constexpr int kBlockRows = 256;

void set_thresholds(Packed& p) {
  const double e = 0.5 * std::sqrt(static_cast<double>(p.head_dim)) + 0.01;
  const double guard = 2 * kScale * e + e * e;
  const double middle = 0.85 * kScale * kScale;
  p.maybe = static_cast<int32_t>(std::floor(middle - guard)) - 1;
  p.surely = static_cast<int32_t>(std::min(std::ceil(middle + guard) + 1, 2147483647.0));
}

std::vector<Block> blocks_of(const Packed& p) {
  const int step = std::max(1, kPanelBytes / (kPanel * p.pairs * 4));
  std::vector<Block> blocks;
  for (int b = 0; b < p.n_panels; b += step) {
    const int b_end = std::min(b + step, p.n_panels);
    const int row_end = std::min(b_end * kPanel, (p.n + kTileRows - 1) / kTileRows * kTileRows);
    for (int r = 0; r < row_end; r += kBlockRows) {
      if (b_end * kPanel - 1 <= r + p.ell) break;
      blocks.push_back({r, std::min(r + kBlockRows, row_end), b, b_end});
    }
  }
  return blocks;
}

}  // namespace

bool similar(const float* a, const float* b, int head_dim) noexcept {
  return is_similar(dot_in_order(a, b, head_dim), dot_in_order(a, a, head_dim),
                    dot_in_order(b, b, head_dim));
}

void count_similar(const float* keys, int n, int head_dim, int ell, ThreadPool& pool,
                   int32_t* counts, CountStats* stats) {
  CountStats total;
  std::fill_n(counts, n, 0);
  if (n > 0 && ell < n - 1) {
    Packed p;
    p.keys = keys;
    p.n = n;
    p.head_dim = head_dim;
    p.pairs = (head_dim + 1) / 2;
    p.ell = ell;
    p.n_panels = (n + kPanel - 1) / kPanel;
    const size_t padded = static_cast<size_t>(p.n_panels) * kPanel;
    p.rows = Buffer<int32_t>(padded * static_cast<size_t>(p.pairs));
    p.panels = Buffer<int32_t>(padded * static_cast<size_t>(p.pairs));
    p.norms = Buffer<double>(padded);
    set_thresholds(p);
    const std::vector<Block> blocks = blocks_of(p);
    std::vector<Tally> tallies(static_cast<size_t>(pool.n_threads()));

    constexpr int kPackStep = 8;
    pool.parallel_for((p.n_panels + kPackStep - 1) / kPackStep, [&](int64_t item) {
      const int begin = static_cast<int>(item) * kPackStep;
      HWY_DYNAMIC_DISPATCH(PackPanels)(p, begin, std::min(begin + kPackStep, p.n_panels));
    });
    std::atomic<size_t> next{0};
    pool.run([&](Worker worker) {
      Tally& tally = tallies[static_cast<size_t>(worker.index)];
      tally.counts = Buffer<int32_t>(padded);
      for (size_t b = next++; b < blocks.size(); b = next++) {
        HWY_DYNAMIC_DISPATCH(CountBlock)(p, blocks[b], tally);
      }
    });
    for (const Tally& tally : tallies) {
      for (int i = 0; i < n; ++i) counts[i] += tally.counts[static_cast<size_t>(i)];
      total.tiles += tally.stats.tiles;
      total.rejected += tally.stats.rejected;
      total.borderline += tally.stats.borderline;
    }
  }
  if (stats != nullptr) *stats = total;
}

}  // namespace kvist::kernels
#endif
