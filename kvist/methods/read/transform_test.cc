// SPDX-License-Identifier: MIT
// Tests of the orthogonal transforms: worked vectors, and every identity that the reader relies on.
#include "kvist/methods/read/transform.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "kvist/core/error.h"
#include "kvist/core/rng.h"

namespace kvist {
namespace {

using Floats = std::vector<float>;
using Kind = HeadTransform::Kind;

constexpr uint64_t kSeed = 20260801;

Floats gaussians(int n, uint64_t seed) {
  Rng rng(seed);
  Floats out(static_cast<size_t>(n));
  for (float& x : out) x = static_cast<float>(rng.gaussian());
  return out;
}

double dot(const Floats& a, const Floats& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

Floats applied(const HeadTransform& u, Floats x) {
  u.apply(x.data(), 1);
  return x;
}

std::string signs(Kind kind, uint32_t salt) {
  std::string out;
  const HeadTransform u = HeadTransform::hadamard(32, kSeed, kind, salt);
  for (float s : u.signs()) out += s < 0 ? '-' : '+';
  return out;
}

TEST(HeadTransform, A2Signs) {
  EXPECT_EQ(signs(Kind::key, 0), "--+-+--++--+----+++---+--+----+-");
  EXPECT_EQ(signs(Kind::value, 0), "+---++-+++-------+-----+++++++-+");
  EXPECT_EQ(signs(Kind::key, 5), "+++++--+-----++--+-++--------+--");
}

TEST(HeadTransform, A2FourAndTwelve) {
  EXPECT_EQ(applied(HeadTransform::hadamard(4, kSeed, Kind::key, 0), {1, 2, 3, 4}),
            (Floats{-2, 4, -1, -3}));
  const double want[12] = {-1.154700538, 8.660254038,  -2.309401077,  -8.082903769,
                           -2.886751346, 12.701705922, -2.886751346,  -1.732050808,
                           1.732050808,  2.886751346,  -15.011106999, 9.237604307};
  Floats x(12);
  std::iota(x.begin(), x.end(), 1.0f);
  const Floats y = applied(HeadTransform::hadamard(12, kSeed, Kind::key, 0), x);
  for (size_t i = 0; i < 12; ++i) EXPECT_NEAR(static_cast<double>(y[i]), want[i], 4e-6);
}

TEST(HeadTransform, Recipes) {
  const auto recipe = [](int d) { return HeadTransform::hadamard(d, 1, Kind::key, 0).recipe(); };
  EXPECT_EQ(recipe(64), "sylvester 64");
  EXPECT_EQ(recipe(12), "sylvester 1 x paley 12");
  EXPECT_EQ(recipe(80), "sylvester 4 x paley 20");
  EXPECT_EQ(recipe(96), "sylvester 8 x paley 12");
  EXPECT_EQ(recipe(112), "sylvester 4 x paley 28");
  EXPECT_EQ(recipe(576), "sylvester 16 x paley 36");
  EXPECT_EQ(recipe(104), "sylvester 8 x identity 13");
  EXPECT_EQ(recipe(6), "sylvester 2 x identity 3");
  EXPECT_THROW(recipe(0), Error);
  EXPECT_THROW(recipe(2048), Error);
}

// Every output mixes every input with equal magnitude, except where there is no such matrix.
TEST(HeadTransform, EntriesAreEqual) {
  for (int d : {1, 2, 4, 12, 20, 28, 36, 44, 60, 64, 80, 96, 112, 128, 160, 192, 576}) {
    const HeadTransform u = HeadTransform::hadamard(d, kSeed, Kind::value, 3);
    for (int channel : {0, 1, d / 2, d - 1}) {
      Floats unit(static_cast<size_t>(d), 0.0f);
      unit[static_cast<size_t>(std::min(channel, d - 1))] = 1;
      for (float x : applied(u, unit))
        ASSERT_FLOAT_EQ(std::abs(x), static_cast<float>(1 / std::sqrt(d))) << d;
    }
  }
}

TEST(HeadTransform, Rk36Orthogonal) {
  for (int d :
       {1, 2, 6, 12, 13, 20, 28, 36, 44, 52, 60, 64, 80, 96, 104, 112, 128, 160, 192, 256, 576}) {
    const HeadTransform u = HeadTransform::hadamard(d, kSeed, Kind::key, 1);
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      const Floats q = gaussians(d, seed), k = gaussians(d, seed + 100);
      const Floats uq = applied(u, q), uk = applied(u, k);
      const double size = std::sqrt(dot(q, q) * dot(k, k));
      ASSERT_NEAR(std::sqrt(dot(uk, uk) / dot(k, k)), 1, 1e-5) << d;
      ASSERT_NEAR(dot(uq, uk), dot(q, k), 1e-5 * size) << d;
      Floats back = uk;
      u.undo(back.data(), 1);
      for (size_t i = 0; i < k.size(); ++i) ASSERT_NEAR(back[i], k[i], 1e-5f) << d;
    }
  }
}

TEST(HeadTransform, RowsAreIndependent) {
  for (int d : {64, 80, 104}) {
    const HeadTransform u = HeadTransform::hadamard(d, kSeed, Kind::key, 0);
    Floats rows = gaussians(5 * d, 9), want;
    for (int r = 0; r < 5; ++r) {
      const Floats one = applied(u, Floats(rows.begin() + r * d, rows.begin() + (r + 1) * d));
      want.insert(want.end(), one.begin(), one.end());
    }
    u.apply(rows.data(), 5);
    EXPECT_EQ(rows, want);
  }
}

TEST(HeadTransform, MatrixIsItsRows) {
  // Rotations of neighbouring channels, as a matrix without symmetry.
  const int d = 6;
  Floats m(static_cast<size_t>(d * d), 0.0f);
  for (int i = 0; i < d; i += 2) {
    const float c = 0.6f, s = 0.8f;
    m[static_cast<size_t>(i * d + i)] = c;
    m[static_cast<size_t>(i * d + i + 1)] = s;
    m[static_cast<size_t>((i + 1) * d + i)] = -s;
    m[static_cast<size_t>((i + 1) * d + i + 1)] = c;
  }
  const HeadTransform u = HeadTransform::matrix(d, m);
  EXPECT_EQ(u.recipe(), "matrix 6");
  Floats x = {1, 0, 0, 1, 2, 3};
  u.apply(x.data(), 1);
  const Floats want = {.6f, -.8f, .8f, .6f, 3.6f, .2f};
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], want[i], 1e-6f);
  u.undo(x.data(), 1);
  EXPECT_NEAR(x[5], 3.0f, 1e-6f);
  EXPECT_NEAR(x[1], 0.0f, 1e-6f);
}

TEST(HeadTransform, ColumnsAndRowsGetTheSameBits) {
  for (int d : {4, 12, 13, 28, 64, 80, 96, 104, 128}) {
    for (bool matrix : {false, true}) {
      const HeadTransform made = HeadTransform::hadamard(d, 5, HeadTransform::Kind::key, 2);
      std::vector<float> axes(static_cast<size_t>(d * d), 0.0f);
      for (int i = 0; i < d; ++i) axes[static_cast<size_t>(i * d + i)] = 1;
      made.apply(axes.data(), d);
      const HeadTransform u = matrix ? HeadTransform::matrix(d, axes) : made;
      constexpr int kTokens = 5;
      Rng rng(static_cast<uint64_t>(d));
      std::vector<float> rows(static_cast<size_t>(kTokens * d)), columns(rows.size());
      for (int t = 0; t < kTokens; ++t) {
        for (int c = 0; c < d; ++c) {
          const float x = static_cast<float>(rng.gaussian());
          rows[static_cast<size_t>(t * d + c)] = columns[static_cast<size_t>(c * kTokens + t)] = x;
        }
      }
      std::vector<float> scratch(columns.size());
      u.apply(rows.data(), kTokens);
      u.apply_columns(columns.data(), kTokens, scratch.data());
      for (int t = 0; t < kTokens; ++t) {
        for (int c = 0; c < d; ++c)
          ASSERT_EQ(rows[static_cast<size_t>(t * d + c)],
                    columns[static_cast<size_t>(c * kTokens + t)])
              << d << (matrix ? " matrix" : " hadamard");
      }
    }
  }
}

}  // namespace
}  // namespace kvist
