// SPDX-License-Identifier: MIT
// Tests that fast counts are the canonical counts: every SIMD target, thread count, length and
// width; adversarial pairs.
#include "kvist/kernels/similar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "kvist/core/half.h"
#include "kvist/core/rng.h"
#include "kvist/kernels/similar_internal.h"
#include "kvist/kernels/targets.h"

namespace kvist::kernels {
namespace {

using Keys = std::vector<float>;  // [n][d]
using Counts = std::vector<int32_t>;

// The definition, twinkv.md section 3, as written.
Counts reference_counts(const Keys& keys, int d, int ell) {
  const int n = static_cast<int>(keys.size()) / d;
  const auto dot = [&](int i, int j) {
    double sum = 0;
    for (int k = 0; k < d; ++k) {
      sum += static_cast<double>(keys[static_cast<size_t>(i * d + k)]) *
             static_cast<double>(keys[static_cast<size_t>(j * d + k)]);
    }
    return sum;
  };
  std::vector<double> norm;
  for (int i = 0; i < n; ++i) norm.push_back(dot(i, i));
  Counts counts(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) {
    for (int j = i + ell + 1; j < n; ++j) {
      const double x = dot(i, j);
      if (x > 0 &&
          400 * x * x > 289 * norm[static_cast<size_t>(i)] * norm[static_cast<size_t>(j)]) {
        ++counts[static_cast<size_t>(i)];
        ++counts[static_cast<size_t>(j)];
      }
    }
  }
  return counts;
}

Counts count(const Keys& keys, int d, int ell, int threads, CountStats* stats = nullptr) {
  ThreadPool pool(threads);
  Counts counts(keys.size() / static_cast<size_t>(d), -1);
  count_similar(keys.data(), static_cast<int>(counts.size()), d, ell, pool, counts.data(), stats);
  return counts;
}

// The same where this CPU's AMX tiles stay out of it.
Counts count_fixed(const Keys& keys, int d, int ell, int threads, CountStats* stats = nullptr) {
  ThreadPool pool(threads);
  Counts counts(keys.size() / static_cast<size_t>(d), -1);
  internal::count_similar_fixed(keys.data(), static_cast<int>(counts.size()), d, ell, pool,
                                counts.data(), stats);
  return counts;
}

// Clusters whose members lie around the threshold, as bf16, with some zero keys and wild norms.
Keys clustered_keys(int n, int d, uint64_t seed, double spread = 0.45, int n_centres = 6) {
  Rng rng(seed);
  std::vector<double> centres(static_cast<size_t>(n_centres * d));
  for (double& x : centres) x = rng.gaussian();
  Keys keys;
  for (int i = 0; i < n; ++i) {
    const auto c = rng.below(static_cast<uint64_t>(n_centres));
    const double scale = rng.below(13) == 0 ? 0 : std::exp2(static_cast<double>(rng.below(9)) - 4);
    for (int k = 0; k < d; ++k) {
      const double x =
          centres[c * static_cast<size_t>(d) + static_cast<size_t>(k)] + spread * rng.gaussian();
      keys.push_back(to_float(to_bf16(static_cast<float>(scale * x))));
    }
  }
  return keys;
}

void expect_exact(const Keys& keys, int d, int ell, const std::string& what) {
  const Counts want = reference_counts(keys, d, ell);
  ASSERT_EQ(std::accumulate(want.begin(), want.end(), int64_t{0}) % 2, 0);
  for_each_target([&](const std::string& target) {
    for (int threads : {1, 2, 5}) {
      ASSERT_EQ(count(keys, d, ell, threads), want)
          << what << " on " << target << " with " << threads << " threads";
    }
    ASSERT_EQ(count_fixed(keys, d, ell, 2), want) << what << " on " << target << " without AMX";
  });
}

TEST(Similar, FollowsTheWorkedExampleOfCounts) {
  const Keys keys{1, 0, 3, 1, 0, 1, 1, 0, 4, 1, 1, 1, 0, 2, 2, 0};
  for_each_target([&](const std::string& target) {
    EXPECT_EQ(count(keys, 2, 2, 2), (Counts{3, 3, 1, 2, 3, 1, 1, 4})) << target;
  });
}

TEST(Similar, CosineOfExactlySeventeenTwentiethsIsNotSimilar) {
  const Keys pair{20, 0, 0, 0, 0, 17, 10, 3, 1, 1};
  EXPECT_FALSE(similar(&pair[0], &pair[5], 5));
  const float a[] = {3, 1}, b[] = {1, 1};
  EXPECT_TRUE(similar(a, b, 2));
  const float opposite[] = {-1, -1};
  EXPECT_FALSE(similar(a, opposite, 2));
  for_each_target([&](const std::string& target) {
    CountStats stats;
    EXPECT_EQ(count(pair, 5, 0, 1, &stats), (Counts{0, 0})) << target;
    EXPECT_EQ(stats.borderline, 1) << target;
    EXPECT_EQ(count({3, 1, 1, 1}, 2, 0, 1), (Counts{1, 1})) << target;
  });
}

TEST(Similar, AgreesWithIntegerArithmetic) {
  Rng rng(5);
  const int n = 150, d = 6;
  std::vector<int64_t> whole;
  Keys keys;
  for (int i = 0; i < n * d; ++i) {
    whole.push_back(static_cast<int64_t>(rng.below(41)) - 12);
    keys.push_back(static_cast<float>(whole.back()));
  }
  const auto dot = [&](int i, int j) {
    return std::inner_product(&whole[static_cast<size_t>(i * d)],
                              &whole[static_cast<size_t>(i * d)] + d,
                              &whole[static_cast<size_t>(j * d)], int64_t{0});
  };
  Counts want(n);
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      const int64_t x = dot(i, j);
      want[static_cast<size_t>(i)] +=
          std::abs(i - j) > 3 && x > 0 && 400 * x * x > 289 * dot(i, i) * dot(j, j);
    }
  }
  for_each_target(
      [&](const std::string& target) { EXPECT_EQ(count(keys, d, 3, 2), want) << target; });
}

TEST(Similar, IsExactForEveryLengthWidthAndExclusion) {
  for (int n : {0, 1, 2, 31, 33, 34, 65, 100, 257, 511, 512, 513}) {
    for (int d : {1, 5, 8, 64, 80, 96, 128}) {
      const Keys keys = clustered_keys(n, d, static_cast<uint64_t>(1000 * n + d));
      for (int ell : {0, 2, 16, 32, 64, 128}) {
        if (n > 200 && ell != 32 && ell != 2) continue;
        expect_exact(
            keys, d, ell,
            "n " + std::to_string(n) + " d " + std::to_string(d) + " ell " + std::to_string(ell));
      }
    }
  }
}

TEST(Similar, IsExactOnLongerInputs) {
  for (int d : {8, 64, 80, 128}) {
    for (double spread : {0.3, 0.42, 1.0}) {
      const Keys keys = clustered_keys(2048, d, static_cast<uint64_t>(d), spread);
      expect_exact(keys, d, 32, "d " + std::to_string(d) + " spread " + std::to_string(spread));
    }
  }
}

// Long enough that keys are rotated and tiles are left early.
TEST(Similar, IsExactWithARotation) {
  for (int d : {31, 32, 33, 64, 80, 96, 128}) {
    Keys keys = clustered_keys(3100, d, static_cast<uint64_t>(d), 0.4, 400);
    for (size_t i = 0; i < keys.size(); ++i) {  // most energy in few coordinates, as in real heads
      if (static_cast<int>(i) % d >= d / 5) keys[i] *= 0.25f;
    }
    for (int k = 0; k < d; ++k) {
      keys[static_cast<size_t>(7 * d + k)] *= 1e-36f;
      keys[static_cast<size_t>(9 * d + k)] *= 1e33f;
    }
    const Counts want = reference_counts(keys, d, 32);
    for_each_target([&](const std::string& target) {
      CountStats stats;
      ASSERT_EQ(count(keys, d, 32, 2), want) << "d " << d << " on " << target;
      ASSERT_EQ(count_fixed(keys, d, 32, 2, &stats), want) << "d " << d << " on " << target;
      if (d >= 32) {
        EXPECT_GT(stats.rejected, stats.tiles / 100) << "d " << d << " on " << target;
      } else {
        EXPECT_EQ(stats.rejected, 0);
      }
    });
  }
}

// Pairs whose cosine is 0.85 + k * step.
Keys adversarial_keys(int d, double step, uint64_t seed) {
  Rng rng(seed);
  Keys first, second;
  for (int k = -200; k <= 200; ++k) {
    std::vector<double> u, v;
    double uu = 0, uv = 0, vv = 0;
    for (int c = 0; c < d; ++c) u.push_back(rng.gaussian()), uu += u.back() * u.back();
    for (int c = 0; c < d; ++c) {
      v.push_back(rng.gaussian());
      uv += u[static_cast<size_t>(c)] * v.back();
    }
    for (int c = 0; c < d; ++c) {
      v[static_cast<size_t>(c)] -= uv / uu * u[static_cast<size_t>(c)];
      vv += v[static_cast<size_t>(c)] * v[static_cast<size_t>(c)];
    }
    const double cosine = 0.85 + k * step, sine = std::sqrt(1 - cosine * cosine);
    for (int c = 0; c < d; ++c) {
      const double x = u[static_cast<size_t>(c)] / std::sqrt(uu),
                   y = v[static_cast<size_t>(c)] / std::sqrt(vv);
      first.push_back(static_cast<float>(x));
      second.push_back(static_cast<float>(3 * (cosine * x + sine * y)));
    }
  }
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

TEST(Similar, DecidesPairsAtTheThresholdCanonically) {
  for (int d : {5, 64, 128}) {
    for (double step : {1e-8, 1e-6, 1e-5}) {
      const Keys keys = adversarial_keys(d, step, 7);
      expect_exact(keys, d, 32, "d " + std::to_string(d) + " step " + std::to_string(step));
      CountStats stats;
      count(keys, d, 32, 2, &stats);
      EXPECT_GE(stats.borderline, step < 2e-6 ? 100 : 0);
    }
  }
}

TEST(Similar, DecidesPairsAtTheThresholdCanonicallyWithARotation) {
  Keys keys;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const Keys more = adversarial_keys(64, 1e-6, seed);
    keys.insert(keys.end(), more.begin(), more.end());
  }
  const Counts want = reference_counts(keys, 64, 32);
  for_each_target([&](const std::string& target) {
    EXPECT_EQ(count(keys, 64, 32, 2), want) << target;
    EXPECT_EQ(count_fixed(keys, 64, 32, 2), want) << target;
  });
}

TEST(Similar, ExtremeMagnitudesAreExact) {
  Rng rng(3);
  for (int d : {3, 64}) {
    Keys keys = clustered_keys(200, d, 11, 0.4);
    for (int i = 0; i < 200; ++i) {
      const int shift = static_cast<int>(rng.below(5));
      const double scale = shift == 0 ? 1e-44 : shift == 1 ? 1e-30 : shift == 2 ? 1e36 : 1;
      for (int k = 0; k < d; ++k) {
        float& x = keys[static_cast<size_t>(i * d + k)];
        x = static_cast<float>(static_cast<double>(x) * scale);
      }
    }
    expect_exact(keys, d, 4, "extreme");
  }
}

TEST(Similar, DuplicatesFarApartCountEachOther) {
  const int d = 64, copies = 9, gap = 40;
  Keys keys = clustered_keys(copies * gap, d, 21, 30.0);  // far from one another
  for (int i = 0; i < copies; ++i) {
    for (int k = 0; k < d; ++k)
      keys[static_cast<size_t>(i * gap * d + k)] = static_cast<float>(k + 1);
  }
  const Counts counts = count(keys, d, 32, 2);
  for (int i = 0; i < copies; ++i) EXPECT_EQ(counts[static_cast<size_t>(i * gap)], copies - 1);
}

TEST(Similar, PowersOfTwoAndReversalChangeNothing) {
  const int d = 80, n = 300;
  const Keys keys = clustered_keys(n, d, 17);
  const Counts counts = count(keys, d, 32, 2);
  Keys scaled = keys, reversed;
  Rng rng(1);
  for (int i = 0; i < n; ++i) {
    const float factor = std::exp2(static_cast<float>(rng.below(40)) - 20.0f);
    for (int k = 0; k < d; ++k) scaled[static_cast<size_t>(i * d + k)] *= factor;
    const float* row = &keys[static_cast<size_t>((n - 1 - i) * d)];
    reversed.insert(reversed.end(), row, row + d);
  }
  EXPECT_EQ(count(scaled, d, 32, 2), counts);
  Counts back = count(reversed, d, 32, 2);
  std::reverse(back.begin(), back.end());
  EXPECT_EQ(back, counts);
}

TEST(Similar, ZeroKeysAreSimilarToNothingAndEqualKeysToAll) {
  EXPECT_EQ(count(Keys(100 * 8, 0.0f), 8, 0, 2), Counts(100, 0));
  const Counts counts = count(Keys(100 * 8, 0.1f), 8, 32, 2);
  EXPECT_EQ(counts[0], 100 - 33);
  EXPECT_EQ(counts[50], 100 - 65);
}

}  // namespace
}  // namespace kvist::kernels
