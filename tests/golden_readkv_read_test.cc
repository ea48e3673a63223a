// SPDX-License-Identifier: MIT
// ReadKV's codes, layouts and two-stage reader against reference arrays, case by case, on every
// SIMD target and for several numbers of workers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "kvist/cache/coded_reader.h"
#include "kvist/cache/prefix.h"
#include "kvist/kernels/targets.h"
#include "tests/support/golden.h"

namespace kvist {
namespace {

using nlohmann::json;

// A case's layer: codes are made from k and v with the calibration arrays of the case.
struct Layer {
  Layer(const golden::Suite& suite, const json& item)
      : k(suite.floats(item["inputs"]["k"])),
        v(suite.floats(item["inputs"]["v"])),
        q(suite.floats(item["inputs"]["q"])),
        d(static_cast<int>(k.shape[2])),
        u_k(HeadTransform::hadamard(d, 20260801, HeadTransform::Kind::key, 0)),
        u_v(HeadTransform::hadamard(d, 20260801, HeadTransform::Kind::value, 0)) {
    const json& inputs = item["inputs"];
    for (const char* name : {"mu_k", "sigma_k", "mu_v", "sigma_v", "m2q"})
      arrays.push_back(suite.floats(inputs[name]).data);
    shape = {.kv_heads = static_cast<int>(k.shape[1]),
             .heads = static_cast<int>(q.shape[1]),
             .head_dim = d};
    code = {.u_k = {static_cast<size_t>(shape.kv_heads), &u_k},
            .u_v = {static_cast<size_t>(shape.kv_heads), &u_v},
            .mu_k = arrays[0].data(),
            .sigma_k = arrays[1].data(),
            .mu_v = arrays[2].data(),
            .sigma_v = arrays[3].data(),
            .m2q = arrays[4].data()};
  }

  // Tokens [begin, end).
  CodedLayer coded(const ReadPlan& plan, int begin, int end) const {
    CodedLayer layer(shape, code, plan, begin);
    layer.reserve(end - begin);
    layer.resize(end - begin);
    const int width = shape.kv_heads * d;
    for (int j = begin; j < end; ++j)
      layer.write(j - begin, &k.data[static_cast<size_t>(j * width)],
                  &v.data[static_cast<size_t>(j * width)]);
    return layer;
  }

  golden::Array<float> k, v, q;
  int d;
  HeadTransform u_k, u_v;
  std::vector<std::vector<float>> arrays;
  KvShape shape;
  LayerCode code;
};

ReadPlan plan_of(const json& params) {
  ReadPlan plan{.width = params["W"],
                .key_rate = Ratio::parse(params["R_K"].get<std::string>()),
                .value_rate = Ratio::parse(params["R_V"].get<std::string>())};
  plan.per_head = params.value("per_head", false);
  plan.min_depth = params.value("t0", 0);
  plan.pairs = params.value("packets", false);
  if (params.contains("two")) {
    const json& on = params["two"]["on"];
    plan.low = params["two"]["low"];
    plan.two_depth_keys = on.is_null() || on == "k" || on == "kv";
    plan.two_depth_values = on.is_null() || on == "v" || on == "kv";
  }
  plan.physical_values = params.value("sg", "") == "physical";
  return plan;
}

struct Result {
  std::vector<float> out, a_k, a_v;
  std::vector<uint8_t> t_k, t_v;
  ReadTrace trace;
};

// The row at the end of T tokens, of which the first n_prefix are the prefix.
Result read(const Layer& layer, const ReadPlan& plan, const float* q, int n_tokens, int n_prefix,
            int n_workers) {
  const CodedLayer prefix = layer.coded(plan, 0, n_prefix);
  const CodedLayer suffix = layer.coded(plan, n_prefix, n_tokens);
  Result result;
  result.out.resize(static_cast<size_t>(layer.shape.heads * layer.d));
  result.trace.observe = [&](const RowSchedule& row) {
    result.a_k.assign(row.key_weights.begin(), row.key_weights.end());
    result.t_k.assign(row.key_depths.begin(), row.key_depths.end());
    result.a_v.assign(row.value_weights.begin(), row.value_weights.end());
    result.t_v.assign(row.value_depths.begin(), row.value_depths.end());
  };
  const SuffixRows rows{
      .row = 0, .n_rows = 1, .first_token = n_tokens - n_prefix - 1, .coded = &suffix};
  const AttendCall call{.q = q,
                        .out = result.out.data(),
                        .n_rows = 1,
                        .logit_scale = 1 / std::sqrt(static_cast<float>(layer.d)),
                        .suffixes = {&rows, 1},
                        .precision = kernels::Precision::exact,
                        .trace = &result.trace};
  ReadWorkspace workspace;
  workspace.reserve(layer.shape, n_tokens, n_workers);
  std::vector<std::thread> others;
  const auto work = [&](int index) {
    read_coded(&prefix, layer.shape, layer.code, plan, call, workspace, {index, n_workers});
  };
  for (int i = 1; i < n_workers; ++i) others.emplace_back(work, i);
  work(0);
  for (auto& t : others) t.join();
  return result;
}

std::vector<std::string> names(const std::string& stage) {
  std::vector<std::string> out;
  const std::string folder = golden::whole_suite("readkv");
  if (folder.empty()) return out;
  const golden::Suite suite(folder);
  for (const auto& item : suite.cases())
    if (item["stage"] == stage) out.push_back(item["name"]);
  return out;
}

class GoldenRead : public testing::TestWithParam<std::string> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GoldenRead);

TEST_P(GoldenRead, SchedulesAndOutputAreTheReferences) {
  const golden::Suite suite(golden::whole_suite("readkv"));
  const json& item = suite.find(GetParam());
  const json& params = item["params"];
  const Layer layer(suite, item);
  ReadPlan plan = plan_of(params);
  plan.calibrated_keys = GetParam().find("calibration_only") == 0;
  ASSERT_NO_THROW(check(plan));
  const auto positions = suite.ints(item["inputs"]["q_pos"]).data;
  const auto at = std::find(positions.begin(), positions.end(), params["q_pos"].get<int>());
  ASSERT_NE(at, positions.end());
  const float* q = layer.q.data.data() + (at - positions.begin()) * layer.shape.heads * layer.d;
  const int n_tokens = params["T"];
  kernels::for_each_target([&](const std::string& target) {
    SCOPED_TRACE(target);
    const Result got = read(layer, plan, q, n_tokens, n_tokens * 2 / 3, 2);
    EXPECT_TRUE(suite.expect(item, "a_k", got.a_k));
    EXPECT_TRUE(suite.expect(item, "t_k", got.t_k));
    EXPECT_TRUE(suite.expect(item, "a_v", got.a_v));
    EXPECT_TRUE(suite.expect(item, "t_v", got.t_v));
    EXPECT_TRUE(suite.expect(item, "o", got.out));
    EXPECT_EQ(got.trace.key_bits, params["bits_k"].get<int64_t>());
    EXPECT_EQ(got.trace.value_bits, params["bits_v"].get<int64_t>());
    EXPECT_LE(got.trace.key_bits, got.trace.key_budget);
    EXPECT_LE(got.trace.value_bits, got.trace.value_budget);
    // Equal bytes for any number of workers.
    EXPECT_EQ(read(layer, plan, q, n_tokens, n_tokens * 2 / 3, 3).out, got.out);
  });
}
INSTANTIATE_TEST_SUITE_P(Cases, GoldenRead, testing::ValuesIn(names("two-stage reader")),
                         [](const auto& tested) { return tested.param; });

TEST(GoldenReadKv, CodesAreTheReferences) {
  const std::string folder = golden::whole_suite("readkv");
  if (folder.empty()) GTEST_SKIP() << "no suite readkv";
  const golden::Suite suite(folder);
  for (const std::string& name : names("encode")) {
    const json& item = suite.find(name);
    const Layer layer(suite, item);
    const int n = item["params"]["N"];
    const ReadPlan plan{.width = 8};
    kernels::for_each_target([&](const std::string& target) {
      SCOPED_TRACE(name + " " + target);
      const CodedLayer coded = layer.coded(plan, 0, n);
      std::vector<uint8_t> leaf_k, leaf_v;
      for (int j = 0; j < n; ++j)
        for (int head = 0; head < layer.shape.kv_heads; ++head)
          for (int c = 0; c < layer.d; ++c) {
            leaf_k.push_back(coded.key_code(head, j, c));
            leaf_v.push_back(coded.value_code(head, j, c));
          }
      EXPECT_TRUE(suite.expect(item, "leaf_k", leaf_k));
      EXPECT_TRUE(suite.expect(item, "leaf_v", leaf_v));
    });
  }
}

// Codes [token][d] of one head as open blocks.
std::vector<uint8_t> open_blocks(const std::vector<uint8_t>& leaf, int first, int n, int d,
                                 int stride) {
  std::vector<uint8_t> open(static_cast<size_t>((n + 63) / 64 * 64 * d));
  for (int j = 0; j < n; ++j)
    for (int c = 0; c < d; ++c)
      open[static_cast<size_t>((j / 64 * d + c) * 64 + j % 64)] =
          leaf[static_cast<size_t>((first + j) * stride + c)];
  return open;
}

TEST(GoldenReadKv, KeyPagesAreTheReferences) {
  const std::string folder = golden::whole_suite("readkv");
  if (folder.empty()) GTEST_SKIP() << "no suite readkv";
  const golden::Suite suite(folder);
  for (const std::string& name : names("key layout")) {
    const json& item = suite.find(name);
    const auto leaf = suite.bytes(item["inputs"]["leaf"]);
    const int page_tokens = item["params"]["P"];
    const bool heads = leaf.shape.size() == 3;
    const int kv_heads = heads ? static_cast<int>(leaf.shape[1]) : 1;
    const int d = static_cast<int>(leaf.shape.back()), stride = kv_heads * d;
    const int n_pages = static_cast<int>(leaf.shape[0]) / page_tokens;
    for (const auto& [role, width] : {std::pair{"w8", 8}, {"w4", 4}, {"pages", 8}}) {
      if (!item["expected"].contains(role)) continue;
      std::vector<uint8_t> got;
      for (int head = 0; head < kv_heads; ++head) {
        const std::vector<uint8_t> mine(leaf.data.begin() + head * d, leaf.data.end());
        for (int page = 0; page < n_pages; ++page) {
          std::vector<uint8_t> planes(kernels::key_page_bytes(d, width));
          const auto open = open_blocks(mine, page * page_tokens, page_tokens, d, stride);
          kernels::seal_keys(open.data(), page_tokens, d, width, nullptr, planes.data());
          for (int line = 0; line < d * width; ++line)
            got.insert(got.end(), planes.begin() + line * 64,
                       planes.begin() + line * 64 + page_tokens / 8);
        }
      }
      EXPECT_TRUE(suite.expect(item, role, got)) << name;
    }
  }
}

TEST(GoldenReadKv, ValuePacketsAreTheReferences) {
  const std::string folder = golden::whole_suite("readkv");
  if (folder.empty()) GTEST_SKIP() << "no suite readkv";
  const golden::Suite suite(folder);
  for (const std::string& name : names("value layout")) {
    const json& item = suite.find(name);
    const auto leaf = suite.bytes(item["inputs"]["leaf"]);
    const int n = static_cast<int>(leaf.shape[0]), d = static_cast<int>(leaf.shape[2]);
    const int kv_heads = static_cast<int>(leaf.shape[1]);
    for (int width : {8, 4}) {
      const kernels::ValueLayout layout{d, width, item["params"]["q"]};
      std::vector<uint8_t> got;
      for (int head = 0; head < kv_heads; ++head) {
        std::vector<uint8_t> packets(layout.bytes(n));
        for (int j = 0; j < n; ++j)
          kernels::store_values(layout, packets.data(), j, 1,
                                &leaf.data[static_cast<size_t>((j * kv_heads + head) * d)]);
        got.insert(got.end(), packets.begin(), packets.end());
      }
      EXPECT_TRUE(suite.expect(item, width == 8 ? "w8" : "w4", got)) << name;
    }
  }
}

}  // namespace
}  // namespace kvist
