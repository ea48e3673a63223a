// SPDX-License-Identifier: MIT
// Selectors that share a scorer keep what they keep alone, and the scorer works once.
#include "kvist/methods/select/scorers.h"

#include <gtest/gtest.h>

#include "kvist/core/error.h"
#include "kvist/methods/spec.h"
#include "kvist/methods/test_layer.h"

namespace kvist {
namespace {

// What each of `specs` keeps of a few layers, with one Scorers for all or with one each.
std::vector<std::vector<Selection>> kept_by(const std::vector<std::string>& specs, bool together) {
  constexpr int kLayers = 3;
  ThreadPool pool(2);
  Scorers shared;
  std::vector<std::unique_ptr<Selector>> selectors;
  std::vector<Observer*> watchers;
  for (const std::string& text : specs) {
    const Spec spec = parse_spec(text);
    selectors.push_back(together ? spec.make_selector(shared) : spec.make_selector());
    Observer* watcher = &selectors.back()->watcher();
    if (std::find(watchers.begin(), watchers.end(), watcher) == watchers.end())
      watchers.push_back(watcher);
  }
  std::vector<TestLayer> layers;
  for (int layer = 0; layer < kLayers; ++layer) {
    layers.push_back(TestLayer::random(96, 2, 3, 8, 96, 10 + static_cast<uint64_t>(layer)));
    for (Observer* watcher : watchers) layers.back().show(*watcher, pool, layer);
  }
  std::vector<std::vector<Selection>> all;
  for (const auto& selector : selectors) {
    std::vector<Selection>& one = all.emplace_back();
    for (int layer = 0; layer < kLayers; ++layer)
      one.push_back(selector->select(layers[static_cast<size_t>(layer)].input(pool, layer), true));
    selector->settle(one);
  }
  return all;
}

TEST(Scorers, SharingChangesNothing) {
  const std::vector<std::string> specs = {"h2o(ratio=0.25)",
                                          "h2o(ratio=0.75)",
                                          "adakv(ratio=0.5,scorer=h2o)",
                                          "snapkv(ratio=0.25,window_size=8)",
                                          "pyramidkv(ratio=0.75,window_size=8)",
                                          "adakv(ratio=0.5,window_size=8)",
                                          "kvzip(ratio=0.5,chunk_size=40)",
                                          "kvzip(ratio=0.75,chunk_size=40)",
                                          "kvzip(ratio=0.75,chunk_size=30)",
                                          "expected_attention(ratio=0.25)",
                                          "expected_attention(ratio=0.5)",
                                          "streamingllm(ratio=0.25)",
                                          "streamingllm(ratio=0.5)",
                                          "fisher(ratio=0.5,window_size=8)",
                                          "fisher(ratio=0.25,window_size=8)",
                                          "twinkv(ratio=0.5,recent=8)",
                                          "h2o(ratio=0)"};
  const auto together = kept_by(specs, true), alone = kept_by(specs, false);
  for (size_t i = 0; i < specs.size(); ++i) {
    for (size_t layer = 0; layer < alone[i].size(); ++layer) {
      EXPECT_EQ(together[i][layer].kept, alone[i][layer].kept) << specs[i] << ", layer " << layer;
      EXPECT_EQ(together[i][layer].scores, alone[i][layer].scores) << specs[i];
    }
  }
}

TEST(Scorers, EqualScoresHaveOneWatcher) {
  Scorers shared;
  const auto made = [&](const char* spec) { return parse_spec(spec).make_selector(shared); };
  const auto quarter = made("snapkv(ratio=0.25)"), half = made("snapkv(keep=0.5)"),
             pyramid = made("pyramidkv(ratio=0.5,beta=10)"), heads = made("adakv(ratio=0.5)"),
             wide = made("snapkv(ratio=0.5,window_size=32)"), attention = made("h2o(ratio=0.5)"),
             everything = made("snapkv(ratio=0)");
  EXPECT_EQ(&quarter->watcher(), &half->watcher());
  EXPECT_EQ(&quarter->watcher(), &pyramid->watcher());
  EXPECT_EQ(&quarter->watcher(), &heads->watcher());
  EXPECT_NE(&quarter->watcher(), &wide->watcher()) << "another window, other scores";
  EXPECT_NE(&quarter->watcher(), &attention->watcher());
  EXPECT_EQ(&everything->watcher(), everything.get()) << "nothing removed, nothing watched";
  Scorers other;
  const auto apart = parse_spec("snapkv(ratio=0.25)").make_selector(other);
  EXPECT_NE(&quarter->watcher(), &apart->watcher());
}

// Counts what is asked of it.
class Counting final : public Scorer {
 public:
  explicit Counting(const Options&) {}
  Needs needs() const override { return {.window_queries = 1}; }
  Scores score(const LayerInput& layer) override {
    ++calls;
    return Scores(static_cast<size_t>(layer.kv_heads),
                  std::vector<double>(static_cast<size_t>(layer.n_tokens), calls));
  }
  static inline int calls = 0;
};

TEST(Scorers, ScoreALayerOnce) {
  const Options options = parse_spec("h2o").calls[0].options;
  const Scorers::Make make = [](const Options& o) -> std::unique_ptr<Scorer> {
    return std::make_unique<Counting>(o);
  };
  ThreadPool pool(1);
  TestLayer layer(4, 1, 1, 2, 0);
  Counting::calls = 0;
  Scorers scorers;
  {
    const auto one = scorers.of(make, options), two = scorers.of(make, options),
               three = scorers.of(make, options);
    EXPECT_EQ(one, two);
    const Scores first = one->score(layer.input(pool));
    EXPECT_EQ(scorers.spared_ms(), 0);
    EXPECT_EQ(two->score(layer.input(pool)), first);
    EXPECT_EQ(three->score(layer.input(pool)), first);
    EXPECT_EQ(Counting::calls, 1);
    EXPECT_GT(scorers.spared_ms(), 0);
    one->score(layer.input(pool, 1));
    EXPECT_EQ(Counting::calls, 2) << "another layer";
  }
  scorers.of(make, options)->score(layer.input(pool));
  EXPECT_EQ(Counting::calls, 3) << "nobody held the scorer any more";
}

}  // namespace
}  // namespace kvist
