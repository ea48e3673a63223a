// SPDX-License-Identifier: MIT
// The peak goes up with what is touched, and down when it is reset.
#include "kvist/core/peak_rss.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kvist/core/buffer.h"

namespace kvist {
namespace {

TEST(PeakRss, RisesAndIsReset) {
  if (!reset_peak_rss()) GTEST_SKIP() << "the system does not reset the peak";
  const uint64_t before = peak_rss_bytes();
  ASSERT_GT(before, 0u);
  constexpr size_t kSize = 64 << 20;
  {
    Buffer<std::byte> touched(kSize);
    std::memset(touched.data(), 1, kSize);
  }
  EXPECT_GE(peak_rss_bytes(), before + kSize * 9 / 10);
  ASSERT_TRUE(reset_peak_rss());
  EXPECT_LT(peak_rss_bytes(), before + kSize / 2);
}

}  // namespace
}  // namespace kvist
