// SPDX-License-Identifier: MIT
// Blocks of queries against panels of candidates. Rows are centred first, since norms near the size
// of the distances lose least; who lies within the rounding error of the last that counts is
// measured again.
#include "kvist/kernels/nearest.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kvist/core/error.h"
#include "kvist/kernels/products.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvist/kernels/nearest.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kvist/kernels/products-inl.h"

#ifndef KVIST_KERNELS_NEAREST_ONCE
#define KVIST_KERNELS_NEAREST_ONCE
namespace kvist::kernels {
namespace {
constexpr int kLeast = 16;  // smallest scores that a pass notes
}  // namespace
}  // namespace kvist::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace kvist::kernels {
namespace HWY_NAMESPACE {
namespace {

double SquaredDistance(const float* a, const float* b, int width) {
  const hn::CappedTag<double, 8> d64;
  const hn::Rebind<float, decltype(d64)> d32;
  constexpr int kSums = 8;
  const int lanes = static_cast<int>(hn::Lanes(d64));
  HWY_ALIGN double sums[kSums] = {};
  const int whole = width / kSums * kSums;
  for (int lane = 0; lane < kSums; lane += lanes) {
    auto sum = hn::Zero(d64);
    for (int c = lane; c < whole; c += kSums) {
      const auto x = hn::Sub(hn::PromoteTo(d64, hn::LoadU(d32, a + c)),
                             hn::PromoteTo(d64, hn::LoadU(d32, b + c)));
      sum = hn::Add(sum, hn::Mul(x, x));
    }
    hn::StoreU(sum, d64, sums + lane);
  }
  for (int c = whole; c < width; ++c) {
    const double x = static_cast<double>(a[c]) - static_cast<double>(b[c]);
    sums[c - whole] += x * x;
  }
  double sum = 0;
  for (const double s : sums) sum += s;
  return sum;
}

// out = x - mean; returns its squared length.
double Centre(const float* x, const float* mean, int width, float* out) {
  const hn::CappedTag<double, 8> d64;
  const hn::Rebind<float, decltype(d64)> d32;
  const int lanes = static_cast<int>(hn::Lanes(d64));
  auto sums = hn::Zero(d64);
  int c = 0;
  for (; c + lanes <= width; c += lanes) {
    const auto moved = hn::Sub(hn::LoadU(d32, x + c), hn::LoadU(d32, mean + c));
    hn::StoreU(moved, d32, out + c);
    const auto wide = hn::PromoteTo(d64, moved);
    sums = hn::Add(sums, hn::Mul(wide, wide));
  }
  double sum = hn::GetLane(hn::SumOfLanes(d64, sums));
  for (; c < width; ++c) {
    out[c] = x[c] - mean[c];
    sum += static_cast<double>(out[c]) * static_cast<double>(out[c]);
  }
  return sum;
}

// x[j] = norms[j] - 2 x[j] for j < n, infinite from there to a multiple of 32; least[l] the
// smallest of those with j mod 16 = l.
void ScoresOfProducts(const float* norms, int n, float* x, float* least) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const PanelFloats df;
  const int lanes = static_cast<int>(hn::Lanes(df));
  const auto two = hn::Set(df, 2.0f);
  std::fill_n(least, kLeast, kInfinity);
  int j = 0;
  for (; j + kLeast <= n; j += kLeast) {
    for (int l = 0; l < kLeast; l += lanes) {
      const auto score = hn::NegMulAdd(two, hn::LoadU(df, x + j + l), hn::LoadU(df, norms + j + l));
      hn::StoreU(score, df, x + j + l);
      hn::StoreU(hn::Min(score, hn::LoadU(df, least + l)), df, least + l);
    }
  }
  for (; j % kPanelRows != 0 || j < n; ++j) {
    x[j] = j < n ? norms[j] - 2 * x[j] : kInfinity;
    least[j % kLeast] = std::min(least[j % kLeast], x[j]);
  }
}

// Indices j < n with x[j] <= limit, ascending; n is a multiple of 32.
int Within(const float* x, int n, float limit, int32_t* out) {
  const PanelFloats df;
  const int lanes = static_cast<int>(hn::Lanes(df));
  const auto most = hn::Set(df, limit);
  int found = 0;
  for (int j = 0; j < n; j += lanes) {
    if (hn::AllFalse(df, hn::Le(hn::LoadU(df, x + j), most))) continue;
    for (int l = j; l < j + lanes; ++l)
      if (x[l] <= limit) out[found++] = l;
  }
  return found;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvist::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvist::kernels {
namespace {
HWY_EXPORT(SquaredDistance);
HWY_EXPORT(Centre);
HWY_EXPORT(ScoresOfProducts);
HWY_EXPORT(Within);

constexpr int kQueryBlock = 64;  // rows that share one pass over the panels

struct Search {
  const float* rows = nullptr;
  int width = 0, count = 0;
  bool earlier = false;
  std::span<const int32_t> among;
  std::vector<float> mean;   // [width] of the candidates
  std::vector<float> norms;  // of the centred candidates
  double longest = 0;        // norm of a centred candidate
  const PackedRows* packed = nullptr;

  const float* row(int32_t i) const { return rows + static_cast<int64_t>(i) * width; }
  double error(double length) const;
};

// Most by which the score of a query whose centred row is `length` long can differ from the exact
// squared distance less the query's squared length. u = 2^-24 is the rounding of one operation: a
// product's own error, twice; the norm and its sum with the product; centring, which moves both
// ends of a difference of at most length + longest. The last factor covers the terms in u^2.
double Search::error(double length) const {
  constexpr double kUnit = 0x1p-24;
  const double product = length * longest, both = length + longest;
  return 1.05 * (2 * packed->unit() * product +
                 kUnit * (2 * longest * longest + 2 * product + 2 * both * both));
}

struct Found {
  double distance;
  int32_t index;
};

// Scratch of one worker.
struct Work {
  std::vector<float> centred, scores, ranked;
  std::vector<int32_t> near;
  std::vector<Found> found;
};

// The smallest float not below x + band.
float above(float x, double band) {
  return std::nextafter(static_cast<float>(static_cast<double>(x) + band),
                        std::numeric_limits<float>::infinity());
}

// scores [usable, padded] of one query, least [16] the smallest of each lane; returns how many
// distances were measured directly.
int64_t decide(const Search& s, int32_t query, double length, const float* scores, float* least,
               int usable, Work& work, uint16_t* out) {
  const int count = std::min(s.count, usable);
  std::fill_n(out, s.count, uint16_t{0});
  if (count == 0) return 0;
  const int padded = (usable + kPanelRows - 1) / kPanelRows * kPanelRows;
  const double band = 2 * s.error(length);
  // At least `count` scores are no larger than this, so that none of the nearest lies above.
  float most = std::numeric_limits<float>::infinity();
  if (count <= kLeast) {
    std::nth_element(least, least + count - 1, least + kLeast);
    most = least[count - 1];
  }
  int n_near = HWY_DYNAMIC_DISPATCH(Within)(scores, padded, above(most, band), work.near.data());
  const auto at = [&](int i) { return scores[work.near[static_cast<size_t>(i)]]; };
  n_near = static_cast<int>(std::min<int64_t>(n_near, usable));
  work.ranked.clear();
  for (int i = 0; i < n_near; ++i) work.ranked.push_back(at(i));
  std::nth_element(work.ranked.begin(), work.ranked.begin() + (count - 1), work.ranked.end());
  const float limit = above(work.ranked[static_cast<size_t>(count - 1)], band);
  n_near = static_cast<int>(std::remove_if(work.near.begin(), work.near.begin() + n_near,
                                           [&](int32_t j) { return scores[j] > limit; }) -
                            work.near.begin());
  work.found.clear();
  for (int i = 0; i < n_near; ++i)
    work.found.push_back({static_cast<double>(scores[work.near[i]]), work.near[i]});
  const auto before = [](const Found& a, const Found& b) {
    return a.distance < b.distance || (a.distance == b.distance && a.index < b.index);
  };
  std::sort(work.found.begin(), work.found.end(), before);
  bool decided = n_near == count;
  for (size_t i = 1; decided && i < work.found.size(); ++i)
    decided = work.found[i].distance - work.found[i - 1].distance > band;
  if (!decided) {
    for (Found& f : work.found) {
      const int32_t row = s.among[static_cast<size_t>(f.index)];
      f.distance = HWY_DYNAMIC_DISPATCH(SquaredDistance)(s.row(query), s.row(row), s.width);
    }
    std::sort(work.found.begin(), work.found.end(), before);
  }
  for (int i = 0; i < count; ++i)
    out[i] = static_cast<uint16_t>(work.found[static_cast<size_t>(i)].index);
  return decided ? 0 : n_near;
}

}  // namespace

double squared_distance(const float* a, const float* b, int width) noexcept {
  return HWY_DYNAMIC_DISPATCH(SquaredDistance)(a, b, width);
}

void nearest_rows(const float* rows, int width, std::span<const int32_t> among,
                  std::span<const int32_t> queries, int count, bool earlier, ThreadPool& pool,
                  uint16_t* out, NearestStats* stats) {
  constexpr size_t kMost = 65536;
  KVIST_ASSERT(count >= 1 && static_cast<size_t>(count) <= among.size() && among.size() <= kMost);
  Search s;
  s.rows = rows;
  s.width = width;
  s.count = count;
  s.earlier = earlier;
  s.among = among;
  const auto n = static_cast<int>(among.size());
  std::vector<double> sums(static_cast<size_t>(width));
  for (const int32_t i : among)
    for (int c = 0; c < width; ++c)
      sums[static_cast<size_t>(c)] += static_cast<double>(s.row(i)[c]);
  for (const double sum : sums) s.mean.push_back(static_cast<float>(sum / n));
  Buffer<float> centred(static_cast<size_t>(n) * static_cast<size_t>(width));
  for (int j = 0; j < n; ++j) {
    const double norm =
        HWY_DYNAMIC_DISPATCH(Centre)(s.row(among[static_cast<size_t>(j)]), s.mean.data(), width,
                                     centred.data() + static_cast<int64_t>(j) * width);
    s.norms.push_back(static_cast<float>(norm));
    s.longest = std::max(s.longest, std::sqrt(norm));
  }
  const PackedRows packed(centred.data(), n, width, width, PackedRows::Products::fast);
  s.packed = &packed;
  const auto padded = static_cast<size_t>(packed.padded());

  const auto n_queries = static_cast<int64_t>(queries.size());
  const int64_t n_blocks = (n_queries + kQueryBlock - 1) / kQueryBlock;
  std::atomic<int64_t> next{0}, direct{0};
  pool.run([&](Worker) {
    Work work;
    DotProducts products(packed);
    work.centred.resize(static_cast<size_t>(kQueryBlock) * static_cast<size_t>(width));
    work.scores.resize(kQueryBlock * padded);
    work.near.resize(padded);
    for (int64_t block = next++; block < n_blocks; block = next++) {
      const int64_t begin = block * kQueryBlock;
      const auto block_rows = static_cast<int>(std::min<int64_t>(kQueryBlock, n_queries - begin));
      double lengths[kQueryBlock];
      for (int r = 0; r < block_rows; ++r) {
        const double norm = HWY_DYNAMIC_DISPATCH(Centre)(
            s.row(queries[static_cast<size_t>(begin + r)]), s.mean.data(), width,
            work.centred.data() + static_cast<int64_t>(r) * width);
        lengths[r] = std::sqrt(norm);
      }
      products(work.centred.data(), block_rows, width, n, work.scores.data(),
               static_cast<int64_t>(padded));
      int64_t measured = 0;
      for (int r = 0; r < block_rows; ++r) {
        const int32_t query = queries[static_cast<size_t>(begin + r)];
        float* scores = work.scores.data() + static_cast<size_t>(r) * padded;
        int usable = n;
        if (earlier)
          usable =
              static_cast<int>(std::lower_bound(among.begin(), among.end(), query) - among.begin());
        float least[kLeast];
        HWY_DYNAMIC_DISPATCH(ScoresOfProducts)(s.norms.data(), usable, scores, least);
        measured +=
            decide(s, query, lengths[r], scores, least, usable, work, out + (begin + r) * count);
      }
      direct += measured;
    }
  });
  if (stats != nullptr) stats->direct = direct;
}

}  // namespace kvist::kernels
#endif
