// SPDX-License-Identifier: MIT
// kvist apply on reference arrays laid out as a dump: codes and depths are the references', outputs
// within their tolerance.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "kvist/cli/test_command.h"
#include "kvist/core/error.h"
#include "kvist/core/npy.h"
#include "tests/support/golden.h"

namespace kvist {

extern const Command apply_command;

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kModelLayers = 30;

class GoldenApply : public testing::Test {
 protected:
  void SetUp() override {
    const std::string folder = golden::whole_suite("readkv");
    if (folder.empty()) GTEST_SKIP() << "the reference arrays are not here";
    suite_ = std::make_unique<golden::Suite>(folder);
    root_ = fs::temp_directory_path() / str("kvist_golden_apply_test_", getpid());
    fs::create_directories(root_ / "in");
  }
  void TearDown() override { fs::remove_all(root_); }

  void put(const std::string& name, const std::vector<int64_t>& shape,
           const std::vector<float>& data) {
    write_npy((root_ / "in" / (name + ".npy")).string(), NpyType::float32, shape, data.data());
  }

  // The arrays of a case, and its query alone.
  void put_dump(const json& item) {
    const json &inputs = item["inputs"], &params = item["params"];
    for (const char* name : {"k", "v", "mu_k", "sigma_k", "mu_v", "sigma_v", "m2q"}) {
      const auto array = suite_->floats(inputs[name]);
      put(name, array.shape, array.data);
    }
    const auto positions = suite_->ints(inputs["q_pos"]).data;
    const int position = params["q_pos"];
    const auto row = std::find(positions.begin(), positions.end(), position) - positions.begin();
    const auto q = suite_->floats(inputs["q"]);
    const auto begin = q.data.begin() + row * q.shape[1] * q.shape[2];
    put("q", {q.shape[1], 1, q.shape[2]}, {begin, begin + q.shape[1] * q.shape[2]});
    write_npy((root_ / "in" / "q_pos.npy").string(), NpyType::int32, {1}, &position);
    std::ofstream(root_ / "in" / "meta.json")
        << json{{"layers", {params["layer"]}}, {"n_layers", kModelLayers}};
  }

  template <typename T>
  std::vector<T> result(const char* name, NpyType type) {
    NpyFile file((root_ / "out" / name).string(), type);
    const Buffer<T> data = file.template read_all<T>();
    return {data.begin(), data.end()};
  }

  std::unique_ptr<golden::Suite> suite_;
  fs::path root_;
};

std::string method_of(const json& params) {
  return str("readkv(store=", params["W"].get<int>(),
             ",read_keys=", params["R_K"].get<std::string>(),
             ",read_values=", params["R_V"].get<std::string>(), ")");
}

TEST_F(GoldenApply, CodesDepthsAndOutputsAreTheReferences) {
  for (const char* name :
       {"read_L5_p319_W8_K3_V1", "read_L20_p319_W8_K2_V2", "read_L5_p319_W4_K2_V2"}) {
    SCOPED_TRACE(name);
    const json& item = suite_->find(name);
    const json& params = item["params"];
    put_dump(item);
    ASSERT_EQ(
        run_command(apply_command, {"--method", method_of(params), "--in", (root_ / "in").string(),
                                    "--out", (root_ / "out").string()}),
        kDone);
    const int drop = 8 - params["W"].get<int>();
    for (const auto& [file, leaves] :
         {std::pair{"codes_k.npy", "leaf_k"}, {"codes_v.npy", "leaf_v"}}) {
      auto want = suite_->bytes(item["inputs"][leaves]).data;
      for (uint8_t& code : want) code = static_cast<uint8_t>(code >> drop);
      auto got = result<uint8_t>(file, NpyType::uint8);
      ASSERT_GE(got.size(), want.size());
      got.resize(want.size());  // the reference has no codes of the last tokens
      EXPECT_TRUE(got == want) << file;
    }
    EXPECT_TRUE(suite_->expect(item, "t_k", result<uint8_t>("depths_k.npy", NpyType::uint8)));
    // The reference has the T tokens that the query sees.
    const int kv_heads = params["kv_heads"], seen = params["T"];
    const auto all = result<uint8_t>("depths_v.npy", NpyType::uint8);
    const auto tokens = static_cast<int64_t>(all.size()) / kv_heads;
    std::vector<uint8_t> depths;
    for (int g = 0; g < kv_heads; ++g) {
      const auto begin = all.begin() + g * tokens;
      depths.insert(depths.end(), begin, begin + seen);
    }
    EXPECT_TRUE(suite_->expect(item, "t_v", depths));
    EXPECT_TRUE(suite_->expect(item, "o", result<float>("out.npy", NpyType::float32)));
    std::ifstream file(root_ / "out" / "ledger.json");
    const json row = json::parse(file)["rows"][0];
    EXPECT_EQ(row["key_bits"], params["bits_k"]);
    EXPECT_EQ(row["value_bits"], params["bits_v"]);
  }
}

}  // namespace
}  // namespace kvist
