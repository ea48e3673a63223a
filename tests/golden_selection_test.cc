// SPDX-License-Identifier: MIT
// The selection baselines against reference arrays, case by case: scores from the keys, values and
// queries of a layer, and the sets kept.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>

#include "kvist/core/error.h"
#include "kvist/core/npy.h"
#include "kvist/methods/array_rows.h"
#include "kvist/methods/select/adakv.h"
#include "kvist/methods/select/budget.h"
#include "kvist/methods/select/by_score.h"
#include "kvist/methods/select/kvzip.h"
#include "kvist/methods/select/pyramidkv.h"
#include "kvist/methods/spec.h"
#include "tests/support/golden.h"

namespace kvist {
namespace {

using nlohmann::json;

// This suite names its files where they are used.
class Files {
 public:
  explicit Files(const std::string& folder) : folder_(folder) {
    std::ifstream file(std::filesystem::path(folder) / "manifest.json");
    manifest_ = json::parse(file);
  }
  const json& manifest() const { return manifest_; }
  template <typename T>
  golden::Array<T> read(const json& array) const {
    NpyFile file((std::filesystem::path(folder_) / array.at("file").get<std::string>()).string(),
                 std::is_same_v<T, float> ? NpyType::float32 : NpyType::int32);
    const Buffer<T> data = file.read_all<T>();
    return {file.shape(), {data.begin(), data.end()}};
  }

 private:
  std::string folder_;
  json manifest_;
};

const Files* files() {
  static const std::string folder = golden::whole_suite("selection");
  static const std::unique_ptr<Files> all =
      folder.empty() ? nullptr : std::make_unique<Files>(folder);
  return all.get();
}

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  if (files() == nullptr) return names;
  for (const json& item : files()->manifest()["cases"]) names.push_back(item["name"]);
  return names;
}

// One array of a case, cut by the model's layers: [layers] of [rows][heads][head_dim].
class Layers {
 public:
  Layers(const Files& from, const json& array, const json& layers)
      : data_(from.read<float>(array)), layers_(layers) {}
  bool has(int layer) const {
    return std::find(layers_.begin(), layers_.end(), layer) != layers_.end();
  }
  const float* at(int layer) const {
    const auto index = std::find(layers_.begin(), layers_.end(), layer) - layers_.begin();
    return data_.data.data() + index * data_.shape[1] * data_.shape[2] * data_.shape[3];
  }
  TensorView<const float, 3> view(int layer) const {
    return {at(layer), {data_.shape[1], data_.shape[2], data_.shape[3]}};
  }

 private:
  golden::Array<float> data_;
  std::vector<int> layers_;
};

std::string spec_of(const json& item, const std::string& method) {
  std::string spec = str(method, "(ratio=", item["ratio"].dump());
  if (method == "adakv") spec += str(",scorer=", item["scorer"].get<std::string>());
  for (const auto& [name, value] : item["parameters"].items()) {
    if (name == "kvzip_plus_normalization") continue;  // false everywhere
    const bool whole =
        value.is_number_float() && value.get<double>() == std::floor(value.get<double>());
    spec += str(",", name, "=", whole ? str(value.get<int>()) : value.dump());
  }
  return spec + ")";
}

class GoldenSelection : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (files() == nullptr) GTEST_SKIP() << "no reference arrays";
    for (const json& each : files()->manifest()["cases"]) {
      if (each["name"] == GetParam()) item = each;
    }
    source = files()->manifest()["inputs"][item["input"].get<std::string>()];
    scores = files()->read<float>(item["scores"]);
    counts = files()->read<int32_t>(item["kept_count"]);
    kept = files()->read<int32_t>(item["kept"]).data;
    removed = Ratio::parse(item["ratio"].dump());
    n = source["n_tokens"];
    kv_heads = source["kv_heads"];
  }

  // Reference scores of the index-th layer of the case.
  Scores reference(size_t index) const {
    Scores out;
    for (int head = 0; head < kv_heads; ++head) {
      const auto begin =
          scores.data.begin() + (static_cast<std::ptrdiff_t>(index) * kv_heads + head) * n;
      out.emplace_back(begin, begin + n);
    }
    return out;
  }
  std::vector<std::vector<int32_t>> reference_kept(size_t index) const {
    const auto* count = counts.data.data();
    auto at = kept.begin();
    for (size_t i = 0; i < index * static_cast<size_t>(kv_heads); ++i) at += count[i];
    std::vector<std::vector<int32_t>> out;
    for (int head = 0; head < kv_heads; ++head) {
      const int32_t size = count[index * static_cast<size_t>(kv_heads) + static_cast<size_t>(head)];
      out.emplace_back(at, at + size);
      at += size;
    }
    return out;
  }
  LayerInput plain(int layer) {
    LayerInput in;
    in.layer = layer;
    in.n_layers = source["n_layers"];
    in.n_tokens = n;
    in.kv_heads = kv_heads;
    in.heads = source["heads"];
    in.head_dim = source["head_dim"];
    in.logit_scale = static_cast<float>(1 / std::sqrt(source["head_dim"].get<double>()));
    in.pool = &pool;
    return in;
  }
  // At most 2e-5 of the head's largest score that is no sentinel.
  void expect_scores(const Scores& got, size_t index) const {
    const Scores want = reference(index);
    double sentinel = std::numeric_limits<double>::infinity();
    if (item["has_sentinel"]) {
      sentinel = 0;
      for (const float x : scores.data) sentinel = std::max(sentinel, static_cast<double>(x));
      for (const auto& head : want) {  // of this layer
        const double most = *std::max_element(head.begin(), head.end());
        sentinel = std::min(sentinel, most);
      }
    }
    for (size_t head = 0; head < want.size(); ++head) {
      double most = 0;
      for (double x : want[head]) {
        if (x < sentinel) most = std::max(most, std::fabs(x));
      }
      for (size_t i = 0; i < want[head].size(); ++i) {
        if (want[head][i] >= sentinel) continue;
        ASSERT_NEAR(got[head][i], want[head][i], 2e-5 * most) << "head " << head << " token " << i;
      }
    }
  }

  json item, source;
  golden::Array<float> scores;
  golden::Array<int32_t> counts;
  std::vector<int32_t> kept;
  Ratio removed;
  int n = 0, kv_heads = 0;
  ThreadPool pool{2};
};

// The cut alone: reference scores in, reference set out.
TEST_P(GoldenSelection, SetFromReferenceScores) {
  const size_t n_layers = item["layers"].size();
  const std::string method = item["method"];
  const auto n_kept = static_cast<int>(reference_kept_tokens(n, removed));
  std::vector<Scores> all;
  std::vector<Selection> selections;
  for (size_t i = 0; i < n_layers; ++i) {
    const LayerInput in = plain(item["layers"][i]);
    all.push_back(reference(i));
    if (method == "kvzip") {
      Selection& one = selections.emplace_back();
      keep_across_layers({&all.back(), 1}, kvzip_pruned(int64_t{kv_heads} * n, removed), {&one, 1});
    } else if (method == "adakv") {
      const Ratio safeguard = Ratio::parse(item["parameters"]["alpha_safeguard"].dump());
      selections.push_back(keep_best_of_all(in, all.back(), n_kept, safeguard, false));
    } else if (method == "pyramidkv") {
      const json& p = item["parameters"];
      const int budget =
          pyramid_budget(n, removed, p["window_size"], p["beta"], in.layer, in.n_layers);
      selections.push_back(keep_best(in, all.back(), budget, false));
    } else {
      selections.push_back(keep_best(in, all.back(), n_kept, false));
    }
  }
  if (method == "kvzip" && !item["parameters"]["layerwise"].get<bool>()) {
    keep_across_layers(all, kvzip_pruned(int64_t(n_layers) * kv_heads * n, removed), selections);
  }
  for (size_t i = 0; i < n_layers; ++i) EXPECT_EQ(selections[i].kept, reference_kept(i)) << i;
}

// The whole method on keys, values and queries.
TEST_P(GoldenSelection, ScoresAndSetFromArrays) {
  const json& arrays = source["arrays"];
  const auto open = [&](const char* name) {
    return Layers(*files(), arrays[name], arrays[name]["layers"]);
  };
  const Layers k = open("k"), v = open("v"), q = open("q"), q_pre = open("qpre");
  Rope rope;
  for (float x : files()->read<float>(arrays["inv_freq"]).data)
    rope.frequencies.push_back(static_cast<double>(x));
  const auto selector = parse_spec(spec_of(item, item["method"])).make_selector();
  size_t n_checked = 0;
  std::vector<Selection> selections;
  for (size_t i = 0; i < item["layers"].size(); ++i) {
    const int layer = item["layers"][i];
    const auto& formula = item["formula_layers"];
    if (std::find(formula.begin(), formula.end(), layer) == formula.end()) continue;
    LayerInput in = plain(layer);
    const ArrayRows keys(k.at(layer), kv_heads, in.head_dim),
        values(v.at(layer), kv_heads, in.head_dim);
    in.keys = &keys;
    in.values = &values;
    in.q = q.view(layer);
    if (q_pre.has(layer)) in.q_pre = q_pre.view(layer);
    in.rope = &rope;
    if (selector->needs().every_query) selector->observe(in);
    if (selector->needs().repeat_chunk > 0) {
      const json& passes = source["kvzip"][item["kvzip_inputs"].get<std::string>()];
      for (const json& chunk : passes["chunks"]) {
        const Layers input_q(*files(), chunk["q_input"], passes["layers"]);
        const Layers input_k(*files(), chunk["k_input"], passes["layers"]);
        const ArrayRows input_keys(input_k.at(layer), kv_heads, in.head_dim);
        selector->observe_repetition(
            in, {chunk["begin"], chunk["end"], 0, input_q.view(layer), &input_keys});
      }
    }
    selections.push_back(selector->select(in, true));
    expect_scores(selections.back().scores, i);
    // A budget of all layers needs all layers.
    if (item["head_budget"] != "model") {
      EXPECT_EQ(selections.back().kept, reference_kept(i)) << i;
    }
    ++n_checked;
  }
  selector->settle(selections);
  if (n_checked < item["layers"].size()) return;
  for (size_t i = 0; i < n_checked; ++i) EXPECT_EQ(selections[i].kept, reference_kept(i)) << i;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GoldenSelection);
INSTANTIATE_TEST_SUITE_P(Reference, GoldenSelection, ::testing::ValuesIn(case_names()),
                         [](const auto& each) {
                           std::string name = each.param;
                           for (char& c : name) {
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace kvist
