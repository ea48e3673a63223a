// SPDX-License-Identifier: MIT
// Values in planes: the layout bit by bit, sums against doubles from the codes on every target, the
// error of bytes against the code's own, and that no unread bit matters.
#include "kvist/kernels/plane_values.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kvist/core/buffer.h"
#include "kvist/core/rng.h"
#include "kvist/kernels/plane_keys.h"
#include "kvist/kernels/targets.h"
#include "kvist/kernels/tree_code.h"

namespace kvist::kernels {
namespace {

struct Case {
  ValueLayout layout;
  int n, rows;
  std::vector<uint8_t> codes;   // [n][d]
  std::vector<uint8_t> depths;  // [n]
  std::vector<float> alpha;     // [rows][n]
  Buffer<uint8_t> packets;
  int d() const { return layout.head_dim; }
};

// Weights that double with the depth, as the allocation makes them.
Case make_case(int d, int width, int n, int rows, uint64_t seed) {
  Case c{value_layout(d, width), n, rows, {}, {}, {}, {}};
  Rng rng(seed);
  for (int i = 0; i < n * d; ++i) c.codes.push_back(tree_leaf(static_cast<float>(rng.gaussian())));
  for (int j = 0; j < n; ++j)
    c.depths.push_back(static_cast<uint8_t>(rng.below(static_cast<uint64_t>(width + 1))));
  for (int i = 0; i < rows * n; ++i)
    c.alpha.push_back(static_cast<float>(rng.uniform()) *
                      std::ldexp(1e-3f, c.depths[static_cast<size_t>(i % n)]));
  c.packets = Buffer<uint8_t>(c.layout.bytes(n));
  store_values(c.layout, c.packets.data(), 0, n, c.codes.data());
  return c;
}

std::vector<float> run(const Case& c, Precision precision, int first = 0) {
  Buffer<std::byte> scratch(value_scratch_bytes(c.d(), c.rows));
  std::vector<float> out(static_cast<size_t>(c.rows * c.d()));
  add_values(c.layout, c.packets.data(), first, c.n - first, c.depths.data() + first,
             c.alpha.data() + first, c.n, c.rows, precision, out.data(), scratch.data());
  return out;
}

double expected(const Case& c, int r, int channel, int first, double* size) {
  double sum = 0;
  *size = 0;
  for (int j = first; j < c.n; ++j) {
    const double term = double{c.alpha[static_cast<size_t>(r * c.n + j)]} *
                        double{tree_value(c.codes[static_cast<size_t>(j * c.d() + channel)],
                                          c.depths[static_cast<size_t>(j)])};
    sum += term;
    *size += std::abs(term);
  }
  return sum;
}

// Sums over the tokens from `first` on, each within `error` of the sum of its terms' sizes.
void expect_sums(const Case& c, Precision precision, int first, double error,
                 const std::string& target) {
  const auto got = run(c, precision, first);
  for (int r = 0; r < c.rows; ++r)
    for (int i = 0; i < c.d(); ++i) {
      double size = 0;
      const double want = expected(c, r, i, first, &size);
      ASSERT_NEAR(static_cast<double>(got[static_cast<size_t>(r * c.d() + i)]), want, error * size)
          << target << " d " << c.d() << " row " << r << " channel " << i;
    }
}

TEST(PlaneValues, BitsAreWhereTheLayoutSays) {
  EXPECT_EQ(value_layout(128, 8).per_packet, 4);
  EXPECT_EQ(value_layout(64, 8).per_packet, 8);
  for (int d : {128, 64, 80, 12, 3}) {
    const Case c = make_case(d, 8, 13, 1, 5);
    for (int j = 0; j < c.n; ++j)
      for (int s = 1; s <= 8; ++s)
        for (int i = 0; i < d; ++i) {
          const int q = c.layout.per_packet, run = (d + 7) / 8;
          const int at = ((j / q * 8 + s - 1) * q + j % q) * run + i / 8;
          ASSERT_EQ(c.packets[static_cast<size_t>(at)] >> (i % 8) & 1,
                    c.codes[static_cast<size_t>(j * d + i)] >> (8 - s) & 1);
        }
  }
}

TEST(PlaneValues, ExactSumsEqualTheCodesSums) {
  for_each_target([&](const std::string& target) {
    for (const auto& [d, width, n, rows] : {std::tuple{64, 8, 300, 3},
                                            {128, 8, 257, 7},
                                            {128, 4, 64, 4},
                                            {80, 8, 33, 9},
                                            {6, 5, 511, 1},
                                            {1, 8, 1, 2}}) {
      const Case c = make_case(d, width, n, rows, 17);
      expect_sums(c, Precision::exact, n / 3, (n + 2) * 6e-8, target);
    }
  });
}

TEST(PlaneValues, DeepTokensErrAsF16Does) {
  for_each_target([&](const std::string& target) {
    for (const auto& [d, n, rows, first] :
         {std::tuple{64, 300, 3, 0}, {64, 700, 9, 13}, {128, 600, 4, 331}, {80, 90, 2, 7}}) {
      Case c = make_case(d, 8, n, rows, 31);
      for (size_t j = 0; j < c.depths.size(); ++j) c.depths[j] = j % 5 == 0 ? 0 : 7 + j % 2;
      expect_sums(c, Precision::fast, first, std::ldexp(1.0, -11) + n * 6e-8, target);
    }
  });
}

TEST(PlaneValues, RowsOfTokensAreColumnsTurned) {
  Rng rng(41);
  for_each_target([&](const std::string& target) {
    for (const auto& [d, n] : {std::pair{64, 64}, {64, 1}, {128, 37}, {80, 16}, {7, 64}}) {
      std::vector<uint8_t> columns(static_cast<size_t>(d * 64));
      for (uint8_t& x : columns) x = static_cast<uint8_t>(rng.below(256));
      std::vector<uint8_t> rows(static_cast<size_t>(n * d) + 1, 0xAB);
      token_rows(columns.data(), d, n, rows.data());
      for (int t = 0; t < n; ++t)
        for (int c = 0; c < d; ++c)
          ASSERT_EQ(rows[static_cast<size_t>(t * d + c)], columns[static_cast<size_t>(c * 64 + t)])
              << target << " d " << d << " token " << t << " channel " << c;
      EXPECT_EQ(rows.back(), 0xAB);
    }
  });
}

TEST(PlaneValues, PacketsAreAsDeepAsTheirDeepestToken) {
  for_each_target([&](const std::string& target) {
    for (const int d : {64, 128, 200, 16}) {
      const Case c = make_case(d, 8, 1000, 1, 37);
      for (const auto& [first, n] : {std::pair{0, 1000}, {3, 2}, {5, 700}, {128, 0}, {13, 987}}) {
        int64_t want = 0;
        for (int j = first, deepest = 0; j < first + n; ++j) {
          deepest = std::max<int>(deepest, c.depths[static_cast<size_t>(j)]);
          if ((j + 1) % c.layout.per_packet != 0 && j + 1 < first + n) continue;
          want += deepest, deepest = 0;
        }
        EXPECT_EQ(packet_depths(c.layout, first, n, c.depths.data() + first), want)
            << target << " d " << d << " from " << first;
      }
    }
  });
}

TEST(PlaneValues, BytesErrFarLessThanTheCode) {
  for_each_target([&](const std::string& target) {
    for (const auto& [d, width, n, rows, first] : {std::tuple{64, 8, 300, 3, 0},
                                                   {64, 8, 700, 3, 13},
                                                   {128, 8, 1000, 7, 0},
                                                   {128, 8, 1000, 7, 331},
                                                   {128, 4, 512, 13, 0},
                                                   {96, 8, 301, 2, 7},
                                                   {200, 8, 300, 3, 0},
                                                   {80, 4, 77, 4, 0}}) {
      const Case c = make_case(d, width, n, rows, 29);
      const auto got = run(c, Precision::fast, first);
      for (int r = 0; r < rows; ++r) {
        double squares = 0, code = 0, largest = 0, all = 0;
        int in_bytes = 0;
        for (int j = first; j < n; ++j) {
          const double a = double{c.alpha[static_cast<size_t>(r * n + j)]};
          const int depth = c.depths[static_cast<size_t>(j)];
          code += a * a * tree_distortion(depth);
          if (depth == 0 || depth > 6) continue;
          ++in_bytes;
          all += a;
          largest = std::max(largest, a);
        }
        const double outermost = double{tree_centroids(6)[63]};
        const double bound = all * outermost / 254 + in_bytes * largest / 254 * outermost * 1.01;
        for (int i = 0; i < d; ++i) {
          double size = 0;
          const double error = static_cast<double>(got[static_cast<size_t>(r * d + i)]) -
                               expected(c, r, i, first, &size);
          squares += error * error / d;
          ASSERT_LE(std::abs(error), bound + (n + 9) * 6e-8 * size)
              << target << " d " << d << " row " << r;
        }
        EXPECT_LE(std::sqrt(squares), 0.25 * std::sqrt(code)) << target << " d " << d;
      }
    }
  });
}

TEST(PlaneValues, UnreadBitsChangeNothing) {
  for_each_target([&](const std::string& target) {
    for (Precision precision : {Precision::exact, Precision::fast})
      for (int d : {128, 72}) {
        Case c = make_case(d, 8, 300, 4, 31);
        const auto before = run(c, precision);
        for (int j = 0; j < c.n; ++j)
          for (int s = c.depths[static_cast<size_t>(j)]; s < 8; ++s)
            for (int b = 0; b < c.layout.run_bytes(); ++b)
              c.packets[static_cast<size_t>(c.layout.run(j) + s * c.layout.plane_bytes() + b)] ^=
                  0xFF;
        EXPECT_EQ(run(c, precision), before) << target;
      }
  });
}

// 32 tokens of 128 channels fill a page of the system's memory: every other page is unreadable, and
// its tokens have depth 0.
TEST(PlaneValues, UnreadMemoryIsNotTouched) {
  constexpr size_t kSystemPage = 4096;
  Case c = make_case(128, 8, 512, 4, 37);
  for (int j = 0; j < c.n; ++j)
    if (j / 32 % 2 == 1) c.depths[static_cast<size_t>(j)] = 0;
  const size_t size = c.layout.bytes(c.n);
  auto* packets = static_cast<uint8_t*>(
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(static_cast<void*>(packets), MAP_FAILED);
  std::memcpy(packets, c.packets.data(), size);
  for (size_t at = kSystemPage; at < size; at += 2 * kSystemPage)
    ASSERT_EQ(mprotect(packets + at, kSystemPage, PROT_NONE), 0);
  for_each_target([&](const std::string&) {
    for (Precision precision : {Precision::exact, Precision::fast}) {
      Buffer<std::byte> scratch(value_scratch_bytes(128, 4));
      std::vector<float> out(4 * 128);
      add_values(c.layout, packets, 0, c.n, c.depths.data(), c.alpha.data(), c.n, 4, precision,
                 out.data(), scratch.data());
      EXPECT_EQ(out, run(c, precision));
    }
  });
  munmap(packets, size);
}

TEST(PlaneValues, NothingIsAddedForWeightsOrDepthsOfZero) {
  Case c = make_case(64, 8, 40, 2, 3);
  std::fill(c.alpha.begin(), c.alpha.begin() + 40, 0.0f);
  for (Precision precision : {Precision::exact, Precision::fast}) {
    const auto got = run(c, precision);
    for (int i = 0; i < 64; ++i) EXPECT_EQ(got[static_cast<size_t>(i)], 0);
    EXPECT_NE(got[64], 0);
  }
  std::fill(c.depths.begin(), c.depths.end(), uint8_t{0});
  EXPECT_EQ(run(c, Precision::fast), std::vector<float>(128));
}

}  // namespace
}  // namespace kvist::kernels
