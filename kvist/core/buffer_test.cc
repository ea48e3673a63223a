// SPDX-License-Identifier: MIT
// Tests of owned memory: alignment, zeroing, and that the count of bytes is true.
#include "kvist/core/buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "kvist/core/error.h"

namespace kvist {
namespace {

TEST(Buffer, IsAlignedZeroedAndOfItsSize) {
  for (size_t n : {size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{16383}, size_t{16384},
                   size_t{5000000}}) {
    Buffer<float> buffer(n);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    EXPECT_EQ(buffer.size(), n);
    EXPECT_EQ(buffer.size_bytes(), n * 4);
    EXPECT_GE(buffer.allocated_bytes(), buffer.size_bytes());
    EXPECT_LT(buffer.allocated_bytes(), buffer.size_bytes() + 4096);
    EXPECT_TRUE(std::all_of(buffer.begin(), buffer.end(), [](float x) { return x == 0; }));
    buffer[n - 1] = 1;
    EXPECT_EQ(buffer.span().back(), 1.0f);
  }
  EXPECT_TRUE(Buffer<int>().empty());
  EXPECT_EQ(Buffer<int>(0).allocated_bytes(), 0u);
}

// Or the system maps small pages at both ends, and readers that jump about wait for page walks.
TEST(Buffer, LargeOnesBeginWhereAHugePageMay) {
  constexpr size_t kHuge = size_t{1} << 21;
  for (size_t n : {kHuge, kHuge + 1, 3 * kHuge - 1}) {
    Buffer<uint8_t> buffer(n);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kHuge, 0u) << n;
    buffer[n - 1] = 1;
  }
}

// Just below the size from which blocks are mappings, rounding up reaches it.
TEST(Buffer, SizesAroundTheFirstMappingAreFreedAsTheyWereMade) {
  for (size_t n = 65536 - 200; n <= 65536 + 200; ++n) {
    Buffer<uint8_t> buffer(n);
    EXPECT_EQ(buffer.allocated_bytes() % 4096 == 0, n > 65536 - 64) << n;
    buffer[n - 1] = 1;
  }
}

TEST(Buffer, ReusedMemoryIsZeroAgain) {
  for (int round = 0; round < 50; ++round) {
    Buffer<uint8_t> buffer(1000);
    ASSERT_TRUE(std::all_of(buffer.begin(), buffer.end(), [](uint8_t x) { return x == 0; }));
    std::fill(buffer.begin(), buffer.end(), uint8_t{0xFF});
  }
}

TEST(Buffer, TotalsFollowEveryAllocationMoveAndRelease) {
  const uint64_t before = buffer_totals().live_bytes;
  reset_buffer_peak();
  {
    Buffer<double> a(1000), b(100000);
    const uint64_t both = a.allocated_bytes() + b.allocated_bytes();
    EXPECT_EQ(buffer_totals().live_bytes, before + both);
    Buffer<double> c = std::move(a);
    EXPECT_TRUE(a.empty());
    EXPECT_EQ(buffer_totals().live_bytes, before + both);
    c = std::move(b);  // frees what c held
    EXPECT_EQ(buffer_totals().live_bytes, before + c.allocated_bytes());
    EXPECT_EQ(buffer_totals().peak_bytes, before + both);
  }
  EXPECT_EQ(buffer_totals().live_bytes, before);
  reset_buffer_peak();
  EXPECT_EQ(buffer_totals().peak_bytes, before);
}

TEST(Buffer, AnImpossibleSizeIsExhausted) {
  try {
    Buffer<uint8_t> huge(size_t{1} << 50);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::exhausted);
    EXPECT_NE(std::string(error.what()).find("1125899906842624"), std::string::npos);
  }
}

}  // namespace
}  // namespace kvist
