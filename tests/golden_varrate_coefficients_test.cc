// SPDX-License-Identifier: MIT
// VarRate's widths of coefficients against reference arrays: bit for bit.
#include <gtest/gtest.h>

#include "kvist/methods/rank/coefficients.h"
#include "tests/support/golden.h"

namespace kvist {
namespace {

using nlohmann::json;

// The coefficients of a case, token after token.
struct Tokens {
  Tokens(const golden::Suite& suite, const json& item)
      : coefficients(suite.floats(item["inputs"]["coef"]).data),
        ranks(suite.ints(item["inputs"]["ranks"]).data) {}
  template <typename Fn>
  void each(const Fn& fn) const {
    size_t at = 0;
    for (const int32_t rank : ranks) {
      fn(std::span(coefficients).subspan(at, static_cast<size_t>(rank)));
      at += static_cast<size_t>(rank);
    }
  }
  std::vector<float> coefficients;
  std::vector<int32_t> ranks;
};

class GoldenVarRateCoefficients : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string folder = golden::whole_suite("varrate");
    if (folder.empty()) GTEST_SKIP() << "the reference arrays are not beside this checkout";
    suite = std::make_unique<golden::Suite>(folder);
  }
  std::unique_ptr<golden::Suite> suite;
};

TEST_F(GoldenVarRateCoefficients, GroupCodes) {
  int cases = 0;
  for (const json& item : suite->cases()) {
    if (item["stage"] != "group quantiser") continue;
    ++cases;
    SCOPED_TRACE(item["name"].get<std::string>());
    const int bits = item["params"]["bits"];
    ASSERT_EQ(item["params"]["group"], kRankChunk);
    std::vector<uint8_t> codes, packed;
    std::vector<float> lo, step;
    Tokens(*suite, item).each([&](std::span<const float> x) {
      for (size_t j = 0; j < x.size(); j += kRankChunk) {
        const auto group = x.subspan(j, std::min<size_t>(kRankChunk, x.size() - j));
        const size_t at = codes.size(), n = group.size();
        codes.resize(at + n);
        const GroupScale scale = code_group(group, bits, &codes[at]);
        lo.push_back(to_float(scale.lo));
        step.push_back(to_float(scale.step));
        const size_t bytes = (n * static_cast<size_t>(bits) + 7) / 8;
        packed.resize(packed.size() + bytes);
        pack_codes(&codes[at], static_cast<int>(n), bits, &packed[packed.size() - bytes]);
      }
    });
    EXPECT_TRUE(suite->expect(item, "codes", codes));
    EXPECT_TRUE(suite->expect(item, "lo", lo));
    EXPECT_TRUE(suite->expect(item, "sc", step));
    EXPECT_TRUE(suite->expect(item, "packed", packed));
  }
  EXPECT_GE(cases, 3);
}

TEST_F(GoldenVarRateCoefficients, TreeCodesAndGains) {
  int cases = 0;
  for (const json& item : suite->cases()) {
    if (item["stage"] != "sigma quantiser") continue;
    ++cases;
    const std::vector<float> sigma = suite->floats(item["inputs"]["sigma"]).data;
    std::vector<float> gains;
    std::vector<uint8_t> leaves;
    Tokens(*suite, item).each([&](std::span<const float> x) {
      const f16 gain = gain_of(x, sigma.data());
      gains.push_back(to_float(gain));
      leaves.resize(leaves.size() + x.size());
      code_leaves(x, gain, sigma.data(), leaves.data() + leaves.size() - x.size());
    });
    EXPECT_TRUE(suite->expect(item, "gain", gains));
    EXPECT_TRUE(suite->expect(item, "leaf", leaves));
  }
  EXPECT_GE(cases, 1);
}

TEST_F(GoldenVarRateCoefficients, SpreadOfRows) {
  int cases = 0;
  for (const json& item : suite->cases()) {
    if (item["stage"] != "row scales") continue;
    ++cases;
    EXPECT_TRUE(
        suite->expect(item, "sigma", row_sigmas(suite->floats(item["inputs"]["eig"]).data)));
  }
  EXPECT_GE(cases, 2);
}

}  // namespace
}  // namespace kvist
