// SPDX-License-Identifier: MIT
// Tests of the progressive scalar code: the tables solved again by other formulas, and the facts
// that the theory uses.
#include "kvist/kernels/tree_code.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "kvist/core/rng.h"

namespace kvist::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The tables once more, in plain closed forms (the generator integrates numerically).
double phi(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi); }
double mass(double a, double b) {
  return (std::erfc(a / std::numbers::sqrt2) - std::erfc(b / std::numbers::sqrt2)) / 2;
}
double mean(double a, double b) { return (phi(a) - phi(b)) / mass(a, b); }

double split(double a, double b) {
  double low = a, high = std::min(b, a + 8);
  while (true) {
    const double m = (low + high) / 2;
    if (m == low || m == high) return m;
    ((mean(a, m) + mean(m, b)) / 2 > m ? low : high) = m;
  }
}

struct Solution {
  std::vector<double> thresholds, distortion{1.0};
  std::vector<std::vector<double>> centroids;  // of depths 1..8
};

std::vector<double> mirrored(std::vector<double> half) {
  std::sort(half.begin(), half.end());
  std::vector<double> out(half.rbegin(), half.rend());
  for (double& x : out) x = -x;
  out.insert(out.end(), half.begin(), half.end());
  return out;
}

Solution solve() {
  Solution out;
  std::vector<double> edges{0.0, kInfinity};  // of the positive half
  for (int depth = 1; depth <= kTreeDepth; ++depth) {
    std::vector<double> half, finer;
    double energy = 0;
    for (size_t i = 0; i + 1 < edges.size(); ++i) {
      const double a = edges[i], b = edges[i + 1], c = mean(a, b);
      half.push_back(c);
      energy += 2 * mass(a, b) * c * c;
      finer.insert(finer.end(), {a, split(a, b)});
    }
    out.centroids.push_back(mirrored(half));
    out.distortion.push_back(1 - energy);
    finer.push_back(kInfinity);
    if (depth < kTreeDepth) edges = finer;
  }
  out.thresholds = mirrored({edges.begin() + 1, edges.end() - 1});
  out.thresholds.insert(out.thresholds.begin() + 127, 0.0);
  return out;
}

const Solution& solution() {
  static const Solution kSolution = solve();
  return kSolution;
}

// CRC-32 as zlib has it, over float32 as they lie in memory.
uint32_t crc32(const float* data, int n) {
  uint32_t crc = 0xFFFFFFFFu;
  for (int i = 0; i < n; ++i) {
    const uint32_t word = std::bit_cast<uint32_t>(data[i]);
    for (int byte = 0; byte < 4; ++byte) {
      crc ^= word >> (8 * byte) & 0xFFu;
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1u ? 0xEDB88320u : 0u);
    }
  }
  return ~crc;
}

// sup over |u| <= 1 of |u - Q_t(u)|: attained at an end of a cell.
double sup_error(int depth) {
  const int width = 1 << (kTreeDepth - depth);
  double worst = 0;
  for (int cell = 0; cell < 1 << depth; ++cell) {
    const auto edge = [&](int leaf) {
      return leaf == 0 ? -1.0 : leaf == 256 ? 1.0 : static_cast<double>(kTreeThresholds[leaf - 1]);
    };
    const double a = std::max(-1.0, edge(cell * width)),
                 b = std::min(1.0, edge((cell + 1) * width));
    if (a > b) continue;
    const auto c = static_cast<double>(tree_centroids(depth)[cell]);
    worst = std::max({worst, std::abs(a - c), std::abs(b - c)});
  }
  return worst;
}

TEST(TreeCode, TablesAreTheSolutionRounded) {
  const Solution& want = solution();
  ASSERT_EQ(want.thresholds.size(), 255u);
  for (size_t i = 0; i < 255; ++i)
    EXPECT_EQ(kTreeThresholds[i], static_cast<float>(want.thresholds[i])) << i;
  for (int depth = 1; depth <= kTreeDepth; ++depth) {
    const auto& level = want.centroids[static_cast<size_t>(depth) - 1];
    for (size_t i = 0; i < level.size(); ++i)
      EXPECT_EQ(tree_centroids(depth)[i], static_cast<float>(level[i])) << depth << " " << i;
    const auto t = static_cast<size_t>(depth);
    EXPECT_EQ(kTreeGains[t - 1], static_cast<float>(want.distortion[t - 1] - want.distortion[t]));
  }
}

TEST(TreeCode, Rk01DistortionAndGains) {
  const double d[9] = {1,
                       0.3633802276324,
                       0.1174818478293,
                       0.0348381237098,
                       0.0097958405483,
                       0.00266310090129,
                       0.000707918097067,
                       0.000185276670885,
                       0.0000479547763119};
  const double low[8] = {0.63661974, 0.24589838, 0.08264372, 0.02504228,
                         0.00713273, 0.00195518, 0.00052264, 0.0001373218};
  const double high[8] = {0.63661975, 0.24589839, 0.08264373, 0.02504229,
                          0.00713274, 0.00195519, 0.00052265, 0.0001373220};
  for (int t = 0; t <= 8; ++t) {
    EXPECT_NEAR(tree_distortion(t), d[t], 1e-12);
    EXPECT_NEAR(tree_distortion(t), solution().distortion[static_cast<size_t>(t)], 1e-14);
  }
  EXPECT_NEAR(tree_distortion(0) - tree_distortion(1), 2 / std::numbers::pi, 1e-15);
  for (int t = 0; t < 8; ++t) {
    const auto gain = static_cast<double>(kTreeGains[t]);
    EXPECT_GT(gain, low[t]);
    EXPECT_LT(gain, high[t]);
    if (t > 0) {
      EXPECT_LT(kTreeGains[t], kTreeGains[t - 1]);
    }
  }
}

TEST(TreeCode, Rk01Checksums) {
  const uint32_t levels[8] = {0x6236abb5, 0xfbc452fe, 0x9f34f8a4, 0x2ae93c05,
                              0x577b466a, 0x1fcd881d, 0xfcd878cd, 0x164b7bf1};
  for (int depth = 1; depth <= 8; ++depth)
    EXPECT_EQ(crc32(tree_centroids(depth), 1 << depth), levels[depth - 1]) << depth;
  EXPECT_EQ(crc32(kTreeCentroids, 510), 0x57dae4bdu);
  EXPECT_EQ(crc32(kTreeThresholds, 255), 0xa89b41c6u);
  EXPECT_EQ(crc32(kTreeGains, 8), 0xc67e3888u);
}

TEST(TreeCode, Rk02CentroidsAndEdgesOfShallowDepths) {
  const std::vector<std::vector<double>> centroids = {
      {0.79788456080287},
      {0.45278003463649, 1.51041760849910},
      {0.23111703528746, 0.71061926072284, 1.28302538871844, 2.10530712492932},
      {0.11609873934503, 0.35040745924620, 0.59156373745025, 0.84506114209155, 1.13528044747347,
       1.48341765667532, 1.93037134470701, 2.61830888871417}};
  const std::vector<double> edges = {0.23325309929562, 0.47086814800515, 0.71831243977090,
                                     0.98159882156779, 1.30934905207440, 1.69416625682388,
                                     2.27434011671059};
  for (size_t depth = 1; depth <= 4; ++depth) {
    const size_t half = centroids[depth - 1].size();
    for (size_t i = 0; i < half; ++i) {
      EXPECT_NEAR(solution().centroids[depth - 1][half + i], centroids[depth - 1][i], 1e-12);
      EXPECT_EQ(tree_centroids(static_cast<int>(depth))[half + i],
                -tree_centroids(static_cast<int>(depth))[half - 1 - i]);
    }
  }
  for (size_t i = 0; i < edges.size(); ++i)
    EXPECT_NEAR(solution().thresholds[127 + 16 * (i + 1)], edges[i], 1e-12);
  EXPECT_NEAR(solution().thresholds[128], 0.01453448050168, 1e-12);
  EXPECT_NEAR(solution().thresholds[254], 3.98625730393076, 1e-12);
  EXPECT_NEAR(solution().centroids[7][128], 0.00726711231736, 1e-12);
  EXPECT_NEAR(solution().centroids[7][255], 4.21250754936392, 1e-12);
}

TEST(TreeCode, Rk03SupError) {
  EXPECT_NEAR(sup_error(8), 0.009654343128, 1e-9);
  EXPECT_LT(sup_error(8), 0.0097);
  const double want[8] = {.79788, .52882, .30143, .15368, .077145, .038607, .019308, .009654};
  for (int depth = 1; depth <= 8; ++depth) EXPECT_NEAR(sup_error(depth), want[depth - 1], 5e-6);
  const int cell = tree_leaf(-0.9816f);  // where it is attained
  EXPECT_FLOAT_EQ(kTreeThresholds[cell - 1], -1.00096941f);
  EXPECT_FLOAT_EQ(kTreeThresholds[cell], -0.98159882f);
  EXPECT_FLOAT_EQ(tree_centroids(8)[cell], -0.99125314f);
}

TEST(TreeCode, Rk04DepthTwoOfOne) {
  EXPECT_EQ(tree_value(tree_leaf(1.0f), 2), 1.5104175806045532f);
  EXPECT_EQ(tree_value(tree_leaf(-1.0f), 2), -tree_value(tree_leaf(1.0f), 2));
  const double error = static_cast<double>(tree_value(tree_leaf(1.0f), 2)) - 1;
  EXPECT_NEAR(error * error, 0.260526106590, 1e-12);
}

TEST(TreeCode, Rk05FirstCentroid) {
  EXPECT_NEAR(solution().centroids[0][1], 0.79788456080287, 1e-13);
  EXPECT_EQ(tree_centroids(1)[1], 0.7978845834732056f);
}

// The cell of z in the tree of depth t, found by walking down it.
int walk(float z, int t) {
  int node = 0;
  for (int level = 0; level < t; ++level) {
    const int threshold = (2 * node + 1) * (1 << (kTreeDepth - 1 - level));
    node = 2 * node + (z >= kTreeThresholds[threshold - 1] ? 1 : 0);
  }
  return node;
}

std::vector<float> probes() {
  std::vector<float> out{0.0f,
                         -0.0f,
                         1e30f,
                         -1e30f,
                         std::numeric_limits<float>::infinity(),
                         -std::numeric_limits<float>::infinity()};
  for (float threshold : kTreeThresholds)
    out.insert(out.end(),
               {threshold, std::nextafter(threshold, 9.0f), std::nextafter(threshold, -9.0f)});
  Rng rng(6);
  for (int i = 0; i < 2000; ++i) out.push_back(static_cast<float>(rng.gaussian()));
  return out;
}

TEST(TreeCode, LeafCountsThresholds) {
  for (float z : probes()) {
    const auto count =
        std::count_if(kTreeThresholds, kTreeThresholds + 255, [&](float t) { return t <= z; });
    ASSERT_EQ(tree_leaf(z), count) << z;
  }
}

TEST(TreeCode, Rk06PrefixesNest) {
  for (float z : probes()) {
    const uint8_t leaf = tree_leaf(z);
    EXPECT_EQ(tree_value(leaf, 0), 0.0f);
    for (int t = 1; t <= 8; ++t) {
      ASSERT_EQ(leaf >> (8 - t), walk(z, t)) << z << " " << t;
      ASSERT_EQ(tree_value(leaf, t), tree_centroids(t)[walk(z, t)]);
    }
    for (int t = 0; t <= 4; ++t)  // a record of 4 bits says the same as one of 8
      ASSERT_EQ(tree_value(static_cast<uint8_t>(leaf & 0xF0), t), tree_value(leaf, t));
  }
}

TEST(TreeCode, Rk07MonteCarlo) {
  constexpr int kSamples = 1'000'000;
  double error[9] = {};
  Rng rng(20260801);
  for (int i = 0; i < kSamples; ++i) {
    const auto z = static_cast<float>(rng.gaussian());
    const uint8_t leaf = tree_leaf(z);
    for (int t = 0; t <= 8; ++t) {
      const double e = static_cast<double>(z) - static_cast<double>(tree_value(leaf, t));
      error[t] += e * e;
    }
  }
  for (int t = 0; t <= 8; ++t)
    EXPECT_NEAR(error[t] / kSamples / tree_distortion(t), 1, t <= 6 ? 0.03 : 0.08) << t;
}

TEST(TreeCode, A1Fixtures) {
  struct Row {
    float z;
    int leaf;
    double q1, q2, q3, q4, q8;
  };
  const Row rows[] = {
      {-3.00f, 5, -0.797885, -1.510418, -2.105307, -2.618309, -3.024065733},
      {-1.20f, 53, -0.797885, -1.510418, -1.283025, -1.135280, -1.191900730},
      {-0.05f, 124, -0.797885, -0.452780, -0.231117, -0.116099, -0.050876953},
      {0.00f, 128, 0.797885, 0.452780, 0.231117, 0.116099, 0.007267112},
      {0.30f, 148, 0.797885, 0.452780, 0.231117, 0.350407, 0.299445063},
      {0.98f, 191, 0.797885, 0.452780, 0.710619, 0.845061, 0.973039627},
      {1.00f, 192, 0.797885, 1.510418, 1.283025, 1.135280, 0.991253138},
      {2.00f, 233, 0.797885, 1.510418, 2.105307, 1.930371, 2.010635376},
  };
  for (const Row& row : rows) {
    const uint8_t leaf = tree_leaf(row.z);
    EXPECT_EQ(leaf, row.leaf) << row.z;
    const double want[4] = {row.q1, row.q2, row.q3, row.q4};
    for (int t = 1; t <= 4; ++t)
      EXPECT_NEAR(static_cast<double>(tree_value(leaf, t)), want[t - 1], 5.1e-7);
    EXPECT_NEAR(static_cast<double>(tree_value(leaf, 8)), row.q8, 5.1e-10);
  }
}

}  // namespace
}  // namespace kvist::kernels
