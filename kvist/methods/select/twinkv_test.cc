// SPDX-License-Identifier: MIT
// Tests of TwinKV: the worked examples of the method's specification, its edge cases, controls and
// refusals.
#include "kvist/methods/select/twinkv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kvist/core/error.h"
#include "kvist/kernels/similar.h"
#include "kvist/kernels/targets.h"
#include "kvist/methods/select/quota.h"
#include "kvist/methods/select/topk.h"
#include "kvist/methods/spec.h"
#include "kvist/methods/test_layer.h"

namespace kvist {
namespace {

using Positions = std::vector<int32_t>;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

twin::Config config(const std::string& spec) {
  return twin::Config::from(parse_spec(spec).calls.at(0).options);
}

Selection select(TestLayer& layer, const std::string& spec, int threads = 2, int model_layer = 0) {
  ThreadPool pool(threads);
  return parse_spec(spec).make_selector()->select(layer.input(pool, model_layer), true);
}

Positions range(int begin, int end) {
  Positions out(static_cast<size_t>(end - begin));
  std::iota(out.begin(), out.end(), begin);
  return out;
}

size_t total(const Selection& selection) {
  size_t sum = 0;
  for (const auto& kept : selection.kept) sum += kept.size();
  return sum;
}

TEST(TwinBudget, Example1HalfOf512) {
  const twin::Budget b = twin::budget(512, config("twinkv"));
  EXPECT_EQ(b.kept, 256);
  EXPECT_EQ(b.sinks, 4);
  EXPECT_EQ(b.recent, 64);
  EXPECT_EQ(b.slots(), 188);
  const std::vector<int> u = mixed_quotas(std::vector<int>{80, 296}, b.slots());
  EXPECT_EQ(u[0] + 68, 202);
  EXPECT_EQ(u[1] + 68, 310);
}

TEST(TwinBudget, Example2ShortPrefixIsAllProtected) {
  const twin::Budget b = twin::budget(172, config("twinkv(ratio=3/4)"));
  EXPECT_EQ(b.kept, 43);
  EXPECT_EQ(b.sinks, 4);
  EXPECT_EQ(b.recent, 39);
  EXPECT_EQ(b.slots(), 0);
  TestLayer layer = TestLayer::random(172, 2, 1, 8, 32, 1);
  Positions want = range(0, 4);
  for (int i = 133; i <= 171; ++i) want.push_back(i);
  EXPECT_EQ(select(layer, "twinkv(ratio=3/4)").kept, (std::vector<Positions>{want, want}));
}

TEST(TwinBudget, IsExactForEveryLengthAndTenths) {
  for (int n = 1; n <= 700; ++n) {
    for (int tenths = 0; tenths < 10; ++tenths) {
      const twin::Budget b = twin::budget(n, config(str("twinkv(ratio=", tenths, "/10)")));
      ASSERT_EQ(b.kept, n * (10 - tenths) / 10);
      ASSERT_EQ(b.sinks + b.recent + b.slots(), b.kept);
      ASSERT_GE(b.slots(), 0);
      ASSERT_LE(b.slots(), b.open());
    }
  }
}

TEST(TwinCounts, Example3) {
  TestLayer layer(8, 1, 1, 2, 0);
  layer.k = {1, 0, 3, 1, 0, 1, 1, 0, 4, 1, 1, 1, 0, 2, 2, 0};
  std::fill(layer.v.begin(), layer.v.end(), 1.0f);
  const Selection s = select(layer, "twinkv(ell=2,sinks=1,recent=1,capacity=uniform)");
  EXPECT_EQ(s.counts.at(0), (Positions{3, 3, 1, 2, 3, 1, 1, 4}));
}

// Example 4 (the pool) belongs to the kernel; here its place in the signal: the pool reaches into
// protected positions or not. One query that looks at position 1 alone.
TEST(TwinCapacity, Example4PoolCopiesTheMaximumWithinThree) {
  TestLayer layer(12, 1, 1, 2, 1);
  layer.key(1, 0)[0] = 200;
  layer.q = {1, 0};
  ThreadPool pool(1);
  const auto z = [&](const std::string& spec) {
    twin::Trace trace;
    twin::select(layer.input(pool), config(spec), true, &trace);
    return std::vector<float>(trace.signals.z.begin(), trace.signals.z.end());
  };
  // Open positions are 2..10; position 1 reaches 2, 3 and 4.
  const std::vector<float> seen = z("twinkv(sinks=2,recent=1,window=1)");
  for (size_t i = 0; i < 9; ++i) EXPECT_NEAR(seen[i], i < 3 ? 1.0f : 0.0f, 1e-6f) << i;
  const std::vector<float> unseen =
      z("twinkv(sinks=2,recent=1,window=1,pool_sees_protected=false)");
  for (size_t i = 0; i < 9; ++i) EXPECT_NEAR(unseen[i], 0.0f, 1e-6f) << i;
  const std::vector<float> narrow = z("twinkv(sinks=2,recent=1,window=1,pool=3)");
  for (size_t i = 0; i < 9; ++i) EXPECT_NEAR(narrow[i], i < 1 ? 1.0f : 0.0f, 1e-6f) << i;
}

struct Example5 {
  twin::Config config = kvist::config("twinkv(sinks=1,recent=2)");
  twin::Budget budget = twin::budget(12, config);
  twin::Signals signals;
  std::vector<double> factors = twin::discounts(12, twin::Discount::log);

  Example5() {
    const float energies[] = {9, 5, 4, 3, 8, 7, 1, 2, 6, 5, 9, 9,
                              1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6};
    const int32_t counts[] = {0, 0, 3, 0, 1, 0, 0, 0, 2, 0, 0, 0};
    const float z[] = {.05f, .04f, .03f, .02f, .30f, .01f, .01f, .01f, .01f,
                       .20f, .01f, .01f, .01f, .01f, .01f, .01f, .01f, .01f};
    signals.energies = Buffer<float>(24);
    signals.counts = Buffer<int32_t>(24);
    signals.z = Buffer<float>(18);
    std::copy(std::begin(energies), std::end(energies), signals.energies.begin());
    std::copy(std::begin(counts), std::end(counts), signals.counts.begin());
    std::copy(std::begin(z), std::end(z), signals.z.begin());
  }
  Positions open(int head, int slots) {
    const auto scores = twin::open_scores(signals, head, budget, config, factors);
    return top_positions({scores, {signals.energies.data() + head * 12 + 1, 9}, 1}, slots);
  }
};

TEST(TwinSelection, Example5QuotasScoresAndSets) {
  Example5 e;
  EXPECT_EQ(e.budget.slots(), 3);
  const std::vector<int> g = global_counts({e.signals.z.data(), {2, 9}}, 3), u = mixed_quotas(g, 3);
  EXPECT_EQ(g, (std::vector<int>{5, 1}));
  EXPECT_EQ(u, (std::vector<int>{4, 2}));
  const double want[] = {12.8247, 4.7146, 7.6948, 14.9744, 17.9546,
                         2.5649,  5.1299, 8.7980, 12.8247};
  const auto scores = twin::open_scores(e.signals, 0, e.budget, e.config, e.factors);
  for (size_t i = 0; i < 9; ++i) EXPECT_NEAR(scores[i], want[i], 5e-5);
  EXPECT_EQ(e.open(0, 4), (Positions{1, 4, 5, 9}));
  EXPECT_EQ(e.open(1, 2), (Positions{8, 9}));
  e.config.score = twin::Score::value;
  EXPECT_EQ(e.open(0, 4), (Positions{1, 4, 5, 8}));
}

TEST(TwinSelection, Example6EqualScoresGoToTheLargerEnergy) {
  const auto factors = twin::discounts(15, twin::Discount::log);
  EXPECT_EQ(2 * factors[0], 4 * factors[3]);
  EXPECT_EQ(2 * factors[0], 5.545177444479562);
  const std::vector<double> scores = {2 * factors[0], 4 * factors[3]};
  const std::vector<float> energies = {2, 4};
  EXPECT_EQ(ranked_positions({scores, energies, 0}), (Positions{1, 0}));
}

TEST(TwinSelection, Example7FullTiesGoByPosition) {
  TestLayer layer(40, 2, 1, 2, 0);
  std::fill(layer.k.begin(), layer.k.end(), 1.0f);
  std::fill(layer.v.begin(), layer.v.end(), 1.0f);
  const Selection s = select(layer, "twinkv(sinks=1,recent=2,ell=40,capacity=uniform,ratio=1/2)");
  Positions want = range(0, 18);
  want.push_back(38);
  want.push_back(39);
  EXPECT_EQ(s.kept, (std::vector<Positions>{want, want}));
}

TEST(TwinCounts, Example8TheThresholdItselfDoesNotCount) {
  const float a[] = {20, 0, 0, 0, 0}, b[] = {17, 10, 3, 1, 1}, c[] = {3, 1}, d[] = {1, 1};
  EXPECT_FALSE(kernels::similar(a, b, 5));
  EXPECT_TRUE(kernels::similar(c, d, 2));
  TestLayer layer(2, 1, 1, 5, 0);
  std::copy_n(a, 5, layer.key(0, 0));
  std::copy_n(b, 5, layer.key(1, 0));
  const std::string spec = "twinkv(ratio=0,sinks=0,recent=0,ell=0,capacity=uniform)";
  EXPECT_EQ(select(layer, spec).counts.at(0), (Positions{0, 0}));
  layer.key(1, 0)[0] = std::nextafter(17.0f, 18.0f);
  EXPECT_EQ(select(layer, spec).counts.at(0), (Positions{1, 1}));
}

TEST(TwinDiscount, Figure3OrderFlips) {
  const auto factors = twin::discounts(512, twin::Discount::log);
  const double whole = std::log(513.0);
  EXPECT_NEAR(factors[2] / whole, 0.823948, 5e-7);
  EXPECT_NEAR(0.95 * factors[2] / whole, 0.782751, 5e-7);
  EXPECT_DOUBLE_EQ(factors[0] / whole, 1.0);
  EXPECT_LT(0.95 * factors[2], 0.80 * factors[0]);
}

TEST(TwinDiscount, EveryShapeStartsHighestAndStaysPositive) {
  for (auto shape : {twin::Discount::log, twin::Discount::inverse, twin::Discount::inverse_sqrt,
                     twin::Discount::linear, twin::Discount::hard}) {
    const auto factors = twin::discounts(50, shape);
    ASSERT_EQ(factors.size(), 51u);
    for (size_t c = 1; c < 50; ++c) {
      EXPECT_GT(factors[c], 0.0);
      EXPECT_LE(factors[c], factors[c - 1]);
      EXPECT_LT(factors[c], factors[0]);
    }
  }
  EXPECT_EQ(twin::discounts(9, twin::Discount::linear)[5], 0.5);
  EXPECT_EQ(twin::discounts(9, twin::Discount::inverse)[3], 0.25);
  EXPECT_EQ(twin::discounts(9, twin::Discount::inverse_sqrt)[3], 0.5);
}

TEST(TwinKv, BudgetIsExactForManyShapes) {
  for (int n : {1, 2, 5, 31, 32, 33, 67, 68, 69, 70, 133, 200}) {
    for (int group : {1, 2, 8}) {
      TestLayer layer = TestLayer::random(n, 3, group, 10, std::min(n, 32),
                                          static_cast<uint64_t>(n * 10 + group));
      for (int tenths = 0; tenths < 10; ++tenths) {
        const size_t budget = static_cast<size_t>(n * (10 - tenths) / 10);
        if (budget == 0) continue;
        const Selection s = select(layer, str("twinkv(ratio=", tenths, "/10)"));
        ASSERT_EQ(total(s), 3 * budget) << n << " " << tenths;
        for (const Positions& kept : s.kept) {
          ASSERT_TRUE(std::is_sorted(kept.begin(), kept.end()));
          ASSERT_EQ(std::adjacent_find(kept.begin(), kept.end()), kept.end());
          ASSERT_GE(kept.front(), 0);
          ASSERT_LT(kept.back(), n);
          for (int i = 0; i < std::min<int>(4, static_cast<int>(budget)); ++i)
            ASSERT_EQ(kept[static_cast<size_t>(i)], i);
        }
      }
    }
  }
}

TEST(TwinKv, RatioZeroKeepsEverythingAlsoWhenExplained) {
  TestLayer layer = TestLayer::random(90, 2, 2, 6, 32, 4);
  ThreadPool pool(2);
  const auto selector = parse_spec("twinkv(ratio=0)").make_selector();
  for (bool explain : {false, true}) {
    const Selection s = selector->select(layer.input(pool), explain);
    EXPECT_EQ(s.kept, (std::vector<Positions>{range(0, 90), range(0, 90)}));
    EXPECT_EQ(s.scores.size(), explain ? 2u : 0u);
  }
}

TEST(TwinKv, AnExplanationHasScoresAndCountsAlsoWhereOnlyProtectedTokensFit) {
  TestLayer layer = TestLayer::random(100, 2, 2, 6, 32, 4);
  ThreadPool pool(2);
  const auto selector =
      parse_spec("twinkv(ell=4)").make_selector();  // 50 kept: 4 sinks and 46 recent
  const Selection plain = selector->select(layer.input(pool), false);
  const Selection explained = selector->select(layer.input(pool), true);
  EXPECT_EQ(plain.kept, explained.kept);
  EXPECT_TRUE(plain.counts.empty());
  EXPECT_EQ(explained.counts, select(layer, "twinkv(ratio=0.1,ell=4)").counts);
  EXPECT_EQ(explained.scores, select(layer, "twinkv(ratio=0.1,ell=4)").scores);
}

TEST(TwinKv, OneTokenIsRefusedUnlessEmptyIsAllowed) {
  TestLayer layer = TestLayer::random(1, 2, 1, 4, 1, 2);
  try {
    select(layer, "twinkv");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    EXPECT_STREQ(
        error.what(),
        "twinkv: 1 tokens at ratio 0.5 leave none; give a smaller ratio, or allow_empty=true");
  }
  EXPECT_EQ(select(layer, "twinkv(allow_empty=true)").kept, std::vector<Positions>(2));
  EXPECT_EQ(select(layer, "twinkv(ratio=0)").kept, (std::vector<Positions>{{0}, {0}}));
}

TEST(TwinKv, FewerTokensThanTheWindowVoteWithAllQueries) {
  TestLayer layer = TestLayer::random(20, 2, 2, 6, 20, 3);
  EXPECT_EQ(total(select(layer, "twinkv(sinks=2,recent=2,ratio=0.4)")), 24u);
}

TEST(TwinKv, MoreQueryRowsThanNeededChangeNothing) {
  TestLayer layer = TestLayer::random(100, 2, 2, 6, 100, 3);
  const auto all = select(layer, "twinkv(sinks=2,recent=9)").kept;
  const size_t row = static_cast<size_t>(layer.kv_heads * layer.group * layer.head_dim);
  layer.q.erase(layer.q.begin(), layer.q.begin() + static_cast<std::ptrdiff_t>(68 * row));
  layer.rows = 32;
  EXPECT_EQ(select(layer, "twinkv(sinks=2,recent=9)").kept, all);
}

TEST(TwinKv, TooFewQueriesAreRefusedWithBothNumbers) {
  TestLayer layer = TestLayer::random(100, 2, 2, 6, 31, 3);
  try {
    select(layer, "twinkv(recent=9)");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("last 32 positions, [32, 4, 6], found [31, 4, 6]"),
              std::string::npos)
        << error.what();
  }
  EXPECT_EQ(total(select(layer, "twinkv(capacity=uniform)")), 100u);
}

TEST(TwinKv, ZeroKeysAndValuesAreLegal) {
  TestLayer layer(100, 2, 1, 4, 32);
  const Selection s = select(layer, "twinkv(ratio=0.2)");
  // Nothing is similar, all scores are 0, attention is uniform up to causality: ties go by
  // position.
  EXPECT_EQ(total(s), 160u);
  EXPECT_EQ(s.counts.at(0), Positions(100, 0));
  for (double score : s.scores.at(1)) EXPECT_EQ(score, 0.0);
  for (const Positions& kept : s.kept) {
    for (size_t i = 0; i < kept.size() - 64; ++i) EXPECT_EQ(kept[i], static_cast<int32_t>(i));
  }
}

TEST(TwinKv, NumbersThatAreNotFiniteAreRefusedWithTheirPlace) {
  const auto message = [](TestLayer& layer, const std::string& spec) -> std::string {
    try {
      select(layer, spec, 2, 7);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::corrupt);
      return error.what();
    }
    return "not refused";
  };
  for (const char* spec :
       {"twinkv", "twinkv(ratio=0)", "twinkv(ratio=0.9)", "twinkv(score=value,capacity=uniform)"}) {
    TestLayer layer = TestLayer::random(200, 2, 2, 6, 32, 3);
    layer.value(150, 0)[5] = kInf;
    EXPECT_NE(message(layer, spec).find("layer 7, head 0, position 150: the value holds inf"),
              std::string::npos)
        << message(layer, spec);
    layer.key(199, 1)[0] = kNan;
    layer.key(37, 1)[3] = kNan;
    layer.value(150, 0)[5] = 1;
    EXPECT_NE(message(layer, spec).find("layer 7, head 1, position 37: the key holds nan"),
              std::string::npos)
        << message(layer, spec);
  }
  TestLayer layer = TestLayer::random(200, 2, 2, 6, 32, 3);
  layer.q[static_cast<size_t>(3 * 24 + 2 * 6)] = -kInf;  // row 3: position 171; query head 2
  EXPECT_NE(
      message(layer, "twinkv").find("layer 7, query head 2, position 171: the query holds -inf"),
      std::string::npos)
      << message(layer, "twinkv");
}

TEST(TwinKv, NonfiniteLastRanksThemLast) {
  TestLayer layer = TestLayer::random(60, 2, 2, 6, 32, 3);
  const std::string spec = "twinkv(sinks=1,recent=2,ell=4,ratio=0.1,nonfinite=last)";
  for (int i = 10; i < 16; ++i) layer.value(i, 0)[0] = kNan;
  layer.key(20, 0)[0] = kNan;
  layer.key(21, 0)[1] = kInf;
  const Selection s = select(layer, spec);
  EXPECT_EQ(total(s), 108u);
  EXPECT_EQ(s.counts.at(0).at(20), 0);
  EXPECT_EQ(s.counts.at(0).at(21), 0);
  // Head 0 has no signal, so it gets the smaller share, 48 of 57 open positions; the six NaN are
  // among the nine it drops.
  EXPECT_EQ(s.kept[0].size(), 51u);
  for (int i = 10; i < 16; ++i) {
    EXPECT_FALSE(std::binary_search(s.kept[0].begin(), s.kept[0].end(), i)) << i;
  }
  for (float& x : layer.q) x = kNan;
  EXPECT_EQ(select(layer, spec).kept[0].size(), 54u);  // no head has a signal: uniform
}

TEST(TwinKv, EnergiesBeyondFloatAreTheLargest) {
  TestLayer layer = TestLayer::random(60, 1, 1, 6, 32, 3);
  layer.value(30, 0)[0] = 1e30f;
  const Selection s = select(layer, "twinkv(sinks=1,recent=2,ell=4,ratio=0.9)");
  EXPECT_TRUE(std::binary_search(s.kept[0].begin(), s.kept[0].end(), 30));
}

TEST(TwinKv, SameBytesForAnyThreadCountAndInstructionSet) {
  TestLayer layer = TestLayer::random(700, 3, 3, 64, 32, 8);
  for (const char* spec :
       {"twinkv(ratio=0.7)", "twinkv(ratio=1/3,pool_order=per_query_head,replace=matched:5)"}) {
    const Selection want = select(layer, spec, 1);
    for (int threads : {2, 5}) {
      const Selection got = select(layer, spec, threads);
      EXPECT_EQ(got.kept, want.kept);
      EXPECT_EQ(got.scores, want.scores);
      EXPECT_EQ(got.counts, want.counts);
    }
    kernels::for_each_target([&](const std::string& target) {
      const Selection got = select(layer, spec);
      EXPECT_EQ(got.counts, want.counts) << target;
      EXPECT_EQ(got.scores, want.scores) << target;
      EXPECT_EQ(got.kept, want.kept) << target;
    });
  }
}

TEST(TwinKv, WorkspaceStaysBelowOneLayerOfKeysAndValues) {
  constexpr int kTokens = 4096;
  TestLayer layer = TestLayer::random(kTokens, 3, 3, 64, 32, 8);
  ThreadPool pool(2);
  const auto selector = parse_spec("twinkv(ratio=0.7)").make_selector();
  const uint64_t before = buffer_totals().live_bytes;
  reset_buffer_peak();
  selector->select(layer.input(pool), false);
  const uint64_t used = buffer_totals().peak_bytes - before,
                 layer_f16 = uint64_t{2} * 3 * 64 * 2 * kTokens;
  // Keys of one head in f32 and their packed copies are exactly that; signals of 40 bytes a token,
  // and panels, come on top.
  EXPECT_LT(used, layer_f16);
  EXPECT_EQ(buffer_totals().live_bytes, before);
}

TEST(TwinControls, PermutedCountsAreTheSameNumbersElsewhere) {
  TestLayer layer = TestLayer::random(200, 2, 1, 8, 32, 6);
  const Selection plain = select(layer, "twinkv(ell=4)");
  const Selection mixed = select(layer, "twinkv(ell=4,counts=permuted:11)");
  for (size_t head = 0; head < 2; ++head) {
    Positions a = plain.counts[head], b = mixed.counts[head];
    EXPECT_NE(a, b);
    EXPECT_TRUE(std::equal(a.begin(), a.begin() + 4, b.begin()));
    EXPECT_TRUE(std::equal(a.end() - 64, a.end(), b.end() - 64));
    std::sort(a.begin(), a.end());
    std::sort(b.begin(), b.end());
    EXPECT_EQ(a, b);
  }
  EXPECT_NE(select(layer, "twinkv(ell=4,counts=permuted:29)").counts, mixed.counts);
  EXPECT_NE(select(layer, "twinkv(ell=4,counts=permuted:11)", 2, 1).counts, mixed.counts);
}

TEST(TwinControls, MatchedReplacementChangesAsMuchAsTwinDoes) {
  TestLayer layer = TestLayer::random(400, 2, 1, 8, 32, 6);
  const std::string base = "twinkv(ratio=0.7,ell=4,sinks=2,recent=8";
  const auto value = select(layer, base + ",score=value)").kept,
             twins = select(layer, base + ")").kept;
  const auto control = select(layer, base + ",replace=matched:11)").kept;
  const auto added = [](const Positions& a, const Positions& b) {
    Positions out;
    std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
    return out.size();
  };
  for (size_t head = 0; head < 2; ++head) {
    ASSERT_EQ(control[head].size(), twins[head].size());
    EXPECT_GT(added(twins[head], value[head]), 0u);
    EXPECT_EQ(added(control[head], value[head]), added(twins[head], value[head]));
  }
  EXPECT_NE(control, twins);
}

TEST(TwinControls, UniformCapacityGivesEveryHeadTheBudget) {
  TestLayer layer = TestLayer::random(200, 4, 2, 8, 32, 6);
  for (const Positions& kept : select(layer, "twinkv(capacity=uniform)").kept)
    EXPECT_EQ(kept.size(), 100u);
  EXPECT_EQ(parse_spec("twinkv(capacity=uniform)").make_selector()->needs().window_queries, 0);
  EXPECT_EQ(parse_spec("twinkv").make_selector()->needs().window_queries, 32);
}

}  // namespace
}  // namespace kvist
