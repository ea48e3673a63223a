// SPDX-License-Identifier: MIT
// Values of the reference implementation, and that parts add up.
#include "kvist/core/digest.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace kvist {
namespace {

uint64_t of(std::initializer_list<std::string_view> parts) {
  Digest digest;
  for (std::string_view part : parts) digest.add(std::span<const char>(part));
  return digest.value();
}

TEST(Digest, IsXxh64) {
  EXPECT_EQ(of({}), 0xEF46DB3751D8E999ull) << "xxHash's own test vector of no bytes, seed 0";
  EXPECT_EQ(of({"a"}), 0xD24EC4F1A98C6E5Bull);
  EXPECT_EQ(of({"abc", "", "def"}), of({"abcdef"}));
  EXPECT_NE(of({"abcdef"}), of({"abcdeg"}));
}

TEST(Digest, ReadsBuffers) {
  Buffer<int32_t> buffer(3);
  buffer[1] = 7;
  const std::vector<int32_t> same{0, 7, 0};
  Digest one, two;
  one.add(buffer);
  two.add(std::span<const int32_t>(same));
  EXPECT_EQ(one.value(), two.value());
}

}  // namespace
}  // namespace kvist
