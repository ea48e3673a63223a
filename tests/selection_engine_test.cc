// SPDX-License-Identifier: MIT
// Every selector in the engine: recorded while a tiny model reads, applied physically, asked
// afterwards.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>

#include "kvist/core/error.h"
#include "kvist/core/rng.h"
#include "kvist/methods/rope.h"
#include "kvist/methods/select/budget.h"
#include "kvist/methods/spec.h"
#include "kvist/runtime/session.h"
#include "tests/support/tiny_gguf.h"

namespace kvist {
namespace {

constexpr int kTokens = 203;

class SelectionEngine : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    path_ = (std::filesystem::temp_directory_path() /
             str("kvist_selection_engine_", ::getpid(), ".gguf"))
                .string();
    testing::TinyModel shape;
    shape.n_layers = 3;
    testing::tiny_model(shape).write(path_);
    ModelOptions options;
    options.n_threads = 1;  // spinning threads of small steps would slow a busy machine
    model_ = Model::load(path_, options);
    Rng rng(7);
    for (int i = 0; i < kTokens; ++i) ids_.push_back(static_cast<int32_t>(rng.below(250)));
  }
  static void TearDownTestSuite() {
    model_.reset();
    ids_.clear();
    std::filesystem::remove(path_);
  }

  // A session that has read the document for `selectors`, repeated where one needs it.
  std::unique_ptr<Session> read(std::span<Selector* const> selectors, int chunk = 64) {
    auto session = std::make_unique<Session>(*model_, pool_, SessionOptions{.chunk = chunk});
    const std::vector<Observer*> observers(selectors.begin(), selectors.end());
    session->prefill(ids_, Watch(observers));
    for (Selector* selector : selectors) repeat(*session, *selector);
    return session;
  }
  static void repeat(Session& session, Selector& selector) {
    const int chunk = selector.needs().repeat_chunk;
    if (chunk == 0) return;
    std::vector<Repeat> repeats;
    for (int begin = 0; begin < kTokens; begin += chunk) {
      Repeat& r = repeats.emplace_back();
      r.begin = begin;
      r.end = std::min(begin + chunk, kTokens);
      r.input = {1, 2, 3};
      r.input.insert(r.input.end(), ids_.begin() + r.begin, ids_.begin() + r.end);
    }
    Observer* observer = &selector;
    session.repeat(repeats, {&observer, 1});
  }
  using Kept = std::vector<std::vector<int32_t>>;  // of all layers and heads
  static Kept kept_of(const Session& session) {
    Kept kept;
    for (int layer = 0; layer < session.prefix().n_layers(); ++layer) {
      for (int head = 0; head < session.prefix().shape().kv_heads; ++head)
        kept.push_back(session.prefix().kept(layer, head));
    }
    return kept;
  }
  Kept kept_by(const std::string& spec, int chunk = 64) {
    const auto selector = parse_spec(spec).make_selector();
    Selector* one = selector.get();
    const auto session = read({&one, 1}, chunk);
    session->compress(*selector);
    return kept_of(*session);
  }
  static std::vector<float> ask(Session& session) {
    const int sequence = session.open();
    const std::vector<float> logits = session.extend(sequence, std::vector<int32_t>{5, 6, 7});
    session.close(sequence);
    return logits;
  }

  static std::string path_;
  static std::unique_ptr<Model> model_;
  static std::vector<int32_t> ids_;
  ThreadPool pool_{1};
};
std::string SelectionEngine::path_;
std::unique_ptr<Model> SelectionEngine::model_;
std::vector<int32_t> SelectionEngine::ids_;

size_t total(const std::vector<std::vector<int32_t>>& kept) {
  return std::accumulate(kept.begin(), kept.end(), size_t{0},
                         [](size_t sum, const auto& head) { return sum + head.size(); });
}

TEST_F(SelectionEngine, EveryMethodFreesWhatItDrops) {
  for (const Method* method : methods()) {
    if (method->select == nullptr) continue;
    SCOPED_TRACE(method->name);
    const auto selector = parse_spec(method->name).make_selector();
    Selector* one = selector.get();
    const auto session = read({&one, 1});
    const Bytes before = session->prefix().bytes();
    session->compress(*selector);
    const Bytes after = session->prefix().bytes();
    const size_t entries = total(kept_of(*session));
    EXPECT_EQ(after.payload, entries * 2 * 64 * 2);
    EXPECT_NEAR(static_cast<double>(after.payload), 0.5 * static_cast<double>(before.payload),
                0.01 * static_cast<double>(before.payload));
    for (float x : ask(*session)) ASSERT_TRUE(std::isfinite(x));
  }
}

TEST_F(SelectionEngine, StepsOfPrefillDoNotMatter) {
  for (const char* spec : {"h2o", "expected_attention", "kvzip(chunk_size=70)", "snapkv"})
    EXPECT_EQ(kept_by(spec, 60), kept_by(spec, 512)) << spec;  // 203: no step of a few rows
}

TEST_F(SelectionEngine, OnePrefillServesAllMethodsAndIsRestored) {
  const std::vector<std::string> specs{"twinkv(recent=16)",
                                       "snapkv(window_size=16)",
                                       "h2o",
                                       "expected_attention",
                                       "kvzip",
                                       "adakv(scorer=h2o,ratio=0.7)",
                                       "pyramidkv(window_size=8,beta=5)"};
  std::vector<std::unique_ptr<Selector>> owned;
  std::vector<Selector*> selectors;
  for (const std::string& spec : specs) {
    owned.push_back(parse_spec(spec).make_selector());
    selectors.push_back(owned.back().get());
  }
  const auto session = read(selectors);
  const std::vector<float> uncompressed = ask(*session);
  for (size_t i = 0; i < specs.size(); ++i) {
    SCOPED_TRACE(specs[i]);
    session->set_aside();
    session->compress(*selectors[i]);
    EXPECT_EQ(kept_of(*session), kept_by(specs[i]));
    EXPECT_NE(ask(*session), uncompressed);
    session->restore();
    EXPECT_EQ(ask(*session), uncompressed);
  }
}

TEST_F(SelectionEngine, HeadsAndLayersHaveTheirOwnBudgets) {
  const auto sizes = [&](const std::string& spec) {
    std::vector<size_t> out;
    for (const auto& head : kept_by(spec)) out.push_back(head.size());
    return out;
  };
  const auto n_kept = static_cast<size_t>(reference_kept_tokens(kTokens, {1, 2}));
  const std::vector<size_t> ada = sizes("adakv(scorer=h2o,alpha_safeguard=0.1)");
  for (size_t layer = 0; layer < 3; ++layer)
    EXPECT_EQ(ada[2 * layer] + ada[2 * layer + 1], 2 * n_kept);
  EXPECT_NE(ada[0], ada[1]) << "ragged heads";
  const std::vector<size_t> pyramid = sizes("pyramidkv(window_size=8,beta=5)");
  EXPECT_GT(pyramid[0], pyramid[2]);
  EXPECT_GT(pyramid[2], pyramid[4]);
  EXPECT_EQ(pyramid[0], pyramid[1]);
  for (size_t size : sizes("snapkv")) EXPECT_EQ(size, n_kept);
}

// Looks at what it is shown.
class Spy final : public Observer {
 public:
  Needs needs() const override { return {.every_query = true, .pre_rope = true}; }
  void observe(const LayerInput& layer) override {
    const auto rows = layer.q.dim(0);
    positions[layer.layer] += rows;
    EXPECT_EQ(positions[layer.layer], layer.n_tokens);
    ASSERT_NE(layer.rope, nullptr);
    for (int64_t t = 0; t < rows; ++t) {
      const PairRotation turn = PairRotation::at(*layer.rope, layer.n_tokens - rows + t);
      for (int64_t h = 0; h < layer.q.dim(1); ++h) {
        std::vector<float> x(&layer.q_pre(t, h, 0), &layer.q_pre(t, h, 0) + layer.head_dim);
        turn.apply(x.data());
        for (size_t c = 0; c < x.size(); ++c)
          ASSERT_NEAR(x[c], layer.q(t, h, static_cast<int64_t>(c)), 1e-5f);
      }
    }
  }
  std::map<int, int64_t> positions;
};

TEST_F(SelectionEngine, WatchersSeeEveryPositionBeforeAndAfterRope) {
  Spy spy;
  Observer* observer = &spy;
  Session session(*model_, pool_, {.chunk = 60});
  session.prefill(ids_, Watch({&observer, 1}));
  EXPECT_EQ(spy.positions, (std::map<int, int64_t>{{0, kTokens}, {1, kTokens}, {2, kTokens}}));
}

TEST_F(SelectionEngine, RepetitionsThatDoNotFitAreRefusedWithTheNumbers) {
  const auto selector = parse_spec("kvzip").make_selector();
  Selector* one = selector.get();
  Session session(*model_, pool_, {});
  session.prefill(ids_);
  const Repeat long_one{0, kTokens, std::vector<int32_t>(400, 1)};
  Observer* observer = one;
  try {
    session.repeat({&long_one, 1}, {&observer, 1});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    for (const char* part : {"400", "203", "512"})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
  EXPECT_THROW(session.compress(*selector), Error);
  EXPECT_NE(ask(session).size(), 0u) << "the prefix is as it was";
}

}  // namespace
}  // namespace kvist
