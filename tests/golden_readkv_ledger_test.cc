// SPDX-License-Identifier: MIT
// ReadKV's ledger against exact fractions for a small model.
#include <gtest/gtest.h>

#include <numeric>

#include "kvist/methods/read/ledger.h"
#include "tests/support/golden.h"

namespace kvist {
namespace {

using nlohmann::json;

std::string percent_text(const Share& share) {
  const int64_t common = std::gcd(100 * share.num, share.den);
  return std::to_string(100 * share.num / common) + "/" + std::to_string(share.den / common);
}

TEST(GoldenReadKv, Ledger) {
  const std::string folder = golden::whole_suite("readkv");
  if (folder.empty()) GTEST_SKIP() << "the reference arrays are not here";
  const golden::Suite suite(folder);
  const json params = suite.find("ledger_smollm2")["params"];
  const ModelGeometry model{params["layers"], params["kv_heads"], params["head_dim"]};
  ASSERT_EQ(params["rows"].size(), 12u);
  for (const json& row : params["rows"]) {
    LedgerRule rule = readkv_rule(row["W"], {row["R"], 1}, row["X"]);
    if (row["dense_layers"] != 0) rule = protect(rule, model);
    EXPECT_EQ(rule.dense_layers, row["dense_layers"]);
    const bool document = row["calls"] == "document 1..2048";
    const Share read = document ? reads(rule, model, 1, 2048) : reads(rule, model, 513, 543);
    EXPECT_EQ(percent_text(read), row["reads_percent"]) << row;
    EXPECT_EQ(percent_text(capacity(rule, model, document ? 2048 : 544)), row["capacity_percent"])
        << row;
  }
}

}  // namespace
}  // namespace kvist
