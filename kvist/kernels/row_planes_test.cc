// SPDX-License-Identifier: MIT
#include "kvist/kernels/row_planes.h"

#include <gtest/gtest.h>

#include <vector>

#include "kvist/core/rng.h"
#include "kvist/kernels/ranked.h"
#include "kvist/kernels/targets.h"
#include "kvist/kernels/tree_code.h"

namespace kvist::kernels {
namespace {

constexpr int kRoom = 8;  // that reads may load behind the codes

// Rows of falling length; between the planes of a row lie bits of other tokens.
struct Written {
  Written(int width, int first_count, int n_rows, int others) {
    Rng rng(static_cast<uint64_t>(width * 1000 + first_count));
    int n = first_count;
    int64_t bit = others;
    for (int j = 0; j < n_rows; ++j) {
      rows.push_back({bit, n + others, static_cast<uint8_t>(n), static_cast<uint8_t>(width)});
      bit += int64_t{width} * (n + others);
      n = std::max(1, n - static_cast<int>(rng.below(4)));
    }
    for (int i = 0; i < first_count * kCoefficients; ++i)
      leaves.push_back(static_cast<uint8_t>(rng.below(256)));
    for (int i = 0; i < 64; ++i) gains.push_back(0.5f + 0.01f * static_cast<float>(i));
    for (int j = 0; j < kCoefficients; ++j) sigmas.push_back(1.0f / static_cast<float>(j + 1));
    codes.assign(static_cast<size_t>((bit + 7) / 8 + kRoom), 0);
    write_row_planes(leaves.data(), kCoefficients, rows.data(), n_rows, codes.data());
  }

  void expect(const std::vector<uint8_t>& depths) {
    const int count = rows[0].count, n_rows = static_cast<int>(rows.size());
    std::vector<PlaneRow> asked = rows;
    for (size_t j = 0; j < rows.size(); ++j) asked[j].depth = depths[j];
    std::vector<float> x(static_cast<size_t>(count * kCoefficients), -1);
    read_row_planes(codes.data(), asked.data(), n_rows, gains.data(), sigmas.data(), x.data());
    for (int i = 0; i < count; ++i)
      for (int j = 0; j < kCoefficients; ++j) {
        const size_t at = static_cast<size_t>(i * kCoefficients + j), row = static_cast<size_t>(j);
        float want = 0;
        if (j < n_rows && i < rows[row].count)
          want =
              tree_value(leaves[at], depths[row]) * (gains[static_cast<size_t>(i)] * sigmas[row]);
        ASSERT_EQ(x[at], want) << "token " << i << ", row " << j;
      }
  }

  std::vector<PlaneRow> rows;
  std::vector<uint8_t> leaves, codes;
  std::vector<float> gains, sigmas;
};

TEST(RowPlanes, ReadsBackEveryDepthOfEveryWidth) {
  for_each_target([](const std::string& target) {
    SCOPED_TRACE(target);
    for (int width = 1; width <= 8; ++width)
      for (const int count : {1, 7, 8, 33, 63, 64})
        for (const size_t n_rows : {1, 5, 32})
          for (const int others : {0, 3, 448}) {
            Written made(width, count, static_cast<int>(n_rows), others);
            for (int depth = 0; depth <= width; ++depth)
              made.expect(std::vector<uint8_t>(n_rows, static_cast<uint8_t>(depth)));
            std::vector<uint8_t> mixed;
            for (size_t j = 0; j < n_rows; ++j)
              mixed.push_back(static_cast<uint8_t>(j * 5 % static_cast<size_t>(width + 1)));
            made.expect(mixed);
          }
  });
}

// What is not asked for may be anything.
TEST(RowPlanes, UnreadPlanesMeanNothing) {
  for (const int others : {0, 10}) {
    Written made(8, 50, 32, others);
    std::vector<uint8_t> depths;
    std::vector<bool> asked(made.codes.size() * 8);
    for (size_t j = 0; j < 32; ++j) {
      depths.push_back(static_cast<uint8_t>(j % 9));
      for (int s = 0; s < depths[j]; ++s)
        for (int i = 0; i < made.rows[j].count; ++i)
          asked[static_cast<size_t>(made.rows[j].bit + s * made.rows[j].stride + i)] = true;
    }
    for (size_t bit = 0; bit < asked.size(); ++bit)
      if (!asked[bit]) made.codes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    made.expect(depths);
  }
}

}  // namespace
}  // namespace kvist::kernels
