// SPDX-License-Identifier: MIT
// Tests of kvist apply with methods that code and read: what is written, where the calibration
// comes from, and that nothing is written when the input is refused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kvist/cli/test_command.h"
#include "kvist/core/error.h"
#include "kvist/core/npy.h"
#include "kvist/methods/read/accumulator.h"
#include "kvist/methods/test_layer.h"

namespace kvist {

extern const Command apply_command;

namespace {

namespace fs = std::filesystem;
using Shape = std::vector<int64_t>;
using Bytes8 = std::vector<uint8_t>;
using Floats = std::vector<float>;

constexpr int kTokens = 600, kHeads = 2, kGroup = 3, kDim = 8, kQueries = 3;
constexpr int kAllHeads = kHeads * kGroup;

// Layers 4 and 9 of ten, with queries in the order that apply reads.
class ApplyRead : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() /
            str("kvist_apply_read_test_", getpid(), "_",
                testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
    fs::create_directories(root_ / "in");
    Floats k, v, q;
    for (uint64_t i = 0; i < 2; ++i) {
      layers_.push_back(TestLayer::random(kTokens, kHeads, kGroup, kDim, kQueries, i + 5));
      const TestLayer& layer = layers_.back();
      k.insert(k.end(), layer.k.begin(), layer.k.end());
      v.insert(v.end(), layer.v.begin(), layer.v.end());
      for (int h = 0; h < kAllHeads; ++h) {
        for (int t = 0; t < kQueries; ++t) {
          const auto at = layer.q.begin() + (t * kAllHeads + h) * kDim;
          q.insert(q.end(), at, at + kDim);
        }
      }
    }
    put("k.npy", {2, kTokens, kHeads, kDim}, k);
    put("v.npy", {2, kTokens, kHeads, kDim}, v);
    put("q.npy", {2, kAllHeads, kQueries, kDim}, q);
    put_positions({kTokens - 1, 0, 530});
    std::ofstream(root_ / "in" / "meta.json") << R"({"layers": [4, 9], "n_layers": 10})";
  }
  void TearDown() override { fs::remove_all(root_); }

  void put(const char* name, const Shape& shape, const Floats& data) {
    write_npy((root_ / "in" / name).string(), NpyType::float32, shape, data.data());
  }
  void put_positions(const std::vector<int32_t>& at) {
    write_npy((root_ / "in" / "q_pos.npy").string(), NpyType::int32,
              {static_cast<int64_t>(at.size())}, at.data());
  }
  int apply(const std::string& method, const std::string& calibration = "",
            std::string* printed = nullptr) {
    std::vector<std::string> args = {
        "--method", method, "--in", (root_ / "in").string(), "--out", (root_ / "out").string()};
    if (!calibration.empty()) args.insert(args.end(), {"--calibration", calibration});
    return run_command(apply_command, args, printed, printed != nullptr);
  }
  // The message of the refusal; nothing may have been written.
  std::string refusal(const std::string& method = "readkv(calibration=prompt)",
                      const std::string& calibration = "") {
    try {
      apply(method, calibration);
    } catch (const Error& error) {
      EXPECT_FALSE(fs::exists(root_ / "out")) << "something was written";
      return error.what();
    }
    ADD_FAILURE() << "not refused";
    return "";
  }
  template <typename T>
  std::vector<T> read(const char* name, NpyType type, const Shape& shape) {
    NpyFile file((root_ / "out" / name).string(), type);
    EXPECT_EQ(file.shape(), shape) << name;
    const Buffer<T> data = file.template read_all<T>();
    return {data.begin(), data.end()};
  }
  nlohmann::json ledger() {
    std::ifstream file(root_ / "out" / "ledger.json");
    return nlohmann::json::parse(file);
  }
  // The measured layers 0 and 1 as a file of ten.
  std::string calibration_file(int n_layers, const ReadBasis& basis = {}) {
    ReadSource source{"a model", "a rope", {n_layers, kHeads, kAllHeads, kDim}};
    CalibrationAccumulator sums(source, basis);
    for (int l = 0; l < n_layers; ++l) {
      const TestLayer& layer = layers_[l == 9 ? 1 : 0];
      sums.add(l, kTokens, layer.k.data(), layer.v.data(), kQueries, layer.q.data());
    }
    const std::string path = (root_ / str("c", n_layers, ".readkv")).string();
    save(sums.finish(), path);
    return path;
  }
  // The same as arrays.
  void put_calibration(const ReadCalibration& c) {
    Floats mu_k, sigma_k, mu_v, sigma_v, m2q;
    const auto add = [](Floats& to, const Floats& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    for (size_t l : {4, 9}) {
      add(mu_k, c.layers[l].mu_k), add(sigma_k, c.layers[l].sigma_k);
      add(mu_v, c.layers[l].mu_v), add(sigma_v, c.layers[l].sigma_v);
      add(m2q, c.layers[l].m2q);
    }
    put("mu_k.npy", {2, kHeads, kDim}, mu_k);
    put("sigma_k.npy", {2, kHeads, kDim}, sigma_k);
    put("mu_v.npy", {2, kHeads, kDim}, mu_v);
    put("sigma_v.npy", {2, kHeads, kDim}, sigma_v);
    put("m2q.npy", {2, kAllHeads, kDim}, m2q);
  }
  // Everything that a run wrote but the calibration's name.
  std::pair<std::vector<Bytes8>, Floats> results() {
    return {{read<uint8_t>("codes_k.npy", NpyType::uint8, {2, kTokens, kHeads, kDim}),
             read<uint8_t>("codes_v.npy", NpyType::uint8, {2, kTokens, kHeads, kDim}),
             read<uint8_t>("depths_k.npy", NpyType::uint8, {2, kQueries, kHeads, kDim}),
             read<uint8_t>("depths_v.npy", NpyType::uint8, {2, kQueries, kHeads, kTokens})},
            read<float>("out.npy", NpyType::float32, {2, kAllHeads, kQueries, kDim})};
  }

  fs::path root_;
  std::vector<TestLayer> layers_;
};

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

// Attention of a query over the first n tokens, plainly.
std::vector<double> exact(const TestLayer& layer, int query, int h, int n) {
  const int g = h / kGroup;
  const float* q = layer.q.data() + (query * kAllHeads + h) * kDim;
  std::vector<double> out(kDim, 0.0);
  double total = 0;
  for (int t = 0; t < n; ++t) {
    double z = 0;
    for (int c = 0; c < kDim; ++c)
      z += double{q[c]} * double{layer.k[static_cast<size_t>((t * kHeads + g) * kDim + c)]};
    const double e = std::exp(z / std::sqrt(double{kDim}));
    total += e;
    for (int c = 0; c < kDim; ++c)
      out[static_cast<size_t>(c)] +=
          e * double{layer.v[static_cast<size_t>((t * kHeads + g) * kDim + c)]};
  }
  for (double& x : out) x /= total;
  return out;
}

TEST_F(ApplyRead, AtFullDepthIsAttentionOverTheTokensThatAQuerySees) {
  ASSERT_EQ(apply("readkv(store=8,read=8,calibration=prompt)"), kDone);
  const Floats out = results().second;
  const int seen[] = {kTokens, 1, 531};
  for (int l = 0; l < 2; ++l) {
    for (int h = 0; h < kAllHeads; ++h) {
      for (int query = 0; query < kQueries; ++query) {
        const auto want = exact(layers_[static_cast<size_t>(l)], query, h, seen[query]);
        double error = 0, norm = 0;
        for (int c = 0; c < kDim; ++c) {
          const float got =
              out[static_cast<size_t>(((l * kAllHeads + h) * kQueries + query) * kDim + c)];
          error += std::pow(double{got} - want[static_cast<size_t>(c)], 2);
          norm += std::pow(want[static_cast<size_t>(c)], 2);
        }
        EXPECT_LT(std::sqrt(error / norm), 0.05) << l << " " << h << " " << query;
      }
    }
  }
}

TEST_F(ApplyRead, DepthsSpendTheBudgetsOfTheLedger) {
  std::string printed;
  ASSERT_EQ(
      apply("readkv(store=4,read_keys=3,read_values=1,calibration=prompt,sinks=2)", "", &printed),
      kDone);
  const auto [bytes, out] = results();
  for (uint8_t code : bytes[0]) ASSERT_LT(code, 16);
  const nlohmann::json book = ledger();
  EXPECT_EQ(nlohmann::json::parse(printed), book);
  EXPECT_EQ(book["calibration"], "prompt");
  EXPECT_EQ(book["payload_bytes"], 2 * 2 * kTokens * kHeads * kDim / 2);
  ASSERT_EQ(book["rows"].size(), 2u * kQueries);
  int64_t key_sum = 0, value_sum = 0, lines = 0;
  for (size_t i = 0; i < book["rows"].size(); ++i) {
    const nlohmann::json& row = book["rows"][i];
    const int64_t n = row["tokens"], coded = std::max<int64_t>(0, n - 2);
    EXPECT_EQ(row["layer"], i < kQueries ? 4 : 9);
    EXPECT_EQ(row["query"], i % kQueries);
    int64_t keys = 0, values = 0;
    for (size_t c = 0; c < kHeads * kDim; ++c) keys += bytes[2][i * kHeads * kDim + c];
    for (size_t g = 0; g < kHeads; ++g) {
      for (size_t t = 0; t < kTokens; ++t) {
        const int depth = bytes[3][(i * kHeads + g) * kTokens + t];
        const bool seen = static_cast<int64_t>(t) < n;
        if (t < 2 && seen) {
          EXPECT_EQ(depth, 16);
        } else {
          EXPECT_LE(depth, seen ? 4 : 0);
          values += depth;
        }
      }
    }
    EXPECT_EQ(row["key_bits"], n * keys);
    EXPECT_EQ(row["value_bits"], kDim * values);
    EXPECT_EQ(row["key_bits_budget"], n * 3 * kHeads * kDim);
    EXPECT_EQ(row["value_bits_budget"], kDim * coded * kHeads);
    EXPECT_EQ(row["dense_bytes"], std::min<int64_t>(n, 2) * 4 * kHeads * kDim);
    key_sum += n * keys, value_sum += kDim * values;
    lines += row["key_lines"].get<int64_t>() + row["value_lines"].get<int64_t>();
  }
  EXPECT_EQ(book["reads"]["key_bits"], key_sum);
  EXPECT_EQ(book["reads"]["value_bits"], value_sum);
  EXPECT_GT(lines, 0);
  EXPECT_EQ(book["reads"]["physical_bytes"],
            lines * 64 + book["reads"]["dense_bytes"].get<int64_t>());
}

TEST_F(ApplyRead, FileAndArraysOfOneCalibrationGiveTheSame) {
  const std::string path = calibration_file(10);
  ASSERT_EQ(apply("readkv(read=2,key_weights=calibration)", path), kDone);
  const auto from_file = results();
  EXPECT_EQ(ledger()["calibration"], path);
  put_calibration(load_calibration(path));
  ASSERT_EQ(apply("readkv(read=2,key_weights=calibration)"), kDone);
  EXPECT_EQ(ledger()["calibration"], "arrays");
  EXPECT_EQ(results(), from_file);
  // It is a calibration on the arrays themselves, in all but the layers that are not here.
  ASSERT_EQ(apply("readkv(read=2,key_weights=calibration,calibration=prompt)"), kDone);
  EXPECT_EQ(results(), from_file);
}

TEST_F(ApplyRead, TheLayerAxisMayBeAbsentAndQueriesSeeAllTokens) {
  ASSERT_EQ(apply("readkv(read=2,calibration=prompt)"), kDone);
  const Floats both = results().second;
  fs::remove(root_ / "in" / "meta.json");
  fs::remove(root_ / "in" / "q_pos.npy");
  const TestLayer& layer = layers_[1];
  put("k.npy", {kTokens, kHeads, kDim}, layer.k);
  put("v.npy", {kTokens, kHeads, kDim}, layer.v);
  put("q.npy", {kAllHeads, 1, kDim}, {layer.q.begin(), layer.q.begin() + kAllHeads * kDim});
  ASSERT_EQ(apply("readkv(read=2,calibration=prompt)"), kDone);
  const Floats out = read<float>("out.npy", NpyType::float32, {kAllHeads, 1, kDim});
  for (int h = 0; h < kAllHeads; ++h) {
    for (int c = 0; c < kDim; ++c) {
      EXPECT_EQ(out[static_cast<size_t>(h * kDim + c)],
                both[static_cast<size_t>((kAllHeads + h) * kQueries * kDim + c)]);
    }
  }
  read<uint8_t>("depths_v.npy", NpyType::uint8, {1, kHeads, kTokens});
}

TEST_F(ApplyRead, RefusesQueriesThatDoNotFit) {
  put_positions({1, 2});
  EXPECT_HAS(refusal(), "q_pos.npy: found shape [2]; expected [3]");
  put_positions({1, 2, kTokens});
  EXPECT_HAS(refusal(), "q_pos.npy: found position 600 at [2]; expected 0 to 599");
  put_positions({1, -1, 2});
  EXPECT_HAS(refusal(), "found position -1 at [1]");
  fs::remove(root_ / "in" / "q_pos.npy");
  put("q.npy", {2, kQueries, kAllHeads - 1, kDim}, Floats(2 * kQueries * 5 * kDim));
  EXPECT_HAS(refusal(),
             "q.npy: found shape [2, 3, 5, 8]; expected [2, heads, n, 8], heads a multiple of 2");
  put("q.npy", {kAllHeads, 2, kDim}, Floats(kAllHeads * 2 * kDim));
  EXPECT_HAS(refusal(), "q.npy: found shape [6, 2, 8]");
  Floats q(2 * kAllHeads * kDim);
  q[kAllHeads * kDim + 9] = INFINITY;
  put("q.npy", {2, kAllHeads, 1, kDim}, q);
  EXPECT_HAS(refusal(), "q.npy: found inf at [layer, head, query, channel] = [1, 1, 0, 1]");
}

TEST_F(ApplyRead, RefusesCalibrationsThatDoNotFit) {
  EXPECT_HAS(refusal("readkv"), "no calibration");
  EXPECT_HAS(refusal("readkv", calibration_file(12)),
             "found a calibration of 12 layers, 2 KV heads, 6 heads, head_dim 8; expected that of "
             "the arrays, 10 layers");
  EXPECT_HAS(refusal("readkv(seed=7)", calibration_file(10)), "seed 20260801");
  EXPECT_HAS(refusal("readkv(calibration=prompt)", calibration_file(10)), "exclude each other");
  EXPECT_HAS(refusal("readkv", (root_ / "in" / "k.npy").string()), "k.npy");

  const ReadCalibration good = load_calibration(calibration_file(10));
  put_calibration(good);
  put("sigma_v.npy", {2, kHeads * kDim}, Floats(2 * kHeads * kDim, 1.0f));
  EXPECT_HAS(refusal("readkv"), "sigma_v.npy: found shape [2, 16]; expected [2, 2, 8]");
  ReadCalibration bad = good;
  bad.layers[9].sigma_k[kDim + 3] = 0;
  put_calibration(bad);
  EXPECT_HAS(refusal("readkv"),
             "sigma_k.npy: found 0 at [layer, head, channel] = [1, 1, 3]; expected finite numbers "
             "above 0");
  bad = good;
  bad.layers[4].mu_v[2] = 0.1f;
  put_calibration(bad);
  EXPECT_HAS(refusal("readkv"),
             "mu_v.npy: found 0.1 at [layer, head, channel] = [0, 0, 2]; "
             "expected numbers that f16 holds");
  bad.layers[4].mu_v[2] = NAN;
  put_calibration(bad);
  EXPECT_HAS(refusal("readkv"), "mu_v.npy: found nan");
  put_calibration(good);
  EXPECT_HAS(refusal("readkv(transform=klt)"), "klt");
  fs::remove(root_ / "in" / "sigma_k.npy");
  EXPECT_HAS(refusal("readkv"), "sigma_k.npy: no such file");
  put_calibration(good);
  fs::remove(root_ / "in" / "m2q.npy");
  EXPECT_HAS(refusal("readkv(key_weights=calibration)"), "mean squares of queries");
}

TEST_F(ApplyRead, RefusesWhatCannotBeCoded) {
  EXPECT_HAS(refusal("readkv(calibration=prompt,protect=5)"),
             "layer 4 of 10 stays uncompressed under protect=5");
  EXPECT_HAS(refusal("twinkv(ratio=0.5)+readkv(calibration=prompt)"), "either selected or coded");
  Floats k(layers_[0].k);
  k.insert(k.end(), layers_[1].k.begin(), layers_[1].k.end());
  k.back() = NAN;
  put("k.npy", {2, kTokens, kHeads, kDim}, k);
  EXPECT_HAS(refusal(), "k.npy: found nan at [layer, token, head, channel] = [1, 599, 1, 7]");
  k.back() = 3e38f;  // finite, but not its sums
  k[k.size() - 2] = 3e38f;
  put("k.npy", {2, kTokens, kHeads, kDim}, k);
  EXPECT_HAS(refusal(), "layer 9: a key or value is not finite, or too large");
}

}  // namespace
}  // namespace kvist
