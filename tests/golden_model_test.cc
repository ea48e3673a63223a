// SPDX-License-Identifier: MIT
// The embedded model against an independent numpy reference: tokenizer, logits, layers before RoPE,
// greedy decoding.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kvist/core/npy.h"
#include "kvist/model/model.h"
#include "kvist/model/tokenizer.h"
#include "tests/support/embedded_model.h"
#include "tests/support/golden.h"
#include "tests/support/plain_attention.h"

namespace kvist::testing {
namespace {

// Keeps the queries of the last step beside what the plain attention keeps.
class Recording final : public Attention {
 public:
  explicit Recording(const ModelInfo& info)
      : plain(info), queries(static_cast<size_t>(info.n_layers)), info_(info) {}

  void append(int layer, const float* k, const float* v, Worker worker) noexcept override {
    plain.append(layer, k, v, worker);
  }
  void attend(int layer, const float* q, float* out, Worker worker) noexcept override {
    if (worker.index == 0) {
      queries[static_cast<size_t>(layer)].assign(
          q, q + rows * static_cast<size_t>(info_.heads * info_.head_dim));
    }
    plain.attend(layer, q, out, worker);
  }

  PlainAttention plain;
  size_t rows = 0;
  std::vector<std::vector<float>> queries;  // [layer][rows * heads * head_dim]

 private:
  ModelInfo info_;
};

// Steps one sequence, logits of every token: [tokens][vocab].
std::vector<float> extend(Model& model, Recording& attention, const std::vector<int32_t>& tokens,
                          int first) {
  std::vector<int32_t> positions(tokens.size()), sequences(tokens.size(), 0);
  std::iota(positions.begin(), positions.end(), first);
  const std::vector<uint8_t> wanted(tokens.size(), 1);
  const RowBatch rows{tokens, positions, sequences, wanted};
  attention.plain.expect(rows);
  attention.rows = tokens.size();
  std::vector<float> logits;
  model.step(rows, attention, &logits);
  return logits;
}

struct Best {
  int32_t token;
  float margin;  // over the second
};
Best best_of(std::span<const float> logits) {
  const auto top =
      static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  float second = -INFINITY;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (i != top) second = std::max(second, logits[i]);
  }
  return {static_cast<int32_t>(top), logits[top] - second};
}

float nll(std::span<const float> logits, int32_t next) {
  const double top = double{*std::max_element(logits.begin(), logits.end())};
  double sum = 0;
  for (const float x : logits) sum += std::exp(double{x} - top);
  return static_cast<float>(std::log(sum) + top - double{logits[static_cast<size_t>(next)]});
}

// Rows at `positions` of [tokens][heads][head_dim], turned back where they were rotated by RoPE on
// neighbouring channels.
std::vector<float> rows_at(const std::vector<float>& from, const std::vector<int32_t>& positions,
                           int heads, int d, double theta, bool rotated) {
  std::vector<float> out;
  for (const int32_t at : positions) {
    for (int i = 0; i < heads * d; i += 2) {
      const size_t index =
          static_cast<size_t>(at) * static_cast<size_t>(heads * d) + static_cast<size_t>(i);
      const double a = double{from[index]}, b = double{from[index + 1]};
      const double angle = rotated ? at * std::pow(theta, -double(i % d) / d) : 0;
      out.push_back(static_cast<float>(a * std::cos(angle) + b * std::sin(angle)));
      out.push_back(static_cast<float>(b * std::cos(angle) - a * std::sin(angle)));
    }
  }
  return out;
}

class GoldenModel : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = golden::whole_suite("model");
    if (folder_.empty()) GTEST_SKIP() << "the golden arrays of suite model are not here";
    if (embedded_model().empty()) GTEST_SKIP() << "the embedded model is not installed";
  }
  std::unique_ptr<Model> load() const {
    ModelOptions options;
    options.n_threads = 2;
    options.batch_weights = BatchWeights::native;
    return Model::load(embedded_model_f32(), options);
  }
  std::string folder_;
};

TEST_F(GoldenModel, TokenIdsAreExact) {
  const golden::Suite suite(folder_);
  NpyFile file(folder_ + "/prompt_utf8.npy", NpyType::uint8);
  const Buffer<uint8_t> text = file.read_all<uint8_t>();
  const auto tokenizer = Tokenizer::load(embedded_model());
  const std::string_view prompt(reinterpret_cast<const char*>(text.data()), text.size());
  EXPECT_TRUE(suite.expect(suite.find("tokenize"), "ids", tokenizer->encode(prompt, false)));
  EXPECT_EQ(tokenizer->decode(suite.ints("prompt_ids").data), prompt);
  EXPECT_EQ(tokenizer->encode("The capital of France is", false), suite.ints("short_ids").data);
}

TEST_F(GoldenModel, LogitsAndLayersAgree) {
  const golden::Suite suite(folder_);
  const auto model = load();
  const ModelInfo& info = model->info();
  Recording attention(info);
  const std::vector<int32_t> ids = suite.ints("prompt_ids").data;
  const std::vector<float> all = extend(*model, attention, ids, 0);

  const auto vocab = static_cast<size_t>(info.vocab);
  std::vector<float> logits, margins, losses;
  std::vector<int32_t> tops;
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::span row = std::span(all).subspan(i * vocab, vocab);
    const Best best = best_of(row);
    tops.push_back(best.token);
    margins.push_back(best.margin);
    if (i + 1 < ids.size()) losses.push_back(nll(row, ids[i + 1]));
    if (i == 319 || i == 323) logits.insert(logits.end(), row.begin(), row.end());
  }
  const auto& item = suite.find("logits");
  EXPECT_TRUE(suite.expect(item, "logits", logits));
  EXPECT_TRUE(suite.expect(item, "argmax", tops));
  EXPECT_TRUE(suite.expect(item, "margin", margins));
  EXPECT_TRUE(suite.expect(item, "nll", losses));

  const auto& layers = suite.find("rows");
  const auto positions = layers["params"]["positions"].get<std::vector<int32_t>>();
  for (const int layer : {0, 5, 20}) {
    const auto rows = [&](const std::vector<float>& from, int heads, bool rotated) {
      return rows_at(from, positions, heads, info.head_dim, info.rope.theta, rotated);
    };
    const std::string suffix = "_L" + std::to_string(layer);
    const std::vector<float>& q = attention.queries[static_cast<size_t>(layer)];
    EXPECT_TRUE(suite.expect(layers, "k_pre" + suffix,
                             rows(attention.plain.keys(layer, 0), info.kv_heads, true)));
    EXPECT_TRUE(suite.expect(layers, "q_pre" + suffix, rows(q, info.heads, true)));
    EXPECT_TRUE(suite.expect(layers, "v" + suffix,
                             rows(attention.plain.values(layer, 0), info.kv_heads, false)));
  }
}

TEST_F(GoldenModel, GreedyDecodingFollowsTheReference) {
  const golden::Suite suite(folder_);
  const auto model = load();
  Recording attention(model->info());
  std::vector<int32_t> tokens = suite.ints("short_ids").data, ids;
  std::vector<float> margins;
  int position = 0;
  for (int i = 0; i < 16; ++i) {
    const std::vector<float> logits = extend(*model, attention, tokens, position);
    position += static_cast<int>(tokens.size());
    const Best best = best_of(std::span(logits).last(static_cast<size_t>(model->info().vocab)));
    ids.push_back(best.token);
    margins.push_back(best.margin);
    tokens = {best.token};
  }
  const auto& item = suite.find("greedy");
  EXPECT_TRUE(suite.expect(item, "ids", ids));
  EXPECT_TRUE(suite.expect(item, "margin", margins));
}

}  // namespace
}  // namespace kvist::testing
