// SPDX-License-Identifier: MIT
// ReadKV's tables and ChooseDepths against reference arrays.
#include <gtest/gtest.h>

#include <numeric>

#include "kvist/kernels/tree_code.h"
#include "kvist/methods/read/choose_depths.h"
#include "tests/support/golden.h"

namespace kvist {
namespace {

using nlohmann::json;

TEST(GoldenReadKv, Tables) {
  const std::string folder = golden::whole_suite("readkv");
  if (folder.empty()) GTEST_SKIP() << "the reference arrays are not here";
  const golden::Suite suite(folder);
  const json& item = suite.find("tables");
  using kernels::kTreeCentroids, kernels::kTreeGains, kernels::kTreeThresholds;
  EXPECT_TRUE(
      suite.expect(item, "centroids", std::vector<float>(kTreeCentroids, kTreeCentroids + 510)));
  EXPECT_TRUE(
      suite.expect(item, "thresholds", std::vector<float>(kTreeThresholds, kTreeThresholds + 255)));
  EXPECT_TRUE(suite.expect(item, "gains", std::vector<float>(kTreeGains, kTreeGains + 8)));
}

TEST(GoldenReadKv, ChooseDepths) {
  const std::string folder = golden::whole_suite("readkv");
  if (folder.empty()) GTEST_SKIP() << "the reference arrays are not here";
  const golden::Suite suite(folder);
  int seen = 0;
  for (const json& item : suite.cases()) {
    if (item["stage"] != "ChooseDepths") continue;
    SCOPED_TRACE(item["name"].get<std::string>());
    const auto a = suite.floats(item["inputs"]["a"]);
    const json& params = item["params"];
    DepthWorkspace workspace;
    workspace.reserve(static_cast<int64_t>(a.data.size()));
    std::vector<uint8_t> depths(a.data.size());
    const int64_t spent =
        choose_depths(a.data, params["W"], params["min_depth"], params["B"], depths, workspace);
    EXPECT_EQ(spent, std::accumulate(depths.begin(), depths.end(), int64_t{0}));
    EXPECT_TRUE(suite.expect(item, "t", std::vector<int32_t>(depths.begin(), depths.end())));
    ++seen;
  }
  EXPECT_EQ(seen, 12);
}

}  // namespace
}  // namespace kvist
