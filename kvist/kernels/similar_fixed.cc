// SPDX-License-Identifier: MIT
// Counts similar keys in fixed point: unit keys as 16-bit integers, whose products and sums are
// exact, in tiles of 8 x 32 pairs; only pairs within the rounding of 17/20 are decided by the
// canonical predicate.
//
// A key k becomes x = S R k / |k| + e, where R is the identity or, for long inputs, a rotation that
// puts most energy into the leading coordinates. The rounding to integers and the fp32 rounding of
// the rotation give |e| <= E, so |x.y - S^2 cos(k, l)| <= 2 S E + E^2, and by Cauchy-Schwarz no
// partial sum passes (S + E)^2 < 2^31. With a rotation a tile is left early where no pair can
// reach the threshold any more: x.y <= (x.y over the leading coordinates) + |x tail| |y tail|.
#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "kvist/core/buffer.h"
#include "kvist/kernels/leading.h"
#include "kvist/kernels/similar_blocks.h"
#include "kvist/kernels/similar_internal.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvist/kernels/similar_fixed.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kvist/kernels/norms-inl.h"

#ifndef KVIST_KERNELS_SIMILAR_FIXED_ONCE
#define KVIST_KERNELS_SIMILAR_FIXED_ONCE
namespace kvist::kernels {
namespace {

using internal::Block;
using internal::kPanel;
using internal::Tally;

constexpr int kTileRows = 8;      // keys i of a tile, beside kPanel keys j
constexpr double kScale = 32000;  // S; leaves room for tails rounded up
constexpr int kLevels = 2;        // times a tile may be left: after 1/4 and 1/2 of the coordinates

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
  // Where the keys are rotated:
  std::vector<float> basis;        // [head_dim][head_dim rounded up to 16]
  int level_pairs[kLevels] = {};   // coordinates before the test, in pairs
  Buffer<int32_t> tails[kLevels];  // [n_panels * 32] norm of what follows, rounded up
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

using Floats = hn::CappedTag<float, 16>;
using VF = hn::Vec<Floats>;

// out [stride] = S k / |k|, 0 past d.
void scale_row(const float* key, double norm2, int d, int stride, float* HWY_RESTRICT out) {
  std::fill(out + d, out + stride, 0.0f);
  if (norm2 == 0) return std::fill_n(out, d, 0.0f), void();
  const double scale = kScale / std::sqrt(norm2);
  if (norm2 > 1e-50 && norm2 < 1e50) {  // the scale is a normal float
    const float factor = static_cast<float>(scale);
    for (int k = 0; k < d; ++k) out[k] = key[k] * factor;
  } else {
    for (int k = 0; k < d; ++k) out[k] = static_cast<float>(static_cast<double>(key[k]) * scale);
  }
}

// out[r][k] = sum over a of in[r][a] * basis[a][k].
template <int kRows>
HWY_INLINE void rotate_rows(const float* HWY_RESTRICT in, const float* HWY_RESTRICT basis, int d,
                            int stride, float* HWY_RESTRICT out) {
  const Floats df;
  constexpr int kVecs = 4;
  const int lanes = static_cast<int>(hn::Lanes(df));
  for (int k = 0; k < stride; k += kVecs * lanes) {
    const int vecs = std::min(kVecs, (stride - k) / lanes);
    VF sum[kRows][kVecs];
    for (auto& row : sum) {
      for (VF& s : row) s = hn::Zero(df);
    }
    const auto accumulate = [&](int count) HWY_ATTR {
      for (int a = 0; a < d; ++a) {
        const float* axis = basis + static_cast<int64_t>(a) * stride + k;
        for (int r = 0; r < kRows; ++r) {
          const VF x = hn::Set(df, in[r * stride + a]);
          for (int v = 0; v < count; ++v)
            sum[r][v] = hn::MulAdd(x, hn::LoadU(df, axis + v * lanes), sum[r][v]);
        }
      }
    };
    if (vecs == kVecs) {
      accumulate(kVecs);
    } else {
      accumulate(vecs);
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < vecs; ++v) hn::StoreU(sum[r][v], df, out + r * stride + k + v * lanes);
    }
  }
}

void round_row(const float* in, int d, int16_t* out) {
  const Floats df;
  const hn::Rebind<int16_t, Floats> d16;
  const int lanes = static_cast<int>(hn::Lanes(df));
  const auto most = hn::Set(df, static_cast<float>(kScale));
  const auto clamp = [&](VF x) HWY_ATTR { return hn::Max(hn::Min(x, most), hn::Neg(most)); };
  int k = 0;
  for (; k + lanes <= d; k += lanes) {
    hn::StoreU(hn::DemoteTo(d16, hn::NearestInt(clamp(hn::LoadU(df, in + k)))), d16, out + k);
  }
  for (; k < d; ++k) {
    out[k] = static_cast<int16_t>(hn::GetLane(hn::NearestInt(clamp(hn::Set(df, in[k])))));
  }
}

int32_t tail_norm(const int16_t* row, int begin, int end) {
  int32_t sum = 0;
  for (int k = begin; k < end; ++k) sum += row[k] * row[k];
  return static_cast<int32_t>(std::ceil(std::sqrt(static_cast<double>(sum))));
}

// Rows [begin, end) of p.rows and p.tails.
void pack_rows(Packed& p, int begin, int end) {
  constexpr int kGroup = 4;
  const int d = p.head_dim, stride = (d + 15) / 16 * 16;
  std::vector<float> scaled(static_cast<size_t>(kGroup * stride)), rotated(scaled.size());
  for (int first = begin; first < end; first += kGroup) {
    const int count = std::min(kGroup, end - first);
    for (int r = 0; r < count; ++r) {
      scale_row(p.keys + static_cast<int64_t>(first + r) * d,
                p.norms[static_cast<size_t>(first + r)], d, stride, scaled.data() + r * stride);
    }
    const float* packed = scaled.data();
    if (!p.basis.empty()) {
      rotate_rows<kGroup>(scaled.data(), p.basis.data(), d, stride, rotated.data());
      packed = rotated.data();
    }
    for (int r = 0; r < count; ++r) {
      int32_t* row = p.rows.data() + static_cast<int64_t>(first + r) * p.pairs;
      row[p.pairs - 1] = 0;
      int16_t* x = reinterpret_cast<int16_t*>(row);
      round_row(packed + r * stride, d, x);
      for (int level = 0; level < kLevels && !p.basis.empty(); ++level) {
        p.tails[level][static_cast<size_t>(first + r)] = tail_norm(x, 2 * p.level_pairs[level], d);
      }
    }
  }
}

void Norms(const float* keys, int begin, int end, int d, double* out) {
  squared_norms(keys, begin, end, d, out);
}

// Fills panels [begin, end) and what belongs to them.
void PackPanels(Packed& p, int begin, int end) {
  const DI di;
  const int lanes = static_cast<int>(hn::Lanes(di));
  const auto index = hn::Mul(hn::Iota(di, 0), hn::Set(di, p.pairs));
  const int last = std::min(p.n, end * kPanel);
  squared_norms(p.keys, begin * kPanel, last, p.head_dim, p.norms.data());
  pack_rows(p, begin * kPanel, last);
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

// moment [d][stride] = sum of x x^T over the rows of x [count][stride], zero past d.
void Moment(const float* x, int count, int d, int stride, float* moment) {
  const Floats df;
  constexpr int kRows = 4;
  const int lanes = static_cast<int>(hn::Lanes(df));
  for (int a = 0; a < d; a += kRows) {
    for (int k = 0; k < d; k += lanes) {
      VF sum[kRows];
      for (VF& s : sum) s = hn::Zero(df);
      for (int t = 0; t < count; ++t) {
        const float* row = x + static_cast<int64_t>(t) * stride;
        const VF column = hn::LoadU(df, row + k);
        for (int r = 0; r < kRows; ++r)
          sum[r] = hn::MulAdd(hn::Set(df, row[a + r]), column, sum[r]);
      }
      for (int r = 0; r < std::min(kRows, d - a); ++r) {
        hn::StoreU(sum[r], df, moment + static_cast<int64_t>(a + r) * stride + k);
      }
    }
  }
}

enum class Strip { rejected, none, some };

// A strip of a tile: kRows keys i by kVecs vectors of keys j.
template <int kRows, int kVecs>
struct StripSums {
  VI sum[kRows][kVecs];

  HWY_INLINE void add(const int32_t* HWY_RESTRICT rows, const int32_t* HWY_RESTRICT panel,
                      int stride, int begin, int end) {
    const DI di;
    const int lanes = static_cast<int>(hn::Lanes(di));
    for (int k = begin; k < end; ++k) {
      VI column[kVecs];
      for (int v = 0; v < kVecs; ++v) column[v] = hn::LoadU(di, panel + k * kPanel + v * lanes);
      for (int r = 0; r < kRows; ++r) {
        const VI row = hn::Set(di, rows[r * stride + k]);
        for (int v = 0; v < kVecs; ++v) sum[r][v] = multiply_pairs(row, column[v], sum[r][v]);
      }
    }
  }

  // Whether any sum + row_tail * column_tail exceeds `maybe`.
  HWY_INLINE bool may_reach(const int32_t* row_tails, const int32_t* column_tails,
                            int32_t maybe) const {
    const DI di;
    const int lanes = static_cast<int>(hn::Lanes(di));
    VI tail[kVecs];
    for (int v = 0; v < kVecs; ++v) tail[v] = hn::LoadU(di, column_tails + v * lanes);
    VI most = hn::Set(di, maybe);
    for (int r = 0; r < kRows; ++r) {
      const VI row = hn::Set(di, row_tails[r]);
      for (int v = 0; v < kVecs; ++v) most = hn::Max(most, multiply_pairs(row, tail[v], sum[r][v]));
    }
    return !hn::AllTrue(di, hn::Eq(most, hn::Set(di, maybe)));
  }

  HWY_INLINE bool exceeds(int32_t maybe) const {
    const DI di;
    VI most = hn::Set(di, maybe);
    for (const auto& row : sum) {
      for (const VI& s : row) most = hn::Max(most, s);
    }
    return !hn::AllTrue(di, hn::Eq(most, hn::Set(di, maybe)));
  }
};

// The strip at key i0, key j0; its products go to out [kRows][32] where any may be similar.
template <int kRows, int kVecs, bool kReject>
HWY_INLINE Strip multiply_strip(const Packed& p, int i0, int j0, int32_t* HWY_RESTRICT out) {
  const DI di;
  const int lanes = static_cast<int>(hn::Lanes(di));
  const int32_t* rows = p.rows.data() + static_cast<int64_t>(i0) * p.pairs;
  const int32_t* panel =
      p.panels.data() + static_cast<int64_t>(j0 / kPanel * kPanel) * p.pairs + j0 % kPanel;
  StripSums<kRows, kVecs> sums;
  for (auto& row : sums.sum) {
    for (VI& s : row) s = hn::Zero(di);
  }
  int done = 0;
  if constexpr (kReject) {
    for (int level = 0; level < kLevels; ++level) {
      sums.add(rows, panel, p.pairs, done, p.level_pairs[level]);
      done = p.level_pairs[level];
      const int32_t* tails = p.tails[level].data();
      if (!sums.may_reach(tails + i0, tails + j0, p.maybe)) return Strip::rejected;
    }
  }
  sums.add(rows, panel, p.pairs, done, p.pairs);
  if (!sums.exceeds(p.maybe)) return Strip::none;
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) hn::StoreU(sums.sum[r][v], di, out + r * kPanel + v * lanes);
  }
  return Strip::some;
}

// Bit c is set where row[c] > maybe, c < 32.
HWY_INLINE uint32_t above(const int32_t* HWY_RESTRICT row, int32_t maybe) {
  const DI di;
  const int lanes = static_cast<int>(hn::Lanes(di));
  uint32_t bits = 0;
  for (int c = 0; c < kPanel; c += lanes) {
    uint8_t bytes[8] = {};
    hn::StoreMaskBits(di, hn::Gt(hn::Load(di, row + c), hn::Set(di, maybe)), bytes);
    bits |= static_cast<uint32_t>(bytes[0] | bytes[1] << 8) << c;
  }
  return bits;
}

// Counts the similar pairs (i, j), j > i + ell, of one tile from its products.
void count_tile(const Packed& p, int i0, int j0, const int32_t* products, Tally& tally) {
  for (int r = 0; r < kTileRows; ++r) {
    const int i = i0 + r;
    const int first = i + p.ell + 1 - j0;
    if (first >= kPanel) continue;
    uint32_t candidates = above(products + r * kPanel, p.maybe);
    if (first > 0) candidates &= ~uint32_t{0} << first;
    int32_t hits = 0;
    for (; candidates != 0; candidates &= candidates - 1) {
      const int c = std::countr_zero(candidates);
      const auto j = static_cast<size_t>(j0 + c);
      if (products[r * kPanel + c] < p.surely) {
        ++tally.stats.borderline;
        if (!internal::decide(p.keys, p.norms.data(), p.head_dim, i, j0 + c)) continue;
      }
      ++hits;
      ++tally.counts[j];
    }
    tally.counts[static_cast<size_t>(i)] += hits;
  }
}

template <bool kReject>
HWY_INLINE void count_block(const Packed& p, const Block& block, Tally& tally) {
  constexpr int kRows = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL ? 8 : 4;
  constexpr int kVecs = 2;
  HWY_ALIGN int32_t products[kTileRows * kPanel];
  const int width = kVecs * static_cast<int>(hn::Lanes(DI()));
  for (int i0 = block.row_begin; i0 < block.row_end; i0 += kTileRows) {
    for (int j0 = block.panel_begin * kPanel; j0 < block.panel_end * kPanel; j0 += kPanel) {
      if (j0 + kPanel - 1 <= i0 + p.ell) continue;
      bool any = false, rejected = true;
      for (int r = 0; r < kTileRows; r += kRows) {
        for (int c = 0; c < kPanel; c += width) {
          int32_t* out = products + r * kPanel + c;
          const Strip strip = multiply_strip<kRows, kVecs, kReject>(p, i0 + r, j0 + c, out);
          any |= strip == Strip::some;
          rejected &= strip == Strip::rejected;
          if (strip == Strip::some || kRows * width == kTileRows * kPanel) continue;
          for (int q = 0; q < kRows; ++q) std::fill_n(out + q * kPanel, width, 0);
        }
      }
      ++tally.stats.tiles;
      tally.stats.rejected += rejected;
      if (any) count_tile(p, i0, j0, products, tally);
    }
  }
}

void CountBlock(const Packed& p, const Block& block, Tally& tally) {
  p.basis.empty() ? count_block<false>(p, block, tally) : count_block<true>(p, block, tally);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvist::kernels {
namespace {
HWY_EXPORT(Norms);
HWY_EXPORT(PackPanels);
HWY_EXPORT(CountBlock);
HWY_EXPORT(Moment);

void set_thresholds(Packed& p) {
  const double d = p.head_dim;
  // Half a unit in each coordinate; and in fp32 two roundings of S k / |k|, then the basis' own and
  // those of sums of d products, in each of d coordinates of at most S.
  const double rotation = p.basis.empty() ? 0 : (d + 8) * std::sqrt(d) * kScale * 0x1p-24;
  const double e = 0.5 * std::sqrt(d) + kScale * 0x1p-22 + rotation;
  const double guard = 2 * kScale * e + e * e;
  const double middle = 0.85 * kScale * kScale;
  p.maybe = static_cast<int32_t>(std::floor(middle - guard)) - 1;
  p.surely = static_cast<int32_t>(std::min(std::ceil(middle + guard) + 1, 2147483647.0));
}

// Rotations pay from here on.
constexpr int kRotateFromTokens = 3072;
constexpr int kRotateFromDim = 32;
constexpr int kSamples = 512;

// Sets the basis from evenly spaced keys.
void choose_basis(Packed& p) {
  const int d = p.head_dim, stride = (d + 15) / 16 * 16;
  std::vector<float> sample(static_cast<size_t>(kSamples) * static_cast<size_t>(stride) + 16);
  for (int s = 0; s < kSamples; ++s) {
    const float* key = p.keys + static_cast<int64_t>(s) * p.n / kSamples * d;
    float norm2 = 0;
    for (int k = 0; k < d; ++k) norm2 += key[k] * key[k];
    if (!(norm2 > 1e-30f && norm2 < 1e30f)) continue;
    const float scale = 1 / std::sqrt(norm2);
    for (int k = 0; k < d; ++k) sample[static_cast<size_t>(s * stride + k)] = key[k] * scale;
  }
  std::vector<float> moment(static_cast<size_t>(d * stride));
  HWY_DYNAMIC_DISPATCH(Moment)(sample.data(), kSamples, d, stride, moment.data());
  p.basis.resize(moment.size());
  leading_basis(moment.data(), d, stride, p.basis.data());
  for (int level = 0; level < kLevels; ++level) {
    p.level_pairs[level] = d * (level + 1) / 8;
    p.tails[level] = Buffer<int32_t>(static_cast<size_t>(p.n_panels) * kPanel);
  }
}

}  // namespace

void internal::canonical_norms(const float* keys, int begin, int end, int head_dim, double* out) {
  return HWY_DYNAMIC_DISPATCH(Norms)(keys, begin, end, head_dim, out);
}

void internal::count_similar_fixed(const float* keys, int n, int head_dim, int ell,
                                   ThreadPool& pool, int32_t* counts, CountStats* stats) {
  if (!has_pairs(n, ell, counts, stats)) return;
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
  if (n >= kRotateFromTokens && head_dim >= kRotateFromDim) choose_basis(p);
  set_thresholds(p);
  const auto pack = [&](int begin, int end) {
    return HWY_DYNAMIC_DISPATCH(PackPanels)(p, begin, end);
  };
  const auto count = [&](const Block& block, Tally& tally) {
    return HWY_DYNAMIC_DISPATCH(CountBlock)(p, block, tally);
  };
  pack_and_count(
      n, p.pairs, ell, pool, pack, [] {}, count, counts, stats);
}

}  // namespace kvist::kernels
#endif
