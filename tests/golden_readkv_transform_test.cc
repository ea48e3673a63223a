// SPDX-License-Identifier: MIT
// ReadKV's signs and transforms against reference arrays.
#include <gtest/gtest.h>

#include "kvist/methods/read/transform.h"
#include "tests/support/golden.h"

namespace kvist {
namespace {

using nlohmann::json;
using Kind = HeadTransform::Kind;

TEST(GoldenReadKv, Signs) {
  const std::string folder = golden::whole_suite("readkv");
  if (folder.empty()) GTEST_SKIP() << "the reference arrays are not here";
  const golden::Suite suite(folder);
  const json& item = suite.find("signs");
  const uint64_t seed = item["params"]["seed"];
  const auto expect = [&](const char* role, int d, Kind kind, uint32_t salt) {
    const HeadTransform u = HeadTransform::hadamard(d, seed, kind, salt);
    EXPECT_TRUE(suite.expect(item, role, std::vector<int32_t>(u.signs().begin(), u.signs().end())));
  };
  expect("k", 64, Kind::key, 0);
  expect("v", 64, Kind::value, 0);
  expect("k_salt5", 96, Kind::key, 5);
}

TEST(GoldenReadKv, Transforms) {
  const std::string folder = golden::whole_suite("readkv");
  if (folder.empty()) GTEST_SKIP() << "the reference arrays are not here";
  const golden::Suite suite(folder);
  int seen = 0;
  for (const json& item : suite.cases()) {
    if (item["stage"] != "transform") continue;
    SCOPED_TRACE(item["name"].get<std::string>());
    const json& params = item["params"];
    const HeadTransform u = HeadTransform::hadamard(params["d"], params["seed"],
                                                    params["kind"] == "K" ? Kind::key : Kind::value,
                                                    params["layer_salt"]);
    auto x = suite.floats(item["inputs"]["x"]);
    u.apply(x.data.data(), x.shape[0]);
    EXPECT_TRUE(suite.expect(item, "y", x.data));
    ++seen;
  }
  EXPECT_EQ(seen, 7);
}

}  // namespace
}  // namespace kvist
