// SPDX-License-Identifier: MIT
#include "kvist/kernels/targets.h"

#include <gtest/gtest.h>

#include "kvist/core/error.h"
#include "kvist/kernels/attend.h"

namespace kvist::kernels {
namespace {

TEST(Targets, TheBestIsInUseUntilOneIsPinned) {
  const auto names = available_targets();
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(current_target(), names.front());
  pin_target(names.back());
  EXPECT_EQ(current_target(), names.back());
  EXPECT_EQ(available_targets(), names);
  pin_target(names.front());
  EXPECT_EQ(current_target(), names.front());
}

TEST(Targets, EachIsPinnedInTurnAndTheChoiceRestored) {
  const auto names = available_targets();
  pin_target(names.back());
  std::vector<std::string> seen;
  for_each_target([&](const std::string& name) {
    EXPECT_EQ(current_target(), name);
    const bool avx512 = name.rfind("avx3", 0) == 0;
    EXPECT_EQ(avx512_allowed(), avx512);
    if (!avx512) {
      EXPECT_FALSE(has_bf16_dot());
    }
    seen.push_back(name);
  });
  EXPECT_EQ(seen, names);
  EXPECT_EQ(current_target(), names.back());
  pin_target(names.front());
}

TEST(Targets, AnUnknownNameIsRefusedWithTheList) {
  try {
    pin_target("mmx");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_argument);
    EXPECT_NE(std::string(e.what()).find(available_targets().front()), std::string::npos);
  }
}

}  // namespace
}  // namespace kvist::kernels
