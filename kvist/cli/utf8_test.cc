// SPDX-License-Identifier: MIT
// UTF-8 against an independent decoder over all short byte strings that matter, and cut at every
// place.
#include "kvist/cli/utf8.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace kvist {
namespace {

std::string encode(uint32_t c) {
  const auto byte = [](uint32_t b) { return std::string(1, static_cast<char>(b)); };
  if (c < 0x80) return byte(c);
  if (c < 0x800) return byte(0xC0 | c >> 6) + byte(0x80 | (c & 63));
  if (c < 0x10000) return byte(0xE0 | c >> 12) + byte(0x80 | (c >> 6 & 63)) + byte(0x80 | (c & 63));
  return byte(0xF0 | c >> 18) + byte(0x80 | (c >> 12 & 63)) + byte(0x80 | (c >> 6 & 63)) +
         byte(0x80 | (c & 63));
}

TEST(Utf8, AcceptsEveryCodePointAndNoSurrogate) {
  for (uint32_t c = 0; c <= 0x10FFFF; ++c) {
    const bool surrogate = c >= 0xD800 && c <= 0xDFFF;
    ASSERT_EQ(first_invalid_utf8(encode(c)).has_value(), surrogate) << std::hex << c;
  }
  EXPECT_TRUE(first_invalid_utf8(encode(0x110000)).has_value());
}

TEST(Utf8, CountsTheWellFormedTwoAndThreeByteStrings) {
  int two = 0, three = 0;
  for (int a = 0x80; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      const std::string pair{static_cast<char>(a), static_cast<char>(b)};
      two += !first_invalid_utf8(pair);
      for (int c = 0; c < 256; ++c)
        three += !first_invalid_utf8(pair + static_cast<char>(c)) && first_invalid_utf8(pair);
    }
  }
  EXPECT_EQ(two, 0x800 - 0x80);
  EXPECT_EQ(three, 0x10000 - 0x800 - 0x800);  // one character of three bytes, surrogates left out
}

TEST(Utf8, NamesTheFirstBadByte) {
  EXPECT_EQ(first_invalid_utf8("abc\xFF"), 3u);
  EXPECT_EQ(first_invalid_utf8("ab\xC3"), 2u);
  EXPECT_EQ(first_invalid_utf8("\xC0\x80"), 0u);
}

TEST(Utf8Stream, GivesTheSameTextHoweverItIsCut) {
  const std::string text = "a\u00e9\u20ac\U0001F600z";
  for (size_t first = 0; first <= text.size(); ++first) {
    for (size_t second = first; second <= text.size(); ++second) {
      Utf8Stream stream;
      std::string out;
      for (const std::string& part :
           {text.substr(0, first), text.substr(first, second - first), text.substr(second)}) {
        const std::string piece = stream.push(part);
        EXPECT_FALSE(first_invalid_utf8(piece));
        out += piece;
      }
      EXPECT_EQ(out + stream.finish(), text);
    }
  }
}

TEST(Utf8Stream, ReplacesWhatCannotBecomeACharacter) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xFF"), "a\uFFFD");
  EXPECT_EQ(stream.push("\xE2\x82"), "");
  EXPECT_EQ(stream.push("x"), "\uFFFD\uFFFDx");
  EXPECT_EQ(stream.push("\xE2"), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
}

}  // namespace
}  // namespace kvist
