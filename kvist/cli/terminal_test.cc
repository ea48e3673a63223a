// SPDX-License-Identifier: MIT
// Sizes, times, tables and the progress line, as people read them.
#include "kvist/cli/terminal.h"

#include <gtest/gtest.h>

namespace kvist {
namespace {

TEST(Terminal, WritesBytesInTheUnitThatFits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes((uint64_t{1} << 20) - 1), "1.0 MiB");
  EXPECT_EQ(human_bytes(uint64_t{88} << 20), "88.0 MiB");
  EXPECT_EQ(human_bytes(UINT64_MAX), "16777216.0 TiB");
}

TEST(Terminal, WritesTimesAndCounts) {
  EXPECT_EQ(human_seconds(0.44), "0.4 s");
  EXPECT_EQ(human_seconds(12.3), "12 s");
  EXPECT_EQ(human_seconds(185), "3 min 05 s");
  EXPECT_EQ(human_count(7), "7");
  EXPECT_EQ(human_count(1234567), "1,234,567");
  EXPECT_EQ(human_count(123456), "123,456");
}

TEST(Terminal, WidthCountsCharactersAndNoEscapes) {
  EXPECT_EQ(display_width("abc"), 3);
  EXPECT_EQ(display_width("\x1b[2mé─\x1b[0m"), 2);
}

TEST(Table, LinesUpFirstColumnLeftAndTheOthersRight) {
  Table table({"cache", "size"});
  table.add({"none", "88.0 MiB"});
  table.add({"é", "1 B"});
  EXPECT_EQ(table.text(),
            "cache      size\n"
            "─────  ────────\n"
            "none   88.0 MiB\n"
            "é           1 B\n");
}

TEST(Progress, SaysHowFarHowFastAndHowLong) {
  const std::string half = progress_line("reading", 512, 1024, 2, "tokens");
  EXPECT_NE(half.find("━━━━━━━━━━━━┄┄┄┄┄┄┄┄┄┄┄┄ 512 / 1,024 tokens, 256 tok/s, 2.0 s left"),
            std::string::npos)
      << half;
  EXPECT_EQ(progress_line("x", 0, 0, 0, "layers").find("left"), std::string::npos);
}

TEST(Paint, LeavesTextAloneWhereTheStreamIsNoTerminal) {
  EXPECT_EQ(paint(-1, Shade::strong, "text"), "text");
}

}  // namespace
}  // namespace kvist
