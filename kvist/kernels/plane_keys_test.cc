// SPDX-License-Identifier: MIT
// Keys in planes: codes and layout exact on every target, logits against doubles from the codes,
// the stated bound of bytes, and that no unread line is touched.
#include "kvist/kernels/plane_keys.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kvist/core/buffer.h"
#include "kvist/core/rng.h"
#include "kvist/kernels/targets.h"
#include "kvist/kernels/tree_code.h"

namespace kvist::kernels {
namespace {

std::vector<float> gaussians(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> out(n);
  for (float& x : out) x = static_cast<float>(rng.gaussian());
  return out;
}

std::vector<uint8_t> leaves(size_t n, uint64_t seed) {
  std::vector<uint8_t> out;
  for (float x : gaussians(n, seed)) out.push_back(tree_leaf(x));
  return out;
}

// Codes [n][d] as the open page has them, [block][d][64].
std::vector<uint8_t> opened(const std::vector<uint8_t>& codes, int n, int d) {
  std::vector<uint8_t> open(static_cast<size_t>((n + 63) / 64 * 64 * d));
  for (int j = 0; j < n; ++j)
    for (int c = 0; c < d; ++c)
      open[static_cast<size_t>((j / 64 * d + c) * 64 + j % 64)] =
          codes[static_cast<size_t>(j * d + c)];
  return open;
}

struct Case {
  int d, width, rows;
  std::vector<uint8_t> depths;
  std::vector<float> weight, base;
  std::vector<uint8_t> codes;  // [512][d]
  Buffer<uint8_t> page;
};

// Depths 0 .. width in a random mix; weights that grow with the depth, as the allocation makes
// them.
Case make_case(int d, int width, int rows, uint64_t seed) {
  Case c{d, width, rows, {}, {}, {}, leaves(static_cast<size_t>(kPageTokens * d), seed), {}};
  Rng rng(seed + 1);
  for (int i = 0; i < d; ++i)
    c.depths.push_back(static_cast<uint8_t>(rng.below(static_cast<uint64_t>(width + 1))));
  c.weight = gaussians(static_cast<size_t>(rows * d), seed + 2);
  for (int i = 0; i < rows * d; ++i)
    c.weight[static_cast<size_t>(i)] *= std::ldexp(1.0f, c.depths[static_cast<size_t>(i % d)]) / 16;
  c.base = gaussians(static_cast<size_t>(rows), seed + 3);
  c.page = Buffer<uint8_t>(key_page_bytes(d, width));
  seal_keys(opened(c.codes, kPageTokens, d).data(), kPageTokens, d, width, nullptr, c.page.data());
  return c;
}

double expected(const Case& c, int r, int token) {
  double sum = double{c.base[static_cast<size_t>(r)]};
  for (int i = 0; i < c.d; ++i)
    sum += double{c.weight[static_cast<size_t>(r * c.d + i)]} *
           double{tree_value(c.codes[static_cast<size_t>(token * c.d + i)],
                             c.depths[static_cast<size_t>(i)])};
  return sum;
}

double magnitude(const Case& c, int r) {
  double sum = std::abs(double{c.base[static_cast<size_t>(r)]});
  for (int i = 0; i < c.d; ++i)
    sum += std::abs(double{c.weight[static_cast<size_t>(r * c.d + i)]}) * 4.22;
  return sum;
}

struct Result {
  std::vector<float> logits;  // [rows][512]
  std::vector<float> bound;   // [rows] of what bytes add
};
Result run(const Case& c, Precision precision, int n_blocks = 8) {
  Buffer<std::byte> memory(key_reader_bytes(c.d, c.rows)), scratch(key_scratch_bytes(c.d));
  const KeyReader reader = make_key_reader(c.depths.data(), c.weight.data(), c.base.data(), c.rows,
                                           c.d, c.width, precision, memory.data());
  Result result{std::vector<float>(static_cast<size_t>(c.rows * kPageTokens)), {}};
  key_logits(reader, c.page.data(), n_blocks, c.page.data(), result.logits.data(), kPageTokens,
             scratch.data());
  for (int r = 0; r < c.rows; ++r) result.bound.push_back(key_bytes_error(reader, r));
  return result;
}

// Every threshold, its neighbours, the edges of all bins of the guide, and what lies far outside.
std::vector<float> hard_quotients() {
  std::vector<float> z{0.0f, -0.0f, 1e-30f, -1e-30f, 5.0f, -5.0f, 3e38f, -3e38f};
  const auto around = [&](float x) {
    z.push_back(x);
    for (float to : {-10.0f, 10.0f}) z.push_back(std::nextafter(x, to));
  };
  for (float threshold : kTreeThresholds) around(threshold);
  for (int b = -1030; b <= 1030; ++b) around(static_cast<float>(b) / 128);
  Rng rng(3);
  for (int i = 0; i < 20000; ++i) z.push_back(static_cast<float>(rng.gaussian()));
  while (z.size() % kBlock != 0) z.push_back(0.5f);
  return z;
}

TEST(PlaneKeys, CodesAreTheRankOfTheQuotientOnEveryTarget) {
  const std::vector<float> z = hard_quotients();
  const int n = static_cast<int>(z.size()), channels = n / kBlock;
  const std::vector<float> zero(z.size(), 0.0f), one(z.size(), 1.0f);
  for_each_target([&](const std::string& target) {
    std::vector<uint8_t> leaf(z.size()), column(z.size());
    EXPECT_TRUE(encode_leaves(z.data(), zero.data(), one.data(), n, leaf.data()));
    EXPECT_TRUE(encode_columns(z.data(), zero.data(), one.data(), channels, column.data()));
    for (size_t i = 0; i < z.size(); ++i) {
      ASSERT_EQ(leaf[i], tree_leaf(z[i])) << target << ", z = " << z[i];
      ASSERT_EQ(column[i], tree_leaf(z[i])) << target << ", z = " << z[i];
    }
    for (float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      std::vector<float> x(kBlock, 0.25f);
      x[37] = bad;
      EXPECT_FALSE(encode_leaves(x.data(), zero.data(), one.data(), kBlock, leaf.data()));
      EXPECT_FALSE(encode_columns(x.data(), zero.data(), one.data(), 1, leaf.data()));
    }
  });
}

TEST(PlaneKeys, EncodesAsTheTreeDoesOnEveryTarget) {
  const int n = 1003;
  std::vector<float> x = gaussians(n, 1), mu = gaussians(n, 2), sigma = gaussians(n, 3);
  for (float& s : sigma) s = std::abs(s) + 0.1f;
  for (int i = 0; i < 255; ++i) {  // ties go right
    x[static_cast<size_t>(i)] = kTreeThresholds[i];
    mu[static_cast<size_t>(i)] = 0;
    sigma[static_cast<size_t>(i)] = 1;
  }
  for_each_target([&](const std::string& target) {
    std::vector<uint8_t> leaf(n);
    ASSERT_TRUE(encode_leaves(x.data(), mu.data(), sigma.data(), n, leaf.data())) << target;
    for (size_t i = 0; i < n; ++i) {
      const float z = (x[i] - mu[i]) / sigma[i];
      ASSERT_EQ(leaf[i], tree_leaf(z)) << target << " " << i;
    }
    for (float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
      for (size_t at : {size_t{5}, size_t{1002}}) {
        std::vector<float> y = x;
        y[at] = bad;
        EXPECT_FALSE(encode_leaves(y.data(), mu.data(), sigma.data(), n, leaf.data())) << target;
      }
    }
  });
}

TEST(PlaneKeys, PlaneBitsAreWhereTheLayoutSays) {
  const int d = 5, n = 512;
  const auto codes = leaves(n * d, 7);
  for_each_target([&](const std::string& target) {
    for (int width : {4, 8, 3}) {
      std::vector<uint8_t> page(key_page_bytes(d, width));
      seal_keys(opened(codes, n, d).data(), n, d, width, nullptr, page.data());
      for (int j = 0; j < n; ++j)
        for (int c = 0; c < d; ++c)
          for (int s = 1; s <= width; ++s) {
            const int line = (c * width + s - 1) * kPlaneBytes;
            const int bit = page[static_cast<size_t>(line + j / 8)] >> (j % 8) & 1;
            ASSERT_EQ(bit, codes[static_cast<size_t>(j * d + c)] >> (8 - s) & 1)
                << target << " token " << j << " channel " << c << " plane " << s;
          }
    }
  });
}

TEST(PlaneKeys, ExactLogitsEqualTheCodesSums) {
  for_each_target([&](const std::string& target) {
    for (const auto& [d, width, rows] :
         {std::tuple{64, 8, 3}, {128, 8, 7}, {128, 4, 4}, {80, 8, 1}, {6, 5, 9}, {1, 8, 2}}) {
      const Case c = make_case(d, width, rows, 11);
      const Result got = run(c, Precision::exact);
      for (int r = 0; r < rows; ++r) {
        EXPECT_EQ(got.bound[static_cast<size_t>(r)], 0);
        for (int j = 0; j < kPageTokens; ++j)
          ASSERT_NEAR(static_cast<double>(got.logits[static_cast<size_t>(r * kPageTokens + j)]),
                      expected(c, r, j), (d + 2) * 6e-8 * magnitude(c, r))
              << target << " d " << d << " row " << r << " token " << j;
      }
    }
  });
}

TEST(PlaneKeys, BytesStayWithinTheirBoundAndFarBelowTheCode) {
  for_each_target([&](const std::string& target) {
    for (const auto& [d, width, rows] :
         {std::tuple{64, 8, 3}, {128, 8, 7}, {128, 4, 13}, {96, 4, 8}, {3, 2, 1}}) {
      const Case c = make_case(d, width, rows, 23);
      const Result got = run(c, Precision::fast);
      for (int r = 0; r < rows; ++r) {
        double squares = 0, code = 0;
        for (int j = 0; j < kPageTokens; ++j) {
          const double error =
              static_cast<double>(got.logits[static_cast<size_t>(r * kPageTokens + j)]) -
              expected(c, r, j);
          squares += error * error / kPageTokens;
          ASSERT_LE(std::abs(error), static_cast<double>(got.bound[static_cast<size_t>(r)]) +
                                         (d + 6) * 6e-8 * magnitude(c, r))
              << target << " d " << d << " row " << r << " token " << j;
        }
        for (int i = 0; i < d; ++i) {
          const double w = double{c.weight[static_cast<size_t>(r * d + i)]};
          code += w * w * tree_distortion(c.depths[static_cast<size_t>(i)]);
        }
        // AVX2 has 7 bits for a weight.
        const double share = target == "avx3_dl" ? 0.35 : 0.5;
        EXPECT_LE(std::sqrt(squares), share * std::sqrt(code) + 1e-6) << target << " row " << r;
      }
    }
  });
}

TEST(PlaneKeys, UnreadPlanesAndBlocksChangeNothing) {
  for_each_target([&](const std::string& target) {
    for (Precision precision : {Precision::exact, Precision::fast}) {
      Case c = make_case(128, 8, 4, 31);
      const Result before = run(c, precision, 5);
      for (int i = 0; i < c.d; ++i)
        for (int s = 0; s < c.width; ++s)
          for (int b = 0; b < kPlaneBytes; ++b)
            if (s >= c.depths[static_cast<size_t>(i)] || b >= 5 * 8)
              c.page[static_cast<size_t>((i * c.width + s) * kPlaneBytes + b)] ^= 0xFF;
      EXPECT_EQ(run(c, precision, 5).logits, before.logits) << target;
    }
  });
}

// Eight channels of width 8 fill a page of the system's memory: every other page is unreadable, and
// its channels have depth 0.
TEST(PlaneKeys, UnreadMemoryIsNotTouched) {
  constexpr size_t kSystemPage = 4096;
  const int d = 64, rows = 4;
  Case c = make_case(d, 8, rows, 41);
  for (int i = 0; i < d; ++i)
    if (i / 8 % 2 == 1) c.depths[static_cast<size_t>(i)] = 0;
  const size_t size = key_page_bytes(d, 8);
  auto* page = static_cast<uint8_t*>(
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(static_cast<void*>(page), MAP_FAILED);
  std::memcpy(page, c.page.data(), size);
  for (size_t at = kSystemPage; at < size; at += 2 * kSystemPage)
    ASSERT_EQ(mprotect(page + at, kSystemPage, PROT_NONE), 0);
  for_each_target([&](const std::string&) {
    for (Precision precision : {Precision::exact, Precision::fast}) {
      Buffer<std::byte> memory(key_reader_bytes(d, rows)), scratch(key_scratch_bytes(d));
      const KeyReader reader = make_key_reader(c.depths.data(), c.weight.data(), c.base.data(),
                                               rows, d, 8, precision, memory.data());
      std::vector<float> out(rows * kPageTokens);
      key_logits(reader, page, 8, nullptr, out.data(), kPageTokens, scratch.data());
      EXPECT_EQ(out, run(c, precision).logits);
    }
  });
  munmap(page, size);
}

TEST(PlaneKeys, SealsOnlyThePlanesOfASchedule) {
  const int d = 16, width = 8, n = 100;
  const auto open = opened(leaves(n * d, 3), n, d);
  std::vector<uint8_t> depths, whole(key_page_bytes(d, width)), some(whole.size(), 0xA5);
  for (int c = 0; c < d; ++c) depths.push_back(static_cast<uint8_t>(c % 9));
  for_each_target([&](const std::string& target) {
    seal_keys(open.data(), n, d, width, nullptr, whole.data());
    seal_keys(open.data(), n, d, width, depths.data(), some.data());
    for (int c = 0; c < d; ++c)
      for (int s = 0; s < width; ++s)
        for (int b = 0; b < 64; ++b) {
          const size_t at = static_cast<size_t>((c * width + s) * kPlaneBytes + b);
          const bool written = s < depths[static_cast<size_t>(c)] && b < 16;
          ASSERT_EQ(some[at], written ? whole[at] : 0xA5) << target;
        }
  });
}

}  // namespace
}  // namespace kvist::kernels
