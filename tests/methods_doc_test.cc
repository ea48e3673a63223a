// SPDX-License-Identifier: MIT
// docs/methods.md is what the table of methods prints.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "kvist/methods/describe.h"

namespace kvist {
namespace {

TEST(MethodsDoc, IsWhatTheTablePrints) {
  std::ifstream file(KVIST_SOURCE_DIR "/docs/methods.md");
  ASSERT_TRUE(file) << "docs/methods.md is missing";
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), methods_markdown())
      << "refresh with: kvist methods --markdown > docs/methods.md";
}

}  // namespace
}  // namespace kvist
