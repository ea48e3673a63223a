// SPDX-License-Identifier: MIT
// Digests of FIPS 180-4's examples, and of every length around a block.
#include "kvist/core/sha256.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvist {
namespace {

TEST(Sha256, ExamplesOfTheStandard) {
  EXPECT_EQ(sha256_hex(std::string_view("")),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex(std::string_view("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(
      sha256_hex(std::string_view("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
      "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string_view(std::string(1000000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// A hash over the digests of 0 to 130 bytes 'a', made with Python's hashlib.
TEST(Sha256, LengthsAroundABlock) {
  std::string all;
  for (size_t n = 0; n <= 130; ++n) all += sha256_hex(std::string_view(std::string(n, 'a')));
  EXPECT_EQ(sha256_hex(std::string_view(all)),
            "5eee4c50e1b5ec4f1a47f34c25ca988850b49da7904f5ab1b3abc5cc0ae66ef9");
}

TEST(Sha256, TokenIdsAreLittleEndian) {
  const std::vector<int32_t> ids{1, 15043, 3186};
  EXPECT_EQ(sha256_hex(ids).substr(0, 16), "a6b779dab7aeaeb2");
}

}  // namespace
}  // namespace kvist
