// SPDX-License-Identifier: MIT
// Tests of the ledger: every cell of the paper's tables that follows from its rules, and the
// figures it derives from them.
#include "kvist/methods/read/ledger.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "kvist/methods/read/paper_cells.h"

namespace kvist {
namespace {

const ModelGeometry kQwen7{28, 4, 128}, kMistral{32, 8, 128};

int wrong(int64_t table_bytes) {
  int n = 0;
  for (const PaperCell& cell : paper_cells(table_bytes)) n += !cell.equal;
  return n;
}

TEST(Ledger, Rk50AllCellsOfTables2And6) {
  const std::vector<PaperCell> cells = paper_cells();
  EXPECT_EQ(cells.size(), 154u);
  std::set<std::string> seen;
  for (const PaperCell& cell : cells) {
    EXPECT_TRUE(cell.equal) << "table " << cell.table << ", " << cell.row << ", " << cell.column
                            << ", " << cell.figure << ": " << cell.ours << " for " << cell.paper;
    EXPECT_NEAR(cell.ours, cell.paper, 0.0501);
    seen.insert(cell.row + cell.column + cell.figure);
  }
  EXPECT_EQ(seen.size(), cells.size());
}

TEST(Ledger, Rk50TableBytesAreDetermined) {
  EXPECT_EQ(wrong(4050), 0);
  EXPECT_EQ(wrong(4121), 0);
  EXPECT_GT(wrong(4049), 0);
  EXPECT_GT(wrong(4122), 0);
}

double reads_of_document(const LedgerRule& rule, const ModelGeometry& m) {
  return reads(rule, m, 1, 2048).percent();
}

TEST(Ledger, Rk50TwoModelsInFull) {
  constexpr double kMean = 50.0 / 2048;  // half a token for SparQ's mean of values
  const struct {
    LedgerRule rule;
    bool dagger;
    double qwen_reads, qwen_capacity, mistral_reads, mistral_capacity;
  } rows[] = {
      {readkv_rule(4, {4, 1}), false, 25.390, 25.101, 25.293, 25.099},
      {readkv_rule(4, {2, 1}), false, 12.890, 25.101, 12.793, 25.099},
      {readkv_rule(8, {2, 1}), false, 12.890, 50.101, 12.793, 50.099},
      {readkv_rule(8, {4, 1}), false, 25.390, 50.101, 25.293, 50.099},
      {readkv_rule(8, {4, 1}), true, 36.049, 57.230, 34.631, 56.337},
      {readkv_rule(8, {2, 1}), true, 25.334, 57.230, 23.694, 56.337},
      {turboquant_rule(), true, 36.721, 36.719, 35.402, 35.400},
      {kivi_rule(2), false, 26.226, 23.828, 26.226, 23.828},
      {kivi_rule(4), false, 37.576, 35.547, 37.576, 35.547},
      {lloyd_rule(), false, 13.087, 12.988, 13.086, 12.988},
      {sparq_rule(32, 128), false, 24.735, 100 + kMean, 24.735, 100 + kMean},
      {sparq_rule(16, 64), false, 12.538, 100 + kMean, 12.538, 100 + kMean},
      {nested_rule(32, 128), false, 8.099, 50.101 + kMean, 8.001, 50.099 + kMean},
  };
  for (const auto& row : rows) {
    const auto rule = [&](const ModelGeometry& m) {
      return row.dagger ? protect(row.rule, m) : row.rule;
    };
    EXPECT_NEAR(reads_of_document(rule(kQwen7), kQwen7), row.qwen_reads, 6e-4);
    EXPECT_NEAR(capacity(rule(kQwen7), kQwen7, 2048).percent(), row.qwen_capacity, 6e-4);
    EXPECT_NEAR(reads_of_document(rule(kMistral), kMistral), row.mistral_reads, 6e-4);
    EXPECT_NEAR(capacity(rule(kMistral), kMistral, 2048).percent(), row.mistral_capacity, 6e-4);
  }
}

// Printed capacities in tenths: Qwen2.5-7B and Mistral-7B.
void expect_capacity(const LedgerRule& rule, bool dagger, int64_t tokens, int qwen, int mistral) {
  const auto of = [&](const ModelGeometry& m) {
    return capacity(dagger ? protect(rule, m) : rule, m, tokens).tenths();
  };
  EXPECT_EQ(of(kQwen7), qwen) << tokens;
  EXPECT_EQ(of(kMistral), mistral) << tokens;
}

TEST(Ledger, Rk51CapacitiesOfTables3And7) {
  const auto expect = [](const LedgerRule& rule, bool dagger, int qwen_7500, int mistral_7500,
                         int qwen_3500, int mistral_3500) {
    expect_capacity(rule, dagger, 7500, qwen_7500, mistral_7500);
    expect_capacity(rule, dagger, 3500, qwen_3500, mistral_3500);
  };
  expect(kivi_rule(2), false, 199, 199, 207, 207);
  expect(turboquant_rule(), true, 367, 354, 367, 354);
  expect(sparq_rule(32, 128), false, 1000, 1000, 1000, 1000);
  expect(readkv_rule(4, {2, 1}), false, 250, 250, 251, 251);
  expect(readkv_rule(8, {2, 1}), false, 500, 500, 501, 501);
  expect(readkv_rule(8, {4, 1}), false, 500, 500, 501, 501);
  expect(readkv_rule(8, {2, 1}), true, 572, 563, 572, 563);
  expect(readkv_rule(8, {4, 1}), true, 572, 563, 572, 563);
}

TEST(Ledger, Rk51CapacitiesOfTable8) {
  const auto expect = [](const LedgerRule& rule, bool dagger, int qwen_4k, int qwen_8k,
                         int mistral_4k, int mistral_8k) {
    expect_capacity(rule, dagger, 4096, qwen_4k, mistral_4k);
    expect_capacity(rule, dagger, 8192, qwen_8k, mistral_8k);
  };
  expect(readkv_rule(4, {4, 1}), false, 251, 250, 250, 250);
  expect(readkv_rule(4, {2, 1}), false, 251, 250, 250, 250);
  expect(readkv_rule(8, {2, 1}), false, 501, 500, 500, 500);
  expect(readkv_rule(8, {4, 1}), false, 501, 500, 500, 500);
  expect(kivi_rule(2), false, 213, 200, 213, 200);
  expect(turboquant_rule(), true, 367, 367, 354, 354);
  expect(sparq_rule(32, 128), false, 1000, 1000, 1000, 1000);
  expect(nested_rule(32, 128), false, 501, 500, 501, 500);
}

// Reads of the prompts in Tables 3 and 8 depend on lengths that are not printed; one mean length a
// column explains its rows. Reads are affine in 1/T, so the mean is all that matters.
TEST(Ledger, ReadsOfTable8FollowFromOneLength) {
  const auto read = [](const LedgerRule& rule, int64_t T) {
    return reads(rule, kQwen7, T, T).tenths();
  };
  for (int64_t T : {3865, 3980}) {
    EXPECT_EQ(read(readkv_rule(8, {2, 1}), T), 126);
    EXPECT_EQ(read(sparq_rule(32, 128), T), 158);
    EXPECT_EQ(read(nested_rule(32, 128), T), 33);
  }
  for (int64_t T : {7845, 7990}) {
    EXPECT_EQ(read(readkv_rule(8, {2, 1}), T), 126) << T;
    EXPECT_EQ(read(sparq_rule(32, 128), T), 141) << T;
    EXPECT_EQ(read(nested_rule(32, 128), T), 24) << T;
  }
}

// The side-by-side table of the baselines' specification: one call at T.
TEST(Ledger, SideBySide) {
  const auto expect = [](const LedgerRule& rule, bool dagger, int64_t T, double want_reads,
                         double want_capacity) {
    const LedgerRule r = dagger ? protect(rule, kQwen7) : rule;
    EXPECT_NEAR(reads(r, kQwen7, T, T).percent(), want_reads, 6e-5);
    EXPECT_NEAR(capacity(r, kQwen7, T).percent(), want_capacity, 6e-5);
  };
  expect(readkv_rule(8, {2, 1}), false, 32768, 12.5122, 50.0063);
  expect(readkv_rule(8, {4, 1}), true, 8192, 35.7561, 57.1647);
  expect(turboquant_rule(), true, 4096, 36.7194, 36.7188);
  expect(kivi_rule(2), false, 4096, 21.2891, 21.2891);
  expect(kivi_rule(4), false, 8192, 32.3242, 32.3242);
  expect(lloyd_rule(), false, 4096, 12.9396, 12.9395);
  expect(sparq_rule(32, 128), false, 8192, 14.0793, 100 + 50.0 / 8192);
  expect(sparq_rule(16, 64), false, 32768, 6.4497, 100 + 50.0 / 32768);
  expect(nested_rule(32, 128), false, 32768, 1.7730, 50.0063 + 50.0 / 32768);
}

TEST(Ledger, Bq02KiviTails) {
  const auto tail = [](int64_t T) {  // of both, from the bits of one head of 128 channels
    const int64_t bits = kivi_rule(2).read({1, 1, 128}, T);
    return (bits - 2 * T * 128 * 3) / (128 * 13);
  };
  EXPECT_EQ(tail(1), 2);
  EXPECT_EQ(tail(127), 254);
  EXPECT_EQ(tail(128), 256);
  EXPECT_EQ(tail(129), 1 + 128);
  EXPECT_EQ(tail(2048), 256);
}

TEST(Ledger, HalfRoundsUp) {
  EXPECT_EQ((Share{1, 8}).tenths(), 125);
  EXPECT_EQ((Share{25, 2000}).tenths(), 13);  // 1.25 percent
  EXPECT_EQ((Share{1, 1}).tenths(), 1000);
}

TEST(Ledger, ProtectsFewLayersOfSmallModels) {
  EXPECT_EQ(protect(kivi_rule(2), {30, 3, 64}).dense_layers, 4);
  EXPECT_EQ(protect(kivi_rule(2), {4, 1, 8}).dense_layers, 4);
  EXPECT_EQ(protect(kivi_rule(2), {3, 1, 8}).dense_layers, 2);
  EXPECT_EQ(protect(kivi_rule(2), {1, 1, 8}).dense_layers, 0);
}

TEST(Ledger, Rk52Reuse) {
  EXPECT_NEAR(100 * reuse_overhead(8, 4, 8192, 128), 0.787354, 5e-7);
  EXPECT_EQ(steps_to_amortize(8, 4, 0.01), 201);
  EXPECT_LE(reuse_overhead(8, 4, 0, 201), 0.01);
  EXPECT_EQ(steps_to_gain(8, 2, 4, 0), 6);
  EXPECT_EQ(steps_to_gain(8, 2, 4, 8192), 3);
}

TEST(Ledger, Rk53Throughput) {
  EXPECT_NEAR(relative_throughput(.367, .367, .25), 2.7248, 5e-5);
  EXPECT_NEAR(relative_throughput(.254, .501, .25), 3.2960, 5e-5);
  EXPECT_NEAR(relative_throughput(.262, .238, .25), 3.8880, 5e-5);
  EXPECT_NEAR(relative_throughput(.129, .501, .25), 4.9164, 5e-5);
}

TEST(Ledger, Rk54DenseCacheOfQwen) {
  EXPECT_EQ(28 * dense_token_bits(kQwen7) / 8 * 8192, 469'762'048);
}

TEST(Ledger, Rk55PayloadOfOneLayer) {
  const ModelGeometry layer{1, 4, 128};
  const auto mebibytes = [](int64_t bits) { return static_cast<double>(bits) / 8 / 1048576; };
  const int64_t calibration = 8 * 8 * 4 * 128;
  EXPECT_EQ(mebibytes(readkv_rule(8, {2, 1}).stored(layer, 8192) - calibration), 8.0);
  EXPECT_EQ(mebibytes(readkv_rule(4, {2, 1}).stored(layer, 8192) - calibration), 4.0);
  EXPECT_EQ(mebibytes(8192 * dense_token_bits(layer)), 16.0);
  EXPECT_EQ(mebibytes(turboquant_rule().stored(layer, 8192)), 4.1875);
}

TEST(Ledger, Rk56PrintedComparisons) {
  const auto fewer = [](double ours, double theirs) { return 100 * (1 - ours / theirs); };
  EXPECT_NEAR(fewer(.093, .154), 39.6, 0.05);  // latency; the paper says 39
  EXPECT_NEAR(fewer(.051, .093), 45.2, 0.05);
  EXPECT_NEAR(fewer(2.80, 7.28), 61.5, 0.05);  // bytes from memory, warm and evicted
  EXPECT_NEAR(fewer(2.74, 7.92), 65.4, 0.05);
  EXPECT_NEAR(fewer(7.47, 9.38), 20.4, 0.05);
  EXPECT_NEAR(fewer(7.47, 10.84), 31.1, 0.05);
  // Reads at 7,500 tokens as Table 3 prints them, least and most over its six columns.
  EXPECT_NEAR(fewer(12.5, 35.4), 64.7, 0.05);
  EXPECT_NEAR(fewer(12.6, 36.7), 65.7, 0.05);
  EXPECT_NEAR(fewer(12.6, 20.0), 37.0, 0.05);
  EXPECT_NEAR(fewer(12.6, 20.4), 38.2, 0.05);
  const auto document = [](int stored, int rate) {
    return reads_of_document(readkv_rule(stored, {rate, 1}), kQwen7);
  };
  EXPECT_NEAR(fewer(document(4, 2), document(4, 4)), 49.2, 0.05);
}

}  // namespace
}  // namespace kvist
