// SPDX-License-Identifier: MIT
// Tests of messages, kinds and checked sizes.
#include "kvist/core/error.h"

#include <gtest/gtest.h>

#include <set>

namespace kvist {
namespace {

TEST(Error, JoinsItsPartsAsText) {
  EXPECT_EQ(str("head ", 3, ": ", 0.5, ' ', std::string("x"), true), "head 3: 0.5 xtrue");
  EXPECT_EQ(str(), "");
}

TEST(Error, CarriesKindAndMessage) {
  const Error error(ErrorKind::corrupt, "a: b");
  EXPECT_EQ(error.kind(), ErrorKind::corrupt);
  EXPECT_STREQ(error.what(), "a: b");
  EXPECT_THROW(throw error, std::exception);
}

TEST(Error, EveryKindHasItsOwnName) {
  std::set<std::string> names;
  for (ErrorKind kind :
       {ErrorKind::invalid_argument, ErrorKind::unsupported, ErrorKind::not_found, ErrorKind::io,
        ErrorKind::corrupt, ErrorKind::exhausted, ErrorKind::interrupted}) {
    names.insert(name(kind));
  }
  EXPECT_EQ(names.size(), 7u);
  EXPECT_EQ(names.count("unknown"), 0u);
}

TEST(CheckedMul, RefusesWhatNeedsMoreThan63Bits) {
  EXPECT_EQ(checked_mul(1u << 31, 1u << 31, "x"), uint64_t{1} << 62);
  EXPECT_EQ(checked_mul(0, UINT64_MAX, "x"), 0u);
  EXPECT_EQ(checked_mul(INT64_MAX, 1, "x"), static_cast<uint64_t>(INT64_MAX));
  EXPECT_THROW(checked_mul(uint64_t{1} << 32, uint64_t{1} << 31, "x"), Error);
  try {
    checked_mul(UINT64_MAX, 2, "rows");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::corrupt);
    EXPECT_NE(std::string(error.what()).find("rows"), std::string::npos);
  }
}

TEST(AssertDeathTest, NamesTheConditionAndAborts) {
  EXPECT_DEATH(KVIST_ASSERT(1 + 1 == 3), "1 \\+ 1 == 3");
  KVIST_ASSERT(true);
}

}  // namespace
}  // namespace kvist
