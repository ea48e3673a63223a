// SPDX-License-Identifier: MIT
// Caches that grow within a bound, on tiny models: who stays, and that memory does.
#include <gtest/gtest.h>

#include <cmath>

#include "kvist/core/error.h"
#include "kvist/methods/spec.h"
#include "kvist/runtime/session.h"
#include "support/tiny_gguf.h"

namespace kvist {
namespace {

class GrowingCache : public ::testing::Test {
 protected:
  void load(int n_layers, int context) {
    path_ = ::testing::TempDir() + "/growing.gguf";
    testing::tiny_model({.n_layers = n_layers, .context = context}).write(path_);
    ModelOptions options;
    options.n_threads = 1;
    model_ = Model::load(path_, options);
  }
  void TearDown() override { std::remove(path_.c_str()); }

  static std::vector<int32_t> tokens(int n) {
    std::vector<int32_t> ids;
    for (int i = 0; i < n; ++i) ids.push_back((i * 37 + i * i % 91) % 256);
    return ids;
  }
  std::unique_ptr<Session> empty() {
    auto session = std::make_unique<Session>(*model_, pool_, SessionOptions{});
    session->start_empty();
    return session;
  }

  std::string path_;
  std::unique_ptr<Model> model_;
  ThreadPool pool_{1};
};

// What is in a session's prefix, given from outside.
class Fixed final : public Selector {
 public:
  explicit Fixed(std::vector<int32_t> kept) : kept_(std::move(kept)) {}
  Needs needs() const override { return {}; }
  Selection select(const LayerInput& layer, bool) override {
    Selection selection;
    selection.kept.assign(static_cast<size_t>(layer.kv_heads), kept_);
    return selection;
  }

 private:
  std::vector<int32_t> kept_;
};

float farthest(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  float most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

// In a model of one layer keys and values depend on token and position alone, so the bounded cache
// equals what a selector leaves of the whole text.
TEST_F(GrowingCache, StreamingKeepsTheFirstAndTheNewestAtTheirPositions) {
  load(1, 512);
  const auto ids = tokens(300);
  const auto evictor = parse_spec("streamingllm(n_sink=3)").make_evictor();
  const auto growing = empty();
  const int sequence = growing->open_bounded(*evictor, 64);
  growing->extend(sequence, std::span(ids).first(291));
  const int left = growing->suffix_entries(sequence);
  ASSERT_LT(left, 64);
  EXPECT_EQ(growing->suffix_length(sequence), 291);
  EXPECT_EQ(growing->room(sequence), 512 - 291);
  const auto got = growing->extend(sequence, std::span(ids).last(1));

  std::vector<int32_t> kept{0, 1, 2};
  for (int i = 291 - (left - 3); i < 291; ++i) kept.push_back(i);
  Session whole(*model_, pool_, {});
  whole.prefill(std::span(ids).first(291));
  Fixed fixed(kept);
  whole.compress(fixed);
  const int question = whole.open();
  EXPECT_LT(farthest(got, whole.extend(question, std::span(ids).last(1))), 1e-4);
  kept[0] = 5;  // another one instead of the first: not the same
  Session other(*model_, pool_, {});
  other.prefill(std::span(ids).first(291));
  Fixed wrong({kept.begin() + 1, kept.end()});
  other.compress(wrong);
  EXPECT_GT(farthest(got, other.extend(other.open(), std::span(ids).last(1))), 1e-4);
}

TEST_F(GrowingCache, WithRoomForAllNothingChanges) {
  load(3, 512);
  const auto ids = tokens(200);
  for (const char* spec : {"streamingllm", "h2o", "keydiff"}) {
    const auto evictor = parse_spec(spec).make_evictor();
    const auto growing = empty(), plain = empty();
    const int a = growing->open_bounded(*evictor, 2048), b = plain->open();
    EXPECT_EQ(growing->extend(a, ids), plain->extend(b, ids)) << spec;
    std::vector<float> one, two;
    const int32_t next = 7;
    growing->decode({&a, 1}, {&next, 1}, &one);
    plain->decode({&b, 1}, {&next, 1}, &two);
    EXPECT_EQ(one, two) << spec;
    EXPECT_EQ(growing->suffix_entries(a), 201);
  }
}

// Twenty thousand tokens generated: entries, bytes and what the system holds for them do not grow.
TEST_F(GrowingCache, TwentyThousandTokensStayWithinTheBound) {
  load(2, 32768);
  for (const char* spec : {"streamingllm", "keydiff", "h2o"}) {
    SCOPED_TRACE(spec);
    const auto evictor = parse_spec(spec).make_evictor();
    const auto session = empty();
    const int sequence = session->open_bounded(*evictor, 128);
    std::vector<float> logits = session->extend(sequence, tokens(600));
    const uint64_t held = session->suffix_bytes().allocated;
    int least = 128;
    for (int i = 0; i < 20000; ++i) {
      const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
      const auto token = static_cast<int32_t>((best + i) % 256);
      session->decode({&sequence, 1}, {&token, 1}, &logits);
      const int entries = session->suffix_entries(sequence);
      ASSERT_LE(entries, 128);
      least = std::min(least, entries);
      ASSERT_EQ(session->suffix_bytes().allocated, held) << i;
    }
    EXPECT_EQ(least, 128 - 16 + 1);  // an eighth leaves at a time
    EXPECT_EQ(session->suffix_length(sequence), 20600);
    for (float x : logits) ASSERT_TRUE(std::isfinite(x));
  }
}

TEST_F(GrowingCache, RefusesWhatCannotGrow) {
  load(1, 128);
  const auto evictor = parse_spec("keydiff").make_evictor();
  const auto session = empty();
  EXPECT_THROW(session->open_bounded(*evictor, 15), Error);
  const int bounded = session->open_bounded(*evictor, 32), plain = session->open();
  session->extend(bounded, tokens(40));
  session->extend(plain, tokens(40));
  const std::vector<int> both{bounded, plain};
  std::vector<float> logits;
  EXPECT_THROW(session->decode(both, tokens(2), &logits), Error);
  EXPECT_THROW(session->extend(bounded, tokens(89)), Error) << "positions end with the context";
  Session document(*model_, pool_, {});
  document.prefill(tokens(10));
  EXPECT_THROW(document.open_bounded(*evictor, 32), Error);
}

}  // namespace
}  // namespace kvist
