// SPDX-License-Identifier: MIT
// What VarRate's encoder computes, stage by stage, against reference arrays.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "kvist/core/thread_pool.h"
#include "kvist/methods/array_rows.h"
#include "kvist/methods/rank/anchors.h"
#include "tests/support/golden.h"

namespace kvist {
namespace {

using nlohmann::json;

// Keys, values and window queries of one layer, as the cases name them.
class Layer {
 public:
  Layer(const golden::Suite& suite, const json& item)
      : k_(suite.floats(item["inputs"]["k"])),
        v_(suite.floats(item["inputs"]["v"])),
        q_(suite.floats(item["inputs"]["q"])) {
    const auto positions = suite.ints(item["inputs"]["q_pos"]).data;
    const int kv_heads = static_cast<int>(k_.shape[1]), d = static_cast<int>(k_.shape[2]);
    const int heads = static_cast<int>(q_.shape[1]);
    keys_ = std::make_unique<ArrayRows>(k_.data.data(), kv_heads, d);
    values_ = std::make_unique<ArrayRows>(v_.data.data(), kv_heads, d);
    for (int f = 0; f < d / 2; ++f) rope_.frequencies.push_back(std::pow(1e5, -2.0 * f / d));
    rope_.adjacent = true;
    input.n_layers = 30;
    input.n_tokens = 320;
    input.kv_heads = kv_heads;
    input.heads = heads;
    input.head_dim = d;
    input.keys = keys_.get();
    input.values = values_.get();
    input.rope = &rope_;
    input.logit_scale = 1 / std::sqrt(static_cast<float>(d));
    input.pool = &pool_;
    const std::string name = item["inputs"]["k"];
    input.layer = std::stoi(name.substr(name.find('L') + 1));
    // The rows of the window: the last 64 positions of the prefix, which lie side by side.
    int64_t first = 0;
    while (positions[static_cast<size_t>(first)] != input.n_tokens - 64) ++first;
    input.q = {q_.data.data() + first * heads * d, {64, heads, d}};
    EXPECT_EQ(positions[static_cast<size_t>(first + 63)], input.n_tokens - 1);
    rotation = std::make_unique<RotationTable>(rope_, input.n_tokens);
  }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  LayerInput input;
  std::unique_ptr<RotationTable> rotation;
  int width() const { return 2 * input.kv_heads * input.head_dim; }

 private:
  golden::Array<float> k_, v_, q_;
  std::unique_ptr<ArrayRows> keys_, values_;
  Rope rope_;
  ThreadPool pool_{2};
};

// Anchor positions of all neighbours, nearest first.
std::vector<int32_t> positions_of(const std::vector<uint16_t>& neighbours, const AnchorSets& sets) {
  std::vector<int32_t> out;
  for (const uint16_t a : neighbours) out.push_back(sets.anchors[a]);
  return out;
}

std::vector<float> residuals(const Buffer<float>& z, int width, const AnchorSets& sets,
                             const std::vector<uint16_t>& neighbours, size_t c) {
  std::vector<float> out;
  std::vector<float> mean(static_cast<size_t>(width));
  for (size_t i = 0; i < sets.coded.size(); ++i) {
    anchor_mean(z.data(), width, sets, {neighbours.data() + i * c, c}, mean.data());
    for (size_t j = 0; j < mean.size(); ++j)
      out.push_back(z[static_cast<size_t>(sets.coded[i]) * mean.size() + j] - mean[j]);
  }
  return out;
}

class GoldenVarRate : public testing::Test {
 protected:
  void SetUp() override {
    const std::string folder = golden::whole_suite("varrate");
    if (folder.empty()) GTEST_SKIP() << "the reference arrays are not here";
    suite_ = std::make_unique<golden::Suite>(folder);
  }
  // Calls fn(case) for all cases whose name begins so; fails where there is none.
  template <typename Fn>
  void each(const std::string& prefix, const Fn& fn) {
    int seen = 0;
    for (const json& item : suite_->cases()) {
      const std::string name = item["name"];
      if (!name.starts_with(prefix)) continue;
      SCOPED_TRACE(name);
      fn(item);
      ++seen;
    }
    EXPECT_GT(seen, 0);
  }
  std::unique_ptr<golden::Suite> suite_;
};

TEST_F(GoldenVarRate, UnrotatesKeys) {
  int compared = 0;  // of large arrays, only one layer's are kept
  each("unrotate_", [&](const json& item) {
    const Layer layer(*suite_, item);
    const Buffer<float> z = joint_rows(layer.input, *layer.rotation, 1);
    compared += suite_->expect(item, "z", std::vector<float>(z.begin(), z.end()));
  });
  EXPECT_GT(compared, 0);
}

TEST_F(GoldenVarRate, FindsAnchorsAndResiduals) {
  int compared = 0;
  each("anchors_", [&](const json& item) {
    const Layer layer(*suite_, item);
    const Buffer<float> z = joint_rows(layer.input, *layer.rotation, 1);
    const AnchorSets sets = anchor_sets(layer.input.n_tokens, 16, 64);
    EXPECT_TRUE(suite_->expect(item, "anchors", sets.anchors));
    EXPECT_TRUE(suite_->expect(item, "exact", sets.exact));
    EXPECT_TRUE(suite_->expect(item, "coded", sets.coded));
    const auto neighbours =
        nearest_anchors(z.data(), layer.width(), sets, 4, false, *layer.input.pool);
    EXPECT_TRUE(suite_->expect(item, "neighbours", positions_of(neighbours, sets)));
    compared += suite_->expect(item, "residual", residuals(z, layer.width(), sets, neighbours, 4));
  });
  EXPECT_GT(compared, 0);
}

TEST_F(GoldenVarRate, FindsAnchorsAtAWiderStride) {
  each("rate_", [&](const json& item) {
    if (!item["expected"].contains("neighbours")) return;
    const Layer layer(*suite_, item);
    const Buffer<float> z = joint_rows(layer.input, *layer.rotation, 1);
    const AnchorSets sets = anchor_sets(layer.input.n_tokens, item["params"]["stride"], 64);
    const auto neighbours =
        nearest_anchors(z.data(), layer.width(), sets, 4, false, *layer.input.pool);
    EXPECT_TRUE(suite_->expect(item, "neighbours", positions_of(neighbours, sets)));
  });
}

}  // namespace
}  // namespace kvist
