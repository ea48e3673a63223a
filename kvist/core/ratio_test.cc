// SPDX-License-Identifier: MIT
// Tests of exact fractions: parsing, printing, and token counts that floating point gets wrong.
#include "kvist/core/ratio.h"

#include <gtest/gtest.h>

#include "kvist/core/error.h"

namespace kvist {
namespace {

TEST(Ratio, ThreeSpellingsAreOneRatio) {
  for (const char* text : {"0.7", "7/10", "70%", ".7", "0.70", "14/20", "70.0%", "00.7"}) {
    EXPECT_EQ(Ratio::parse(text), (Ratio{7, 10})) << text;
  }
  EXPECT_EQ(Ratio::parse("0"), (Ratio{0, 1}));
  EXPECT_EQ(Ratio::parse("0%"), (Ratio{0, 1}));
  EXPECT_EQ(Ratio::parse("1."), (Ratio{1, 1}));
  EXPECT_EQ(Ratio::parse("2/3"), (Ratio{2, 3}));
  EXPECT_EQ(Ratio::parse("12.5%"), (Ratio{1, 8}));
  EXPECT_EQ(Ratio::parse("3/2"), (Ratio{3, 2}));
  EXPECT_EQ(Ratio::parse("0.99999999999"), (Ratio{99999999999, 100000000000}));
}

TEST(Ratio, RefusesWhatIsNotARatioAndQuotesIt) {
  for (const char* text :
       {"",     "%",   ".",    "-0.5",  "+1",    "1e-1",          "0.5.5",
        "1/0",  "1/",  "/2",   "1/2/3", "0.5/2", "half",          " 0.5",
        "0.5 ", "0,5", "50%%", "nan",   "0x1",   "1234567890123", "0.1234567890123"}) {
    try {
      Ratio::parse(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
      EXPECT_NE(std::string(error.what()).find(std::string("'") + text + "'"), std::string::npos)
          << error.what();
    }
  }
}

TEST(Ratio, PrintsShortDecimalsElseAFractionAndReadsThemBack) {
  EXPECT_EQ((Ratio{7, 10}).text(), "0.7");
  EXPECT_EQ((Ratio{1, 3}).text(), "1/3");
  EXPECT_EQ((Ratio{0, 1}).text(), "0");
  EXPECT_EQ((Ratio{1, 1}).text(), "1");
  EXPECT_EQ((Ratio{1, 20}).text(), "0.05");
  EXPECT_EQ((Ratio{5, 4}).text(), "1.25");
  for (int64_t den = 1; den <= 128; ++den) {
    for (int64_t num = 0; num <= den; ++num) {
      const Ratio ratio = Ratio::parse(str(num, "/", den));
      EXPECT_EQ(Ratio::parse(ratio.text()), ratio) << num << "/" << den;
    }
  }
}

TEST(Ratio, FloorMulIsExactWhereDoublesAreNot) {
  // int(N * (1 - r)) in doubles is one too small here.
  EXPECT_EQ(floor_mul(10, Ratio::parse("0.9").complement()), 1);
  EXPECT_EQ(floor_mul(5, Ratio::parse("0.8").complement()), 1);
  EXPECT_EQ(floor_mul(90, Ratio::parse("0.3").complement()), 63);
  EXPECT_LT(static_cast<int>(10 * (1 - 0.9)), 1);
  for (int64_t n = 0; n <= 500; ++n) {
    for (int64_t tenths = 0; tenths <= 10; ++tenths) {
      EXPECT_EQ(floor_mul(n, Ratio::parse(str(tenths, "/10"))), n * tenths / 10);
    }
  }
  EXPECT_EQ(floor_mul(INT64_MAX, {999999999999, 1000000000000}), 9223372036845552434);
}

TEST(Ratio, ComplementAddsUpToOne) {
  const Ratio r = Ratio::parse("0.3");
  EXPECT_EQ(r.complement(), (Ratio{7, 10}));
  EXPECT_EQ(r.complement().complement(), r);
  EXPECT_DOUBLE_EQ(r.value(), 0.3);
}

}  // namespace
}  // namespace kvist
