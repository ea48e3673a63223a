// SPDX-License-Identifier: MIT
// Tests of the window pass against double arithmetic written plainly, on every SIMD target.
#include "kvist/kernels/window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kvist/core/rng.h"
#include "kvist/kernels/targets.h"

namespace kvist::kernels {
namespace {

struct Window {
  int n, d, w, group;
  float scale;
  std::vector<float> keys, q;
  TensorView<const float, 3> queries() const { return {q.data(), {w, group, d}}; }
};

Window make_window(int n, int d, int w, int group, float spread = 1.0f) {
  Window x{n, d, w, group, 1.0f / std::sqrt(static_cast<float>(d)), {}, {}};
  Rng rng(static_cast<uint64_t>(n * 131 + d * 7 + w * 3 + group));
  for (int i = 0; i < n * d; ++i) x.keys.push_back(spread * static_cast<float>(rng.gaussian()));
  for (int i = 0; i < w * group * d; ++i)
    x.q.push_back(spread * static_cast<float>(rng.gaussian()));
  return x;
}

// [group][n] means over t.
std::vector<double> reference_means(const Window& x) {
  std::vector<double> means(static_cast<size_t>(x.group * x.n));
  for (int t = 0; t < x.w; ++t) {
    for (int g = 0; g < x.group; ++g) {
      std::vector<double> a;
      double most = -1e300, sum = 0;
      for (int i = 0; i <= x.n - x.w + t; ++i) {
        double dot = 0;
        for (int k = 0; k < x.d; ++k) {
          dot += static_cast<double>(x.q[static_cast<size_t>((t * x.group + g) * x.d + k)]) *
                 static_cast<double>(x.keys[static_cast<size_t>(i * x.d + k)]);
        }
        a.push_back(dot * static_cast<double>(x.scale));
        most = std::max(most, a.back());
      }
      for (double& v : a) sum += v = std::exp(v - most);
      for (size_t i = 0; i < a.size(); ++i)
        means[static_cast<size_t>(g * x.n) + i] += a[i] / sum / x.w;
    }
  }
  return means;
}

std::vector<float> abar(const Window& x, int threads) {
  ThreadPool pool(threads);
  std::vector<float> out(static_cast<size_t>(x.n), -1.0f);
  window_attention(x.keys.data(), x.n, x.d, x.queries(), x.scale, pool, out.data());
  return out;
}

void expect_close(const Window& x) {
  const std::string what = "n " + std::to_string(x.n) + " d " + std::to_string(x.d) + " w " +
                           std::to_string(x.w) + " group " + std::to_string(x.group);
  const std::vector<double> want = reference_means(x);
  for_each_target([&](const std::string& target) {
    SCOPED_TRACE(what + " on " + target);
    ThreadPool pool(2);
    std::vector<double> means(want.size(), -1);
    window_attention_per_head(x.keys.data(), x.n, x.d, x.queries(), x.scale, pool, means.data());
    const std::vector<float> mean = abar(x, 1);
    EXPECT_EQ(abar(x, 2), mean);
    EXPECT_EQ(abar(x, 5), mean);
    for (int i = 0; i < x.n; ++i) {
      double all = 0;
      for (int g = 0; g < x.group; ++g) {
        const auto at = static_cast<size_t>(g * x.n + i);
        all += want[at] / x.group;
        ASSERT_NEAR(means[at], want[at], 1e-9 + 2e-5 * want[at]) << "head " << g << " token " << i;
      }
      ASSERT_NEAR(static_cast<double>(mean[static_cast<size_t>(i)]), all, 1e-9 + 2e-5 * all)
          << "token " << i;
    }
  });
}

TEST(Window, IsTheMeanOfCausalSoftmaxes) {
  for (int n : {1, 2, 33, 63, 64, 65, 255, 256, 257, 300, 513, 1000}) {
    for (int d : {1, 5, 64, 80}) {
      for (int group : {1, 3, 7}) expect_close(make_window(n, d, std::min(n, 32), group));
    }
  }
  expect_close(make_window(700, 128, 32, 4, 2.5f));
  expect_close(make_window(300, 64, 300, 1));
}

TEST(Window, MostIsTheLargestOfAllRowsAlone) {
  for (int n : {1, 5, 64, 300, 517}) {
    for (int group : {1, 3}) {
      const Window x = make_window(n, 17, std::min(n, 9), group);
      // The largest over rows, from passes over one row each: a row at position p sees p + 1 keys.
      std::vector<double> want(static_cast<size_t>(n), 0.0);
      for (int t = 0; t < x.w; ++t) {
        Window one = x;
        one.n = n - x.w + t + 1;
        one.w = 1;
        one.q.assign(x.q.begin() + t * group * x.d, x.q.begin() + (t + 1) * group * x.d);
        const std::vector<double> means = reference_means(one);
        for (size_t i = 0; i < means.size(); ++i) {
          double& most = want[i % static_cast<size_t>(one.n)];
          most = std::max(most, means[i]);
        }
      }
      for_each_target([&](const std::string& target) {
        std::vector<float> one(static_cast<size_t>(n)), two(one);
        ThreadPool alone(1), pool(2);
        window_attention_most(x.keys.data(), n, x.d, x.queries(), x.scale, alone, one.data());
        window_attention_most(x.keys.data(), n, x.d, x.queries(), x.scale, pool, two.data());
        EXPECT_EQ(one, two);
        for (size_t i = 0; i < want.size(); ++i)
          ASSERT_NEAR(static_cast<double>(one[i]), want[i], 1e-9 + 2e-5 * want[i]) << target;
      });
    }
  }
}

TEST(Window, ReadsStridedQueries) {
  const Window x = make_window(200, 16, 8, 2);
  std::vector<float> wide(8 * 6 * 16,
                          std::numeric_limits<float>::quiet_NaN());  // heads 2 and 3 of 6
  for (int t = 0; t < 8; ++t) {
    std::copy_n(&x.q[static_cast<size_t>(t * 32)], 32,
                &wide[static_cast<size_t>((t * 6 + 2) * 16)]);
  }
  ThreadPool pool(2);
  std::vector<float> out(200);
  window_attention(x.keys.data(), 200, 16, {wide.data() + 2 * 16, {8, 2, 16}, {6 * 16, 16, 1}},
                   x.scale, pool, out.data());
  EXPECT_EQ(out, abar(x, 1));
}

TEST(Window, SurvivesLargeLogits) {
  Window x = make_window(600, 8, 4, 1);
  for (float& v : x.q) v *= 300;
  expect_close(x);
}

TEST(MaxPool, CopiesTheLargestNearby) {
  const std::vector<float> in{.1f, 0, 0, 0, .5f, 0, 0, 0, .2f};
  std::vector<float> out(9);
  max_pool(in.data(), 9, 3, out.data());
  EXPECT_EQ(out, (std::vector<float>{.1f, .5f, .5f, .5f, .5f, .5f, .5f, .5f, .2f}));
  const double two[] = {1, 2};
  double pooled[2];
  max_pool(two, 2, 3, pooled);
  EXPECT_EQ(pooled[0], 2);
  max_pool(two, 2, 0, pooled);
  EXPECT_EQ(pooled[0], 1);
}

TEST(Energies, AreDoubleSumsRoundedOnce) {
  for (int d : {1, 5, 64, 128}) {
    for (int n : {0, 1, 7, 8, 9, 17, 33}) {
      Rng rng(static_cast<uint64_t>(d + n));
      std::vector<float> values, want, out(static_cast<size_t>(n));
      for (int t = 0; t < n; ++t) {
        double sum = 0;
        for (int k = 0; k < d; ++k) {
          values.push_back(static_cast<float>(1e15 * rng.gaussian()));
          sum += static_cast<double>(values.back()) * static_cast<double>(values.back());
        }
        want.push_back(static_cast<float>(sum));
      }
      for_each_target([&](const std::string& target) {
        energies(values.data(), n, d, out.data());
        EXPECT_EQ(out, want) << target;
      });
    }
  }
}

TEST(FindNonfinite, NamesTheFirst) {
  for_each_target([&](const std::string& target) {
    for (int n : {1, 63, 64, 65, 200}) {
      std::vector<float> x(static_cast<size_t>(n), std::numeric_limits<float>::max());
      int64_t where = -1;
      EXPECT_FALSE(find_nonfinite(x.data(), n, &where)) << target;
      for (int i = n - 1; i >= 0; --i) {
        x[static_cast<size_t>(i)] = i % 2 ? -std::numeric_limits<float>::infinity()
                                          : std::numeric_limits<float>::quiet_NaN();
        ASSERT_TRUE(find_nonfinite(x.data(), n, &where)) << target << " " << n << " " << i;
        ASSERT_EQ(where, i);
      }
    }
    EXPECT_FALSE(find_nonfinite(nullptr, 0, nullptr));
  });
}

}  // namespace
}  // namespace kvist::kernels
