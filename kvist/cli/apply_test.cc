// SPDX-License-Identifier: MIT
// Tests of kvist apply and kvist methods as commands: what is written, and that nothing is when the
// input is refused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "kvist/cli/test_command.h"
#include "kvist/core/error.h"
#include "kvist/core/npy.h"
#include "kvist/methods/spec.h"
#include "kvist/methods/test_layer.h"

namespace kvist {

extern const Command apply_command, methods_command;

namespace {

namespace fs = std::filesystem;
using Shape = std::vector<int64_t>;
using Ints = std::vector<int32_t>;

class Apply : public testing::Test {
 protected:
  static constexpr int kTokens = 120, kHeads = 2, kGroup = 3, kDim = 8;

  void SetUp() override {
    root_ = fs::temp_directory_path() /
            str("kvist_apply_test_", getpid(), "_",
                testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
    fs::create_directories(in());
    for (int i = 0; i < 2; ++i) {
      layers_.push_back(
          TestLayer::random(kTokens, kHeads, kGroup, kDim, kTokens, static_cast<uint64_t>(i + 5)));
      k_.insert(k_.end(), layers_.back().k.begin(), layers_.back().k.end());
      v_.insert(v_.end(), layers_.back().v.begin(), layers_.back().v.end());
      q_.insert(q_.end(), layers_.back().q.begin(), layers_.back().q.end());
    }
    put("k.npy", {2, kTokens, kHeads, kDim}, k_);
    put("v.npy", {2, kTokens, kHeads, kDim}, v_);
    put("q.npy", {2, kTokens, kHeads * kGroup, kDim}, q_);
    text(
        "meta.json",
        R"({"layers": [4, 9], "n_layers": 30, "rope": {"theta": 1e5, "pairs": "adjacent", "dims": 8}})");
  }
  void TearDown() override { fs::remove_all(root_); }

  fs::path in() const { return root_ / "in"; }
  fs::path out() const { return root_ / "out"; }
  void put(const char* name, const Shape& shape, const std::vector<float>& data) {
    write_npy((in() / name).string(), NpyType::float32, shape, data.data());
  }
  void text(const char* name, const std::string& content) { std::ofstream(in() / name) << content; }
  int apply(const std::string& method, std::string* printed = nullptr, bool json = false) {
    return run_command(apply_command,
                       {"--method", method, "--in", in().string(), "--out", out().string()},
                       printed, json);
  }
  // The message of the refusal; nothing may have been written.
  std::string refusal(const std::string& method = "twinkv(recent=8)") {
    try {
      apply(method);
    } catch (const Error& error) {
      EXPECT_FALSE(fs::exists(out())) << "something was written";
      return error.what();
    }
    ADD_FAILURE() << "not refused";
    return "";
  }
  template <typename T>
  std::vector<T> read(const char* name, NpyType type, const Shape& shape) {
    NpyFile file((out() / name).string(), type);
    EXPECT_EQ(file.shape(), shape) << name;
    const Buffer<T> data = file.template read_all<T>();
    return {data.begin(), data.end()};
  }
  nlohmann::json ledger() {
    std::ifstream file(out() / "ledger.json");
    return nlohmann::json::parse(file);
  }
  // What the library says for the same layers.
  std::vector<Selection> direct(const std::string& method) {
    ThreadPool pool(1);
    const auto selector = parse_spec(method).make_selector();
    std::vector<Selection> all;
    for (size_t i = 0; i < layers_.size(); ++i)
      all.push_back(selector->select(layers_[i].input(pool, i == 0 ? 4 : 9), true));
    return all;
  }

  fs::path root_;
  std::vector<TestLayer> layers_;
  std::vector<float> k_, v_, q_;
};

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(Apply, WritesWhatTheMethodDecides) {
  const std::string method = "twinkv(ratio=0.7,recent=8,ell=4,counts=permuted:11)";
  ASSERT_EQ(apply(method), kDone);
  Ints count, kept, counts;
  std::vector<double> scores;
  for (const Selection& s : direct(method)) {
    for (size_t h = 0; h < kHeads; ++h) {
      count.push_back(static_cast<int32_t>(s.kept[h].size()));
      kept.insert(kept.end(), s.kept[h].begin(), s.kept[h].end());
      counts.insert(counts.end(), s.counts[h].begin(), s.counts[h].end());
      scores.insert(scores.end(), s.scores[h].begin(), s.scores[h].end());
    }
  }
  EXPECT_EQ(read<int32_t>("kept_count.npy", NpyType::int32, {2, kHeads}), count);
  EXPECT_EQ(read<int32_t>("kept.npy", NpyType::int32, {2 * kHeads * 36}), kept);
  EXPECT_EQ(read<int32_t>("counts.npy", NpyType::int32, {2, kHeads, kTokens}), counts);
  EXPECT_EQ(read<double>("scores.npy", NpyType::float64, {2, kHeads, kTokens}), scores);
}

TEST_F(Apply, TheLedgerCountsBytes) {
  std::string printed;
  ASSERT_EQ(apply("twinkv(ratio=0.75,recent=8)", &printed, true), kDone);
  const nlohmann::json book = ledger();
  EXPECT_EQ(nlohmann::json::parse(printed), book);
  EXPECT_EQ(book["method"], "twinkv(ratio=0.75,recent=8)");
  EXPECT_EQ(book["element_bytes"], 2);
  EXPECT_EQ(book["model_layers"], (std::vector<int>{4, 9}));
  const uint64_t entry = 2 * kDim * 2;  // K and V of one head, f16
  EXPECT_EQ(book["reference_bytes"], 2 * kHeads * kTokens * entry);
  EXPECT_EQ(book["payload_bytes"], 2 * kHeads * 30 * entry);
  EXPECT_GE(book["metadata_bytes"].get<uint64_t>(), 2u * kHeads * 30 * 4);
  EXPECT_GE(book["allocated_bytes"].get<uint64_t>(), book["payload_bytes"].get<uint64_t>());
  const double stored = book["payload_bytes"].get<double>() + book["metadata_bytes"].get<double>();
  EXPECT_DOUBLE_EQ(book["factor"].get<double>(), book["reference_bytes"].get<double>() / stored);
  int kept = 0;
  for (const auto& layer : book["kept"]) {
    ASSERT_EQ(layer.size(), size_t{kHeads});
    for (const auto& head : layer) kept += head.get<int>();
  }
  EXPECT_EQ(kept, 2 * kHeads * 30);
}

TEST_F(Apply, NoneKeepsEverythingAndNeedsNoQueries) {
  fs::remove(in() / "q.npy");
  ASSERT_EQ(apply("none"), kDone);
  const Ints kept = read<int32_t>("kept.npy", NpyType::int32, {2 * kHeads * kTokens});
  for (size_t i = 0; i < kept.size(); ++i) ASSERT_EQ(kept[i], static_cast<int32_t>(i % kTokens));
  EXPECT_FALSE(fs::exists(out() / "scores.npy"));
  EXPECT_FALSE(fs::exists(out() / "counts.npy"));
}

TEST_F(Apply, ASecondRunReplacesTheFirst) {
  ASSERT_EQ(apply("twinkv(recent=8)"), kDone);
  EXPECT_TRUE(fs::exists(out() / "counts.npy"));
  std::ofstream(out() / "mine.txt") << "stays";
  ASSERT_EQ(apply("random(ratio=0.9)"), kDone);
  EXPECT_FALSE(fs::exists(out() / "counts.npy"));
  EXPECT_TRUE(fs::exists(out() / "mine.txt"));
  EXPECT_EQ(ledger()["method"], "random(ratio=0.9)");
  size_t files = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(out())) ++files;
  EXPECT_EQ(files, 4u);  // kept_count, kept, ledger, mine
}

TEST_F(Apply, TheLayerAxisMayBeAbsentAndMetaToo) {
  fs::remove(in() / "meta.json");
  put("k.npy", {kTokens, kHeads, kDim}, layers_[0].k);
  put("v.npy", {kTokens, kHeads, kDim}, layers_[0].v);
  put("q.npy", {kTokens, kHeads * kGroup, kDim}, layers_[0].q);
  ASSERT_EQ(apply("twinkv(ratio=0.7,recent=8)"), kDone);
  const Ints kept = read<int32_t>("kept.npy", NpyType::int32, {kHeads * 36});
  const Selection want = direct("twinkv(ratio=0.7,recent=8)").front();
  EXPECT_TRUE(std::equal(want.kept[0].begin(), want.kept[0].end(), kept.begin()));
  read<int32_t>("kept_count.npy", NpyType::int32, {1, kHeads});
}

TEST_F(Apply, QueryRowsGoByPosition) {
  ASSERT_EQ(apply("twinkv(ratio=0.7,recent=8)"), kDone);
  const Ints want = read<int32_t>("kept.npy", NpyType::int32, {2 * kHeads * 36});
  // The last 32 rows alone, in reverse, with some early position among them.
  const size_t row = kHeads * kGroup * kDim;
  std::vector<float> q;
  Ints positions = {7};
  for (int t = kTokens - 1; t >= kTokens - 32; --t) positions.push_back(t);
  for (size_t layer = 0; layer < 2; ++layer) {
    for (int32_t t : positions) {
      const auto from = q_.begin() + static_cast<std::ptrdiff_t>(
                                         (layer * kTokens + static_cast<size_t>(t)) * row);
      q.insert(q.end(), from, from + static_cast<std::ptrdiff_t>(row));
    }
  }
  put("q.npy", {2, 33, kHeads * kGroup, kDim}, q);
  write_npy((in() / "q_pos.npy").string(), NpyType::int32, {33}, positions.data());
  ASSERT_EQ(apply("twinkv(ratio=0.7,recent=8)"), kDone);
  EXPECT_EQ(read<int32_t>("kept.npy", NpyType::int32, {2 * kHeads * 36}), want);

  fs::remove_all(out());
  positions[3] = positions[2];
  write_npy((in() / "q_pos.npy").string(), NpyType::int32, {33}, positions.data());
  EXPECT_HAS(refusal(), "twice");
  positions[3] = kTokens;
  write_npy((in() / "q_pos.npy").string(), NpyType::int32, {33}, positions.data());
  EXPECT_HAS(refusal(), "position 120 at [3]; expected 0 to 119");
  positions[3] = 8;
  write_npy((in() / "q_pos.npy").string(), NpyType::int32, {33}, positions.data());
  EXPECT_HAS(refusal(), "queries of 31 of the last 32 positions");
  write_npy((in() / "q_pos.npy").string(), NpyType::int32, {3, 11}, positions.data());
  EXPECT_HAS(refusal(), "shape [3, 11]; expected [33]");
}

TEST_F(Apply, MissingArraysAndFoldersAreNamed) {
  fs::remove(in() / "v.npy");
  EXPECT_HAS(refusal(), "v.npy: no such file");
  fs::remove_all(in());
  EXPECT_HAS(refusal(), "not a folder");
}

TEST_F(Apply, WrongShapesAreNamedWithWhatIsExpected) {
  put("v.npy", {2, kHeads, kTokens, kDim}, v_);
  EXPECT_HAS(refusal(),
             "v.npy: found shape [2, 2, 120, 8]; expected that of k.npy, [2, 120, 2, 8]");
  put("v.npy", {2, kTokens, kHeads, kDim}, v_);
  put("q.npy", {2, kTokens, kHeads * kGroup * kDim}, q_);
  EXPECT_HAS(refusal(), "q.npy: found shape [2, 120, 48]");
  std::vector<float> few(q_.begin(), q_.begin() + 2 * 31 * kHeads * kGroup * kDim);
  put("q.npy", {2, 31, kHeads * kGroup, kDim}, few);
  EXPECT_HAS(refusal(), "q.npy: found queries of 31 of the last 32 positions");
  put("q.npy", {2, 16 * kTokens, 3, 1}, q_);
  EXPECT_HAS(refusal(), "q.npy: found shape");
  put("k.npy", {2 * kTokens * kHeads, kDim}, k_);
  EXPECT_HAS(refusal(), "k.npy: found rank 2");
  put("k.npy", {2, 0, kHeads, kDim}, {});
  EXPECT_HAS(refusal(), "k.npy: found tokens = 0");
}

TEST_F(Apply, WrongTypesOrdersAndDamageAreNamed) {
  const std::vector<double> wide(k_.size(), 0.0);
  write_npy((in() / "k.npy").string(), NpyType::float64, {2, kTokens, kHeads, kDim}, wide.data());
  EXPECT_HAS(refusal(), "k.npy: found descr '<f8'");
  put("k.npy", {2, kTokens, kHeads, kDim}, k_);
  std::fstream file(in() / "k.npy", std::ios::in | std::ios::out | std::ios::binary);
  std::string header(128, '\0');
  file.read(header.data(), 128);
  const size_t order = header.find("False");
  header.replace(order, 5, "True ");
  file.seekp(0);
  file.write(header.data(), 128);
  file.close();
  EXPECT_HAS(refusal(), "k.npy: found Fortran order");
  put("k.npy", {2, kTokens, kHeads, kDim}, k_);
  fs::resize_file(in() / "k.npy", fs::file_size(in() / "k.npy") - 4);
  EXPECT_HAS(refusal(), "truncated");
  std::ofstream(in() / "k.npy", std::ios::binary) << "\x80\x04\x95pickled";
  EXPECT_HAS(refusal(), "k.npy: found a pickle");
}

TEST_F(Apply, NumbersThatAreNotFiniteAreRefusedWithTheirPlaceAlsoInTheLastLayer) {
  v_.back() = std::nanf("");
  put("v.npy", {2, kTokens, kHeads, kDim}, v_);
  for (const char* method : {"twinkv(recent=8)", "none", "random"}) {
    EXPECT_HAS(refusal(method),
               "v.npy: found nan at [layer, token, head, channel] = [1, 119, 1, 7]; expected "
               "finite numbers");
  }
  EXPECT_EQ(apply("twinkv(recent=8,nonfinite=last)"), kDone);
  fs::remove_all(out());
  v_.back() = 0;
  put("v.npy", {2, kTokens, kHeads, kDim}, v_);
  q_[5] = INFINITY;
  put("q.npy", {2, kTokens, kHeads * kGroup, kDim}, q_);
  EXPECT_HAS(refusal(), "q.npy: found inf");
}

TEST_F(Apply, MetaIsChecked) {
  const std::pair<const char*, const char*> cases[] = {
      {"[1]", "no JSON object"},
      {"{", "no JSON object"},
      {R"({"layers": [1]})", "layers = [1]"},
      {R"({"layers": [2, 1]})", "ascending"},
      {R"({"layers": [-1, 1]})", "layers = [-1,1]"},
      {R"({"layers": "all"})", "layers = \"all\""},
      {R"({"layers": [4, 9], "n_layers": 9})", "n_layers = 9; expected an integer above layer 9"},
      {R"({"n_layers": "thirty"})", "n_layers"},
      {R"({"n_layers": 1e30})", "n_layers"},
      {R"({"rope": 1e5})", "no object"},
      {R"({"rope": {"theta": -1, "pairs": "half", "dims": 8}})", "rope.theta = -1"},
      {R"({"rope": {"theta": "1e5", "pairs": "half", "dims": 8}})", "rope.theta = \"1e5\""},
      {R"({"rope": {"theta": 1e5, "pairs": "both", "dims": 8}})", "rope.pairs = \"both\""},
      {R"({"rope": {"theta": 1e5, "pairs": 2, "dims": 8}})", "rope.pairs = 2"},
      {R"({"rope": {"theta": 1e5, "pairs": "half", "dims": 7}})", "rope.dims = 7"},
      {R"({"rope": {"theta": 1e5, "pairs": "half", "dims": 10}})",
       "rope.dims = 10; expected an even number of channels, 2 to 8"},
      {R"({"rope": {"theta": 1e5, "pairs": "half", "dims": -2}})", "rope.dims = -2"},
  };
  for (const auto& [content, part] : cases) {
    text("meta.json", content);
    const std::string message = refusal();
    EXPECT_HAS(message, "meta.json");
    EXPECT_HAS(message, part);
  }
}

TEST_F(Apply, BaselinesSeeEveryQueryAndPyramidsTheModelsLayer) {
  for (const char* method : {"snapkv(window_size=16)", "h2o", "keydiff", "knorm", "streamingllm",
                             "pyramidkv(window_size=8,beta=5)", "adakv(scorer=h2o)"}) {
    ASSERT_EQ(apply(method), kDone) << method;
    ThreadPool pool(2);
    Ints want;
    const auto selector = parse_spec(method).make_selector();
    for (size_t i = 0; i < layers_.size(); ++i) {
      LayerInput in = layers_[i].input(pool, i == 0 ? 4 : 9);
      in.n_layers = 30;
      if (selector->needs().every_query) selector->observe(in);
      for (const auto& kept : selector->select(in, false).kept)
        want.insert(want.end(), kept.begin(), kept.end());
    }
    EXPECT_EQ(read<int32_t>("kept.npy", NpyType::int32, {static_cast<int64_t>(want.size())}), want)
        << method;
  }
}

TEST_F(Apply, ExpectedAttentionTakesQueriesBeforeRope) {
  const std::string missing = refusal("expected_attention");
  EXPECT_HAS(missing, "q_pre.npy");
  put("q_pre.npy", {2, kTokens, kHeads * kGroup, kDim}, q_);
  ASSERT_EQ(apply("expected_attention(n_sink=2)"), kDone);
  Rope rope{.frequencies = {}, .magnitude = 1, .adjacent = true};
  for (int f = 0; f < kDim / 2; ++f) rope.frequencies.push_back(std::pow(1e5, -2.0 * f / kDim));
  ThreadPool pool(2);
  const auto selector = parse_spec("expected_attention(n_sink=2)").make_selector();
  Ints want;
  for (size_t i = 0; i < layers_.size(); ++i) {
    LayerInput in = layers_[i].input(pool, i == 0 ? 4 : 9);
    in.rope = &rope;
    in.q_pre = in.q;
    selector->observe(in);
    for (const auto& kept : selector->select(in, false).kept)
      want.insert(want.end(), kept.begin(), kept.end());
  }
  const Shape shape{static_cast<int64_t>(want.size())};
  EXPECT_EQ(read<int32_t>("kept.npy", NpyType::int32, shape), want);
  // The same rotation, written out.
  text("meta.json", R"({"layers": [4, 9], "rope": {"pairs": "adjacent",
       "inv_freq": [1, 0.056234132519034912, 0.003162277660168379, 0.0001778279410038923]}})");
  ASSERT_EQ(apply("expected_attention(n_sink=2)"), kDone);
  EXPECT_EQ(read<int32_t>("kept.npy", NpyType::int32, shape), want);
}

TEST_F(Apply, RopeIsChecked) {
  put("q_pre.npy", {2, kTokens, kHeads * kGroup, kDim}, q_);
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "no rope"},
      {R"({"rope": {}})", "no rope"},
      {R"({"rope": 5})", "no object"},
      {R"({"rope": {"theta": -1}})", "rope.theta = -1"},
      {R"({"rope": {"theta": "big"}})", "rope.theta"},
      {R"({"rope": {"theta": 1e4, "dims": 9}})", "rope.dims = 9"},
      {R"({"rope": {"theta": 1e4, "dims": 10}})", "2 to 8"},
      {R"({"rope": {"theta": 1e4, "pairs": "odd"}})", "rope.pairs"},
      {R"({"rope": {"theta": 1e4, "attention_factor": 0}})", "rope.attention_factor"},
      {R"({"rope": {"inv_freq": [1, 2]}})", "4 numbers above 0"},
  };
  for (const auto& [content, part] : cases) {
    text("meta.json", content);
    const std::string message = refusal("expected_attention");
    EXPECT_HAS(message, "meta.json");
    EXPECT_HAS(message, part);
  }
}

TEST_F(Apply, AMethodThatReadsTwiceNeedsAModel) {
  EXPECT_HAS(refusal("kvzip"), "second pass");
  EXPECT_HAS(refusal("adakv(scorer=kvzip)"), "second pass");
}

TEST_F(Apply, BadSpecsAndFoldersLeaveNothing) {
  EXPECT_HAS(refusal("twinkv(ratoi=1)"), "did you mean 'ratio'?");
  EXPECT_HAS(refusal("twinkv(ratio=0.999)"), "leave none");
  EXPECT_THROW(run_command(apply_command, {"--method", "none", "--in", in().string(), "--out",
                                           out().string(), "--calibration", "c.readkv"}),
               Error);
  std::ofstream(root_ / "file") << "x";
  EXPECT_THROW(run_command(apply_command, {"--method", "none", "--in", in().string(), "--out",
                                           (root_ / "file").string()}),
               Error);
}

TEST(Methods, ListsDescribesAndRefuses) {
  std::string text;
  EXPECT_EQ(run_command(methods_command, {}, &text), kDone);
  EXPECT_HAS(text, "twinkv");
  EXPECT_EQ(run_command(methods_command, {"twinkv"}, &text), kDone);
  EXPECT_HAS(text, "pool_sees_protected");
  EXPECT_EQ(run_command(methods_command, {"--markdown"}, &text), kDone);
  EXPECT_HAS(text, "| `sinks` | 4 tokens |");
  EXPECT_EQ(run_command(methods_command, {"twinkv"}, &text, true), kDone);
  EXPECT_EQ(nlohmann::json::parse(text)["options"].size(), 16u);
  EXPECT_EQ(run_command(methods_command, {}, &text, true), kDone);
  EXPECT_EQ(nlohmann::json::parse(text)["methods"][0]["name"], "twinkv");
  EXPECT_THROW(run_command(methods_command, {"twinvk"}), Error);
  EXPECT_THROW(run_command(methods_command, {"--markdown"}, nullptr, true), Error);
}

}  // namespace
}  // namespace kvist
