// SPDX-License-Identifier: MIT
// What counts as equal.
#include "kvist/cli/equal_bytes.h"

#include <gtest/gtest.h>

#include "kvist/core/error.h"

namespace kvist {
namespace {

TEST(EqualBytes, AThousandthApartIsNoComparison) {
  const std::vector<std::string> names{"a", "b", "c"};
  require_equal_bytes(10000, names, std::vector<uint64_t>{10000, 9990, 10010});
  try {
    require_equal_bytes(10000, names, std::vector<uint64_t>{10000, 9989, 10011});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
    const std::string text = error.what();
    EXPECT_NE(text.find("b: 9989 bytes"), std::string::npos) << text;
    EXPECT_NE(text.find("c: 10011 bytes"), std::string::npos);
    EXPECT_EQ(text.find("a: "), std::string::npos);
  }
}

}  // namespace
}  // namespace kvist
