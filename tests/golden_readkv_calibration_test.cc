// SPDX-License-Identifier: MIT
// ReadKV's calibration against reference arrays.
#include <gtest/gtest.h>

#include "kvist/methods/read/accumulator.h"
#include "tests/support/golden.h"

namespace kvist {
namespace {

using nlohmann::json;

TEST(GoldenReadKv, Calibration) {
  const std::string folder = golden::whole_suite("readkv");
  if (folder.empty()) GTEST_SKIP() << "the reference arrays are not here";
  const golden::Suite suite(folder);
  int seen = 0;
  for (const json& item : suite.cases()) {
    if (item["stage"] != "calibration") continue;
    SCOPED_TRACE(item["name"].get<std::string>());
    const auto k = suite.floats(item["inputs"]["k"]), v = suite.floats(item["inputs"]["v"]);
    const auto q = suite.floats(item["inputs"]["q"]);
    const int kv_heads = static_cast<int>(k.shape[1]), d = static_cast<int>(k.shape[2]);
    CalibrationAccumulator sums({"m", "r", {1, kv_heads, static_cast<int>(q.shape[1]), d}}, {});
    sums.add(0, item["params"]["N"], k.data.data(), v.data.data(), q.shape[0], q.data.data());
    const auto layer = sums.finish().layers[0];
    EXPECT_TRUE(suite.expect(item, "mu_k", layer.mu_k));
    EXPECT_TRUE(suite.expect(item, "sigma_k", layer.sigma_k));
    EXPECT_TRUE(suite.expect(item, "mu_v", layer.mu_v));
    EXPECT_TRUE(suite.expect(item, "sigma_v", layer.sigma_v));
    ++seen;
  }
  EXPECT_EQ(seen, 2);
}

TEST(GoldenReadKv, CalibrationFixedKeys) {
  const std::string folder = golden::whole_suite("readkv");
  if (folder.empty()) GTEST_SKIP() << "the reference arrays are not here";
  const golden::Suite suite(folder);
  const json& item = suite.find("calibration_only_keys_L5");
  ReadCalibration c;
  c.source.shape = {1, 3, 9, 64};
  c.layers.resize(1);
  c.layers[0].sigma_k = suite.floats(item["inputs"]["sigma_k"]).data;
  c.layers[0].m2q = suite.floats(item["inputs"]["m2q"]).data;
  std::vector<float> a(3 * 64);
  calibration_fixed_keys(c, 0, a);
  EXPECT_TRUE(suite.expect(item, "a_k", a));
}

}  // namespace
}  // namespace kvist
