// SPDX-License-Identifier: MIT
// The fast search against the definition in plain double: all SIMD targets and thread counts, ties,
// rows far from the origin.
#include "kvist/kernels/nearest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kvist/core/rng.h"
#include "kvist/kernels/targets.h"

namespace kvist::kernels {
namespace {

struct Case {
  std::vector<float> rows;
  int width = 0;
  std::vector<int32_t> among, queries;
};

// Gaussian rows around a common point `shift` away; every `stride`th is a candidate.
Case gaussian(int n, int width, int stride, float shift, uint64_t seed) {
  Rng rng(seed);
  Case c;
  c.width = width;
  c.rows.resize(static_cast<size_t>(n * width));
  for (float& x : c.rows) x = shift + static_cast<float>(rng.gaussian());
  for (int i = 0; i < n; ++i) (i % stride == 0 ? c.among : c.queries).push_back(i);
  return c;
}

std::vector<uint16_t> plain(const Case& c, int count, bool earlier) {
  std::vector<uint16_t> out;
  for (const int32_t q : c.queries) {
    std::vector<std::pair<double, uint16_t>> found;
    for (size_t j = 0; j < c.among.size(); ++j) {
      if (earlier && c.among[j] > q) continue;
      double sum = 0;
      for (int k = 0; k < c.width; ++k) {
        const double x = static_cast<double>(c.rows[static_cast<size_t>(q * c.width + k)]) -
                         static_cast<double>(c.rows[static_cast<size_t>(c.among[j] * c.width + k)]);
        sum += x * x;
      }
      found.emplace_back(sum, static_cast<uint16_t>(j));
    }
    std::sort(found.begin(), found.end());
    for (size_t i = 0; i < static_cast<size_t>(count); ++i)
      out.push_back(i < found.size() ? found[i].second : uint16_t{0});
  }
  return out;
}

std::vector<uint16_t> fast(const Case& c, int count, bool earlier, int threads,
                           NearestStats* stats = nullptr) {
  ThreadPool pool(threads);
  std::vector<uint16_t> out(c.queries.size() * static_cast<size_t>(count), 9999);
  nearest_rows(c.rows.data(), c.width, c.among, c.queries, count, earlier, pool, out.data(), stats);
  return out;
}

TEST(Nearest, EqualsBruteForce) {
  for_each_target([](const std::string& target) {
    for (const int width : {1, 7, 24, 65}) {
      for (const bool earlier : {false, true}) {
        SCOPED_TRACE(target + " width " + std::to_string(width));
        const Case c = gaussian(401, width, 5, 0, static_cast<uint64_t>(width));
        const auto want = plain(c, 4, earlier);
        EXPECT_EQ(fast(c, 4, earlier, 1), want);
        EXPECT_EQ(fast(c, 4, earlier, 3), want);
      }
    }
  });
}

TEST(Nearest, FarFromTheOriginAndAmongNearEqualsFp64Decides) {
  for_each_target([](const std::string&) {
    const Case far = gaussian(300, 48, 4, 1000, 3);
    EXPECT_EQ(fast(far, 4, false, 2), plain(far, 4, false));
    // Candidates that differ by the last bit of one coordinate.
    Case close = gaussian(300, 48, 4, 0, 4);
    for (const int32_t a : close.among) {
      for (int k = 0; k < 48; ++k)
        close.rows[static_cast<size_t>(a * 48 + k)] = k == a % 48 ? 1 + 0x1p-20f * (a % 7) : 1.0f;
    }
    NearestStats stats;
    EXPECT_EQ(fast(close, 5, false, 2, &stats), plain(close, 5, false));
    EXPECT_GT(stats.direct, 0);
  });
}

TEST(Nearest, AmongEqualsTheFirstWins) {
  Case c = gaussian(200, 16, 3, 0, 5);
  for (const int32_t a : c.among)
    std::fill_n(c.rows.begin() + a * 16, 16, static_cast<float>(a % 2));
  EXPECT_EQ(fast(c, 3, false, 2), plain(c, 3, false));
}

// Fewer earlier rows than asked for: what there is comes first.
TEST(Nearest, TakesWhatIsEarlier) {
  const Case c{{0, 3, 1, 9}, 1, {0, 2}, {1, 3}};
  EXPECT_EQ(fast(c, 2, true, 1), (std::vector<uint16_t>{0, 0, 1, 0}));
}

TEST(Nearest, DistanceIsThatOfDouble) {
  const std::vector<float> a = {1, 2, 3, 4, 5, 6, 7, 8, 9}, b = {0, 2, 1, 4, 5, 6, 7, 8, 12};
  for_each_target(
      [&](const std::string&) { EXPECT_EQ(squared_distance(a.data(), b.data(), 9), 14.0); });
}

}  // namespace
}  // namespace kvist::kernels
