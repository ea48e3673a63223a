// SPDX-License-Identifier: MIT
// The baselines on worked examples A to J of their specification, and what they refuse.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "kvist/core/error.h"
#include "kvist/core/half.h"
#include "kvist/methods/rope.h"
#include "kvist/methods/select/adakv.h"
#include "kvist/methods/select/budget.h"
#include "kvist/methods/select/by_score.h"
#include "kvist/methods/select/fisher.h"
#include "kvist/methods/select/kvzip.h"
#include "kvist/methods/select/pyramidkv.h"
#include "kvist/methods/spec.h"
#include "kvist/methods/test_layer.h"

namespace kvist {
namespace {

using Positions = std::vector<int32_t>;
using Sets = std::vector<Positions>;

// Values as [head][token][channel] into a layer's [token][head][channel].
void fill(std::vector<float>* out, const std::vector<std::vector<float>>& heads, int dim) {
  out->clear();
  const size_t tokens = heads[0].size() / static_cast<size_t>(dim);
  for (size_t t = 0; t < tokens; ++t) {
    for (const auto& head : heads) {
      const auto at = head.begin() + static_cast<std::ptrdiff_t>(t) * dim;
      out->insert(out->end(), at, at + dim);
    }
  }
}

Selection run(TestLayer& layer, const std::string& spec) {
  ThreadPool pool(2);
  const auto selector = parse_spec(spec).make_selector();
  layer.show(*selector, pool);
  return selector->select(layer.input(pool), true);
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want,
                 size_t first = 0) {
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[first + i], want[i], 2e-6) << i;
}

std::string refusal(TestLayer& layer, const std::string& spec) {
  try {
    run(layer, spec);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    return error.what();
  }
  return "";
}

Ratio ratio(const char* text) { return Ratio::parse(text); }

TEST(Baselines, ExampleACounts) {
  const std::tuple<int, const char*, int> counts[] = {
      {10, "0.9", 1},      {100, "0.9", 9},   {1000, "0.8", 199}, {4096, "0.8", 819},
      {2787, "0.3", 1950}, {172, "0.75", 43}, {10, "0.7", 3},     {5, "0.8", 1}};
  for (const auto& [n, removed, kept] : counts)
    EXPECT_EQ(reference_kept_tokens(n, ratio(removed)), kept) << n << " " << removed;
  const std::pair<int, int> safe[] = {{4, 1},    {5, 1},     {15, 3},    {319, 63},
                                      {320, 64}, {819, 163}, {2048, 409}};
  for (const auto& [kept, want] : safe) EXPECT_EQ(safe_tokens(kept, ratio("0.2")), want) << kept;
  EXPECT_EQ(safe_tokens(4, ratio("0")), 0);
  EXPECT_EQ(kvzip_pruned(8 * 4096, ratio("0.8")), 26214);
}

TestLayer example_b() {
  TestLayer layer(10, 2, 2, 2, 3);
  fill(&layer.k,
       {{1, 0, 0, 1, 1, 1, -1, 0, 0, -1, 2, 0, 0, 2, 1, -1, -1, 1, .5f, .5f},
        {0, 2, 1, 0, 0, 0, 1, 2, -2, 0, 0, 1, 1, 1, 2, 1, 0, -2, 1, -1}},
       2);
  fill(&layer.q, {{1, 0, 0, 1, 1, 1}, {2, 0, 1, -1, 0, 0}, {0, 1, 1, 0, -1, 1}, {1, 1, 0, 2, 2, 0}},
       2);
  return layer;
}

TEST(Baselines, ExampleBSnapKv) {
  TestLayer layer = example_b();
  const Selection half = run(layer, "snapkv(ratio=0.5,window_size=3)");
  expect_near(half.scores[0], {.064330, .073344, .086646, .112813, .120395, .094476, .085461,
                               1.120395, 1.120395, 1.120395});
  expect_near(half.scores[1], {.059063, .100277, .112464, .093068, .100528, .091508, .050293,
                               1.120395, 1.120395, 1.120395});
  EXPECT_EQ(half.kept, (Sets{{3, 4, 7, 8, 9}, {2, 4, 7, 8, 9}}));
  EXPECT_EQ(run(layer, "snapkv(ratio=0.3,window_size=3)").kept,
            (Sets{{2, 3, 4, 5, 7, 8, 9}, {1, 2, 3, 4, 7, 8, 9}}));
  ThreadPool pool(1);  // the cut alone: one slot for a window of three equal scores
  EXPECT_EQ(keep_best(layer.input(pool), half.scores, 1, false).kept, (Sets{{7}, {7}}));
}

TEST(Baselines, ExampleCKeyDiffAndKNorm) {
  TestLayer layer(6, 2, 1, 2, 0);
  fill(&layer.k, {{3, 1, 0, 1, 1, 1, 2, -1, -1, 0, 1, 4}, {1, 2, 2, 1, 0, -1, 1, 1, 4, 1, -3, 2}},
       2);
  const Selection diff = run(layer, "keydiff");
  expect_near(diff.scores[0], {-.804720, -.817665, -.985254, -.149246, .575695, -.932878});
  expect_near(diff.scores[1], {-.918680, -.971946, .645042, -.996447, -.897777, .278004});
  EXPECT_EQ(diff.kept, (Sets{{0, 3, 4}, {2, 4, 5}}));
  const Selection norm = run(layer, "knorm");
  expect_near(norm.scores[0],
              {-std::sqrt(10.0), -1, -std::sqrt(2.0), -std::sqrt(5.0), -1, -std::sqrt(17.0)});
  EXPECT_EQ(norm.kept, (Sets{{1, 2, 4}, {0, 2, 3}}));
}

TEST(Baselines, ExampleDStreamingLlm) {
  const auto kept = [](int n, const std::string& options) {
    TestLayer layer(n, 1, 1, 2, 0);
    return run(layer, str("streamingllm(", options, ")")).kept[0];
  };
  EXPECT_EQ(kept(12, "ratio=0.5"), (Positions{0, 1, 2, 3, 10, 11}));
  EXPECT_EQ(kept(10, "ratio=0.1"), (Positions{0, 1, 2, 3, 5, 6, 7, 8, 9}));
  EXPECT_EQ(kept(5, "ratio=0.2"), (Positions{0, 1, 2, 3}));
  EXPECT_EQ(kept(12, "ratio=0.75"), (Positions{0, 1, 2}));
  EXPECT_EQ(kept(12, "ratio=0.5,n_sink=2"), (Positions{0, 1, 8, 9, 10, 11}));
  EXPECT_EQ(kept(12, "ratio=0.99,n_sink=0"), (Positions{11}));
}

TEST(Baselines, ExampleEObservedAttention) {
  TestLayer layer(5, 2, 2, 2, 5);
  fill(&layer.k, {{1, 0, 0, 1, 1, 1, -1, 1, .5f, 0}, {0, 1, 2, 0, 1, -1, 0, 0, 1, 1}}, 2);
  fill(&layer.q,
       {{1, 0, 0, 1, 1, 1, 2, 0, 0, 2},
        {0, 1, 1, 0, -1, 1, 1, 1, 1, -1},
        {1, 1, 1, 0, 0, 1, 0, 0, 2, 1},
        {0, 0, 1, 2, 2, 1, -1, 0, 0, 1}},
       2);
  const Selection two = run(layer, "h2o(ratio=0.5)");
  expect_near(two.scores[0], {.450446, .316611, .358335, .117108, .172108});
  expect_near(two.scores[1], {.436028, .430580, .134851, .200286, .292416});
  EXPECT_EQ(two.kept, (Sets{{0, 2}, {0, 1}}));
  EXPECT_EQ(run(layer, "h2o(ratio=0.4)").kept, (Sets{{0, 1, 2}, {0, 1, 4}}));
}

TEST(Baselines, ExampleFAdaKv) {
  const Scores scores{{.90, .85, .80, .75, .70, .65, .60, .55, .50, .45},
                      {.40, .05, .04, .03, .95, .02, .01, .06, .07, .08}};
  ThreadPool pool(1);
  TestLayer layer(10, 2, 1, 2, 0);
  const auto kept = [&](const Scores& s, int n_kept, const char* alpha) {
    LayerInput in = layer.input(pool);
    in.n_tokens = static_cast<int>(s[0].size());
    return keep_best_of_all(in, s, n_kept, ratio(alpha), false).kept;
  };
  EXPECT_EQ(kept(scores, 5, "0.2"), (Sets{{0, 1, 2, 3, 4, 5, 6, 7, 8}, {4}}));
  EXPECT_EQ(kept(scores, 5, "0.6"), (Sets{{0, 1, 2, 3, 4, 5, 6}, {0, 4, 9}}));
  EXPECT_EQ(kept(scores, 5, "1"), (Sets{{0, 1, 2, 3, 4}, {0, 4, 7, 8, 9}}));
  EXPECT_EQ(kept(scores, 3, "0.2"), (Sets{{0, 1, 2, 3, 4}, {4}}));
  EXPECT_EQ(kept(scores, 1, "0.2"), (Sets{{0}, {4}}));
  const Scores equal(2, std::vector<double>(4, 1.0));
  EXPECT_EQ(kept(equal, 2, "0"), (Sets{{}, {0, 1, 2, 3}}));
  EXPECT_EQ(kept(equal, 2, "0.2"), (Sets{{0}, {0, 2, 3}}));
  TestLayer b = example_b();
  EXPECT_EQ(run(b, "adakv(ratio=0.3,window_size=3)").kept,
            (Sets{{3, 4, 5, 7, 8, 9}, {1, 2, 3, 4, 5, 7, 8, 9}}));
  EXPECT_EQ(run(b, "adakv(window_size=3,ratio=0.6,scorer=snapkv)").kept,
            (Sets{{3, 4, 7, 8, 9}, {7, 8, 9}}));
}

TEST(Baselines, ExampleGPyramid) {
  const auto budgets = [](int n, const char* removed, int n_layers) {
    std::vector<int> out;
    for (int layer = 0; layer < n_layers; ++layer)
      out.push_back(pyramid_budget(n, ratio(removed), 64, 20, layer, n_layers));
    return out;
  };
  const std::vector<int> first{3994, 3868, 3743, 3617, 3492, 3366, 3240, 3115, 2989, 2864, 2738,
                               2613, 2487, 2362, 2236, 2111, 1985, 1860, 1734, 1609, 1483, 1358,
                               1232, 1107, 981,  856,  730,  604,  479,  353,  228,  102};
  EXPECT_EQ(budgets(4096, "0.5", 32), first);
  EXPECT_EQ(budgets(8192, "0.75", 32), first);
  EXPECT_EQ(budgets(8192, "0.8", 32),
            (std::vector<int>{3195, 3094, 2994, 2894, 2793, 2693, 2592, 2492, 2392, 2291, 2191,
                              2090, 1990, 1889, 1789, 1689, 1588, 1488, 1387, 1287, 1187, 1086,
                              986,  885,  785,  684,  584,  484,  383,  283,  182,  82}));
  EXPECT_EQ(budgets(4096, "0.25", 32),
            (std::vector<int>{4032, 3970, 3908, 3846, 3784, 3722, 3660, 3598, 3537, 3475, 3413,
                              3351, 3289, 3227, 3165, 3103, 3041, 2979, 2917, 2855, 2793, 2731,
                              2669, 2607, 2546, 2484, 2422, 2360, 2298, 2236, 2174, 2112}));
  EXPECT_EQ(budgets(4096, "0.5", 16),
            (std::vector<int>{3994, 3734, 3475, 3215, 2956, 2697, 2437, 2178, 1918, 1659, 1399,
                              1140, 881, 621, 362, 102}));
  const std::tuple<int, const char*, int> uniform[] = {
      {4096, "0.75", 1024}, {4096, "0.8", 819}, {6400, "0.8", 1280}, {127, "0.5", 64}};
  for (const auto& [n, removed, want] : uniform)
    EXPECT_EQ(budgets(n, removed, 32), std::vector<int>(32, want)) << n;
  for (const auto& [n, removed, sum] :
       {std::tuple{6401, "0.8", 40966}, std::tuple{5120, "0.75", 40960}}) {
    const std::vector<int> all = budgets(n, removed, 32);
    EXPECT_EQ(all.front(), 2496);
    EXPECT_EQ(all.back(), 64);
    EXPECT_EQ(std::accumulate(all.begin(), all.end(), 0), sum);
  }
  EXPECT_EQ(budgets(4096, "0.5", 1), std::vector<int>{3994});  // one layer: the first of a pyramid
  EXPECT_EQ(pyramid_budget(271, ratio("0.25"), 64, 20, 29, 30), 200);  // half to even
}

TEST(Baselines, ExampleHExpectedAttention) {
  ThreadPool pool(2);
  TestLayer layer(6, 1, 2, 2, 6);
  fill(&layer.k, {{5, 0, 1, 0, 0, 1, 1, 1, -1, 1, .5f, -.5f}}, 2);
  fill(&layer.v, {{1, 1, 1, 0, 0, 2, 3, 4, 0, 1, 2, 0}}, 2);
  fill(&layer.q, {{9, 9, 1, 0, 0, 1, 1, 1, 2, 0, 0, -1}, {-9, 9, 0, 1, 1, 1, 0, 2, -1, 0, 1, 0}},
       2);
  const Rope rope{.frequencies = {1.0}, .magnitude = 1, .adjacent = false};
  const auto select = [&](const std::string& options, bool explain) {
    const auto selector =
        parse_spec(str("expected_attention(n_sink=1,n_future_positions=4", options, ")"))
            .make_selector();
    LayerInput in = layer.input(pool);
    in.rope = &rope;
    in.q_pre = in.q;
    selector->observe(in);
    return selector->select(in, explain);
  };
  const Selection plain = select("", true);
  expect_near(plain.scores[0], {2.042532, .162273, .444754, 1.042532, .256072, .301543});
  EXPECT_EQ(plain.kept, (Sets{{0, 2, 3}}));
  const Selection more = select(",epsilon=0.02", true);
  expect_near(more.scores[0], {.182273, .484754, 1.142532, .276072, .341543}, 1);
  EXPECT_EQ(more.kept, (Sets{{0, 2, 3}}));
  // Without norms: the mean softmax alone, which sums to 1 over the tokens after the sink.
  const Selection bare = select(",use_vnorm=false", true);
  EXPECT_NEAR(std::accumulate(bare.scores[0].begin() + 1, bare.scores[0].end(), 0.0), 1, 1e-12);
  EXPECT_NE(select(",use_covariance=false", true).scores, plain.scores);
}

TEST(Baselines, ExampleIKvZip) {
  ThreadPool pool(1);
  TestLayer layer(4, 1, 2, 2, 4);
  fill(&layer.k, {{1, 0, 0, 1, 1, 1, -1, 0}}, 2);
  const std::vector<float> input_keys{0, 0, 1, -1, 0, 2};
  std::vector<float> q;
  fill(&q, {{1, 0, 0, 1, 2, 1}, {1, 1, -1, 0, 0, -1}}, 2);
  for (int step : {1, 3}) {
    KvZipScorer scorer(parse_spec("kvzip(n_sink=1)").calls[0].options);
    const ArrayRows again(input_keys.data(), 1, 2);
    for (int row = 0; row < 3; row += step) {
      scorer.observe_repetition(layer.input(pool),
                                {1, 4, row, layer.queries(q, row, step), &again});
    }
    expect_near(scorer.score(layer.input(pool))[0], {1.425690, .268649, .425690, .368258});
  }

  const std::vector<Scores> layers{{{1, .30, .10, .20}, {1, .05, .90, .15}},
                                   {{1, .60, .70, .80}, {1, .02, .03, .04}}};
  const auto global = [&](const std::vector<Scores>& scores, int64_t n_pruned) {
    std::vector<Selection> out(2);
    keep_across_layers(scores, n_pruned, out);
    return std::vector<Sets>{out[0].kept, out[1].kept};
  };
  const auto layerwise = [&](int64_t n_pruned) {
    std::vector<Selection> out(2);
    for (size_t i = 0; i < 2; ++i) keep_across_layers({&layers[i], 1}, n_pruned, {&out[i], 1});
    return std::vector<Sets>{out[0].kept, out[1].kept};
  };
  const Positions all{0, 1, 2, 3};
  EXPECT_EQ(kvzip_pruned(16, ratio("0.5")), 8);
  EXPECT_EQ(global(layers, 8), (std::vector<Sets>{{{0}, {0, 2}}, {all, {0}}}));
  EXPECT_EQ(layerwise(4), (std::vector<Sets>{{{0, 1}, {0, 2}}, {{0, 2, 3}, {0}}}));
  EXPECT_EQ(kvzip_pruned(16, ratio("0.3")), 4);
  EXPECT_EQ(global(layers, 4), (std::vector<Sets>{{all, {0, 2, 3}}, {all, {0}}}));
  EXPECT_EQ(layerwise(2), (std::vector<Sets>{{{0, 1, 3}, {0, 2, 3}}, {all, {0, 3}}}));
  EXPECT_EQ(kvzip_pruned(16, ratio("0.4")), 6);
  EXPECT_EQ(global(layers, 6), (std::vector<Sets>{{{0, 1, 3}, {0, 2}}, {all, {0}}}));
  std::vector<Scores> pinned = layers;
  for (Scores& one : pinned) {
    for (auto& head : one) head.back() = 2;
  }
  EXPECT_EQ(global(pinned, 6), (std::vector<Sets>{{{0, 3}, {0, 2, 3}}, {{0, 2, 3}, {0, 3}}}));
}

// We divide in double; a run of the reference in bf16 divides by these.
TEST(Baselines, ExampleJDivisorsInBf16) {
  const std::pair<float, float> divisors[] = {{255, 255}, {257, 256},   {258, 258},   {259, 260},
                                              {511, 512}, {1023, 1024}, {4095, 4096}, {4097, 4096}};
  for (const auto& [exact, rounded] : divisors) EXPECT_EQ(to_float(to_bf16(exact)), rounded);
}

TEST(Baselines, SelectAcrossLayersOnlyInSettle) {
  ThreadPool pool(2);
  TestLayer low = TestLayer::random(60, 2, 2, 8, 60, 1),
            high = TestLayer::random(60, 2, 2, 8, 60, 2);
  for (float& x : low.q) x *= 0.1f;  // flat attention: small maxima
  const auto selector = parse_spec("kvzip").make_selector();
  low.show(*selector, pool, 0);
  high.show(*selector, pool, 1);
  std::vector<Selection> layers;
  layers.push_back(selector->select(low.input(pool, 0), false));
  layers.push_back(selector->select(high.input(pool, 1), false));
  selector->settle(layers);
  const auto size = [](const Selection& s) { return s.kept[0].size() + s.kept[1].size(); };
  EXPECT_EQ(size(layers[0]) + size(layers[1]), 120u);
  EXPECT_LT(size(layers[0]), size(layers[1]));
}

TEST(Baselines, RefuseWindowsThatDoNotFit) {
  TestLayer layer = TestLayer::random(100, 2, 2, 8, 100, 1);
  for (const char* method : {"snapkv", "adakv"}) {
    const std::string longer = refusal(layer, str(method, "(window_size=100)"));
    EXPECT_NE(longer.find("window of 100"), std::string::npos) << longer;
    EXPECT_NE(longer.find("prompt of 100"), std::string::npos) << longer;
    const std::string tight = refusal(layer, str(method, "(ratio=0.5,window_size=51)"));
    for (const char* part : {"100 tokens", "50 may stay", "window of 51"})
      EXPECT_NE(tight.find(part), std::string::npos) << tight;
  }
  EXPECT_NE(refusal(layer, "pyramidkv(ratio=0.7)").find("window of 64"), std::string::npos);
  EXPECT_EQ(run(layer, "snapkv(ratio=0.5,window_size=50)").kept[0].size(), 50u);
  EXPECT_EQ(run(layer, "snapkv(ratio=0,window_size=4096)").kept[0].size(), 100u);
}

TEST(Baselines, RefuseWhatTheyWereNotShown) {
  ThreadPool pool(1);
  TestLayer layer = TestLayer::random(100, 2, 2, 8, 100, 1);
  const std::pair<const char*, const char*> wants[] = {{"h2o", "all 100"},
                                                       {"expected_attention", "before RoPE"},
                                                       {"kvzip", "second pass"},
                                                       {"adakv(scorer=kvzip)", "second pass"}};
  for (const auto& [spec, part] : wants) {
    try {
      parse_spec(spec).make_selector()->select(layer.input(pool), false);
      ADD_FAILURE() << spec;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST(Baselines, FisherNeedsAModel) {
  ThreadPool pool(1);
  TestLayer layer = TestLayer::random(40, 2, 2, 8, 40, 1);
  LayerInput in = layer.input(pool);
  in.output_projection = nullptr;
  EXPECT_THROW(parse_spec("fisher(window_size=9)").make_selector()->select(in, false), Error);
}

TEST(Baselines, NothingIsRecordedThatNobodyNeeds) {
  const auto needs = [](const char* spec) { return parse_spec(spec).make_selector()->needs(); };
  for (const char* spec : {"twinkv", "streamingllm", "keydiff", "knorm", "random", "snapkv",
                           "h2o(ratio=0)", "kvzip(ratio=0)"}) {
    EXPECT_FALSE(needs(spec).every_query) << spec;
    EXPECT_FALSE(needs(spec).pre_rope) << spec;
    EXPECT_EQ(needs(spec).repeat_chunk, 0) << spec;
  }
  EXPECT_EQ(needs("keydiff").window_queries, 0);
  EXPECT_EQ(needs("snapkv(window_size=16)").window_queries, 16);
  EXPECT_EQ(needs("pyramidkv").window_queries, 64);
  EXPECT_EQ(needs("adakv(window_size=9)").window_queries, 9);
  EXPECT_TRUE(needs("h2o").every_query);
  EXPECT_FALSE(needs("h2o").pre_rope);
  EXPECT_TRUE(needs("adakv(scorer=expected_attention)").pre_rope);
  EXPECT_EQ(needs("kvzip(chunk_size=100)").repeat_chunk, 100);
}

// Two heads of one query head, keys along one axis: attention is known. Of 4 entries 3 stay: the
// newest, and the two best of the others by all the attention they ever got.
TEST(Baselines, H2oKeepsSumsOfThoseThatStay) {
  ThreadPool pool(1);
  TestLayer layer(4, 1, 1, 2, 4);
  fill(&layer.k, {{0, 0, 5, 0, 1, 0, 0, 0}}, 2);
  fill(&layer.q, {{1, 0, 1, 0, 1, 0, 1, 0}}, 2);
  const auto evictor = parse_spec("h2o").make_evictor();
  EXPECT_TRUE(evictor->needs().every_query);
  evictor->observe(layer.input(pool, 0));
  EXPECT_EQ(evictor->stay(layer.input(pool, 0), 3), (Sets{{0, 1, 3}}));  // 0 was alone once

  // What stayed, and a new entry that all the attention goes to; then 0 is still ahead of 3.
  TestLayer next(4, 1, 1, 2, 1);
  fill(&next.k, {{0, 0, 5, 0, 0, 0, 9, 0}}, 2);
  fill(&next.q, {{3, 0}}, 2);
  evictor->observe(next.input(pool, 0));
  EXPECT_EQ(evictor->stay(next.input(pool, 0), 3), (Sets{{0, 1, 3}}));
}

// Word by word: attention, the head's output, and the projected distance of each value from it.
TEST(Baselines, FisherSignalIsItsFormula) {
  constexpr int kN = 23, kHeads = 2, kGroup = 3, kDim = 4, kWindow = 5, kWidth = 7;
  TestLayer layer = TestLayer::random(kN, kHeads, kGroup, kDim, kWindow, 3);
  Rng rng(4);
  std::vector<float> w(static_cast<size_t>(kWidth * kHeads * kGroup * kDim));
  for (float& x : w) x = static_cast<float>(rng.gaussian());
  ThreadPool pool(2), one(1);
  LayerInput in = layer.input(pool);
  in.output_projection = [&] { return w; };
  const Scores got = fisher_signal(in, kWindow);
  for (int g = 0; g < kHeads; ++g) {
    std::vector<double> want(kN, 0.0);
    for (int h = g * kGroup; h < (g + 1) * kGroup; ++h) {
      for (int row = 0; row < kWindow; ++row) {
        const int seen = kN - kWindow + row + 1;
        std::vector<double> a, out(kDim, 0.0);
        double sum = 0;
        for (int t = 0; t < seen; ++t) {
          double logit = 0;
          for (int c = 0; c < kDim; ++c)
            logit += static_cast<double>(layer.q[(row * kHeads * kGroup + h) * kDim + c]) *
                     static_cast<double>(layer.key(t, g)[c]);
          a.push_back(std::exp(logit * static_cast<double>(in.logit_scale)));
          sum += a.back();
        }
        for (int t = 0; t < seen; ++t)
          for (int c = 0; c < kDim; ++c)
            out[c] += a[t] / sum * static_cast<double>(layer.value(t, g)[c]);
        for (int t = 0; t < seen; ++t) {
          double square = 0;
          for (int i = 0; i < kWidth; ++i) {
            double moved = 0;
            for (int c = 0; c < kDim; ++c)
              moved += static_cast<double>(w[(i * kHeads * kGroup + h) * kDim + c]) *
                       (static_cast<double>(layer.value(t, g)[c]) - out[c]);
            square += moved * moved;
          }
          want[t] += a[t] / sum * (a[t] / sum) * square;
        }
      }
    }
    for (int t = 0; t < kN; ++t) EXPECT_NEAR(got[g][t], want[t], 1e-9 * (1 + want[t])) << g << t;
  }
  in.pool = &one;
  EXPECT_EQ(fisher_signal(in, kWindow), got);
  const Selection kept = parse_spec("fisher(window_size=5)").make_selector()->select(in, false);
  for (const auto& head : kept.kept) {
    ASSERT_EQ(head.size(), 11u);
    for (int i = 0; i < kWindow; ++i) EXPECT_EQ(head[head.size() - 1 - i], kN - 1 - i);
  }
}

TEST(PairRotation, TurnsAndTurnsBack) {
  for (bool adjacent : {false, true}) {
    const Rope rope{.frequencies = {1.0, 0.1}, .magnitude = 1.5, .adjacent = adjacent};
    const std::vector<double> x{1, 2, 3, 4, 5};
    std::vector<double> y = x;
    PairRotation::at(rope, 7).apply(y.data());
    const size_t a = 0, b = adjacent ? 1 : 2;  // the first pair
    EXPECT_NEAR(y[a], 1.5 * (std::cos(7) * x[a] - std::sin(7) * x[b]), 1e-12);
    EXPECT_NEAR(y[b], 1.5 * (std::sin(7) * x[a] + std::cos(7) * x[b]), 1e-12);
    EXPECT_EQ(y[4], 5);
    PairRotation::at(rope, 7).inverse().apply(y.data());
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], x[i], 1e-12);
  }
}

}  // namespace
}  // namespace kvist
