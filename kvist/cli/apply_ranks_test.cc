// SPDX-License-Identifier: MIT
// Tests of kvist apply with methods that rank: what is written fits together, and that nothing is
// written when the input is refused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kvist/cli/test_command.h"
#include "kvist/core/error.h"
#include "kvist/core/half.h"
#include "kvist/core/npy.h"
#include "kvist/methods/test_layer.h"

namespace kvist {

extern const Command apply_command;

namespace {

namespace fs = std::filesystem;
using Shape = std::vector<int64_t>;
using Floats = std::vector<float>;

constexpr int kTokens = 700, kHeads = 2, kGroup = 3, kDim = 8, kWindow = 64, kAsked = 3;
constexpr int kAllHeads = kHeads * kGroup, kWidth = 2 * kHeads * kDim;

// Layers 4 and 9 of ten, f16 numbers, with the identity as a basis.
class ApplyRanks : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() /
            str("kvist_apply_ranks_test_", getpid(), "_",
                testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
    fs::create_directories(root_ / "in");
    Floats q, basis;
    Rng rng(3);
    for (uint64_t i = 0; i < 2; ++i) {
      const TestLayer layer = TestLayer::random(kTokens, kHeads, kGroup, kDim, kWindow, i + 5);
      for (const float x : layer.k) k_.push_back(to_float(to_f16(x)));
      for (const float x : layer.v) v_.push_back(to_float(to_f16(x)));
      q.insert(q.end(), layer.q.begin(), layer.q.end());
      for (int c = 0; c < kWidth * kWidth; ++c) basis.push_back(c % (kWidth + 1) == 0 ? 1 : 0);
      for (int c = 0; c < kAllHeads * kAsked * kDim; ++c)
        asked_.push_back(static_cast<float>(rng.gaussian()));
    }
    put("k.npy", {2, kTokens, kHeads, kDim}, k_);
    put("v.npy", {2, kTokens, kHeads, kDim}, v_);
    put("q.npy", {2, kWindow, kAllHeads, kDim}, q);
    put("q_out.npy", {2, kAllHeads, kAsked, kDim}, asked_);
    put("basis.npy", {2, kWidth, kWidth}, basis);
    put("eigenvalues.npy", {2, kWidth}, Floats(2 * kWidth, 1.0f));
    std::ofstream(root_ / "in" / "meta.json")
        << R"({"layers": [4, 9], "n_layers": 10, "rope": {"theta": 10000}})";
  }
  void TearDown() override { fs::remove_all(root_); }

  void put(const char* name, const Shape& shape, const Floats& data) {
    write_npy((root_ / "in" / name).string(), NpyType::float32, shape, data.data());
  }
  int apply(const std::string& method) {
    return run_command(apply_command, {"--method", method, "--in", (root_ / "in").string(), "--out",
                                       (root_ / "out").string()});
  }
  std::string refusal(const std::string& method) {
    try {
      apply(method);
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
  Floats floats(const char* name, const Shape& shape) {
    return read<float>(name, NpyType::float32, shape);
  }
  nlohmann::json ledger() {
    std::ifstream in(root_ / "out" / "ledger.json");
    return nlohmann::json::parse(in);
  }

  fs::path root_;
  Floats k_, v_, asked_;
};

TEST_F(ApplyRanks, WritesACodeAndWhatItMeans) {
  ASSERT_EQ(apply("varrate(keep=0.5,r_min=2)"), 0);
  const auto ranks = read<int32_t>("ranks.npy", NpyType::int32, {2, kTokens});
  const auto book = ledger();
  const int64_t coded = book["layers"][0]["coded"], neighbours = book["neighbours"];
  EXPECT_EQ(book["layers"][1]["layer"], 9);
  const auto anchors = read<int32_t>("anchor_index.npy", NpyType::int32, {2, coded, neighbours});
  const Floats k = floats("k_out.npy", {2, kTokens, kHeads, kDim});
  const Floats v = floats("v_out.npy", {2, kTokens, kHeads, kDim});
  int64_t sum = 0, n_coded = 0;
  double error = 0, energy = 0;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const size_t at = i * kHeads * kDim;
    if (ranks[i] < 0) {  // exact, to the bit
      for (size_t c = at; c < at + kHeads * kDim; ++c) {
        ASSERT_EQ(k[c], k_[c]) << i;
        ASSERT_EQ(v[c], v_[c]) << i;
      }
      continue;
    }
    sum += ranks[i];
    ++n_coded;
    for (size_t c = at; c < at + kHeads * kDim; ++c) {
      error += std::pow(double{v[c]} - double{v_[c]}, 2);
      energy += std::pow(double{v_[c]}, 2);
    }
  }
  EXPECT_EQ(n_coded, 2 * coded);
  EXPECT_LT(error, energy);
  // B = floor(keep D L) - exact D, of each layer.
  const int64_t exact = book["layers"][0]["exact"];
  EXPECT_EQ(sum, 2 * (int64_t{kWidth} * kTokens / 2 - exact * kWidth));
  floats("coefficients.npy", {sum});
  for (const int32_t anchor : anchors) {
    EXPECT_GE(anchor, 0);
    EXPECT_EQ(ranks[static_cast<size_t>(anchor)], -1);
  }
  EXPECT_GT(book["factor"].get<double>(), 1.5);
}

// `out` is plain attention over k_out and v_out.
TEST_F(ApplyRanks, AnswersGivenQueries) {
  ASSERT_EQ(apply("varrate(keep=0.5,r_min=2)"), 0);
  const Floats k = floats("k_out.npy", {2, kTokens, kHeads, kDim});
  const Floats v = floats("v_out.npy", {2, kTokens, kHeads, kDim});
  const Floats out = floats("out.npy", {2, kAllHeads, kAsked, kDim});
  for (int layer = 0; layer < 2; ++layer)
    for (int h = 0; h < kAllHeads; ++h)
      for (int i = 0; i < kAsked; ++i) {
        const size_t q = static_cast<size_t>(((layer * kAllHeads + h) * kAsked + i) * kDim);
        double total = 0;
        std::array<double, kDim> want{};
        for (int t = 0; t < kTokens; ++t) {
          const size_t at =
              static_cast<size_t>(((layer * kTokens + t) * kHeads + h / kGroup) * kDim);
          double s = 0;
          for (size_t c = 0; c < kDim; ++c) s += double{asked_[q + c]} * double{k[at + c]};
          const double weight = std::exp(s / std::sqrt(double{kDim}));
          total += weight;
          for (size_t c = 0; c < kDim; ++c) want[c] += weight * double{v[at + c]};
        }
        for (size_t c = 0; c < kDim; ++c) ASSERT_NEAR(out[q + c], want[c] / total, 1e-4);
      }
}

TEST_F(ApplyRanks, TakesKeysBeforeRope) {
  ASSERT_EQ(apply("varrate(keep=0.5,r_min=2)"), 0);
  const Floats want = floats("v_out.npy", {2, kTokens, kHeads, kDim});
  Floats before = k_;
  Rope rope;
  for (int f = 0; f < kDim / 2; ++f) rope.frequencies.push_back(std::pow(1e4, -2.0 * f / kDim));
  for (size_t row = 0; row < before.size() / kDim; ++row)
    PairRotation::at(rope, static_cast<int64_t>(row / kHeads % kTokens))
        .inverse()
        .apply(&before[row * kDim]);
  fs::remove(root_ / "in" / "k.npy");
  put("k_pre.npy", {2, kTokens, kHeads, kDim}, before);
  ASSERT_EQ(apply("varrate(keep=0.5,r_min=2)"), 0);
  const Floats got = floats("v_out.npy", {2, kTokens, kHeads, kDim});
  double error = 0, energy = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += std::pow(double{got[i]} - double{want[i]}, 2);
    energy += std::pow(double{want[i]}, 2);
  }
  EXPECT_LT(error, 0.01 * energy);  // keys round again, so that a few neighbours may change
}

TEST_F(ApplyRanks, RefusesWhatItCannotCode) {
  EXPECT_NE(refusal("varrate(keep=0.09)").find("0.09"), std::string::npos);
  put("basis.npy", {2, 4, kWidth - 1}, Floats(8 * (kWidth - 1)));
  EXPECT_NE(refusal("varrate(keep=0.5)").find("basis.npy: found shape [2, 4, 31]"),
            std::string::npos);
  fs::remove(root_ / "in" / "basis.npy");
  EXPECT_NE(refusal("varrate(keep=0.5)").find("basis.npy"), std::string::npos);
  std::ofstream(root_ / "in" / "meta.json") << "{}";
  EXPECT_NE(refusal("varrate(keep=0.5)").find("no rope"), std::string::npos);
}

}  // namespace
}  // namespace kvist
