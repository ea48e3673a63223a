// SPDX-License-Identifier: MIT
// Tests of ChooseDepths: the heap of its definition, a full sort, exhaustive search, and the cases
// where ties, zeros and subnormals decide.
#include "kvist/methods/read/choose_depths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <tuple>
#include <vector>

#include "kvist/core/rng.h"
#include "kvist/kernels/tree_code.h"

namespace kvist {
namespace {

using Floats = std::vector<float>;
using Depths = std::vector<uint8_t>;

struct Given {
  Floats a;
  int max_depth = 8, min_depth = 0;
  int64_t budget = 0;
};

double key(float a, int level) {
  return static_cast<double>(a) * static_cast<double>(kernels::kTreeGains[level - 1]);
}

// The same in steps: three workers count pieces in turn, and depths are split from behind.
Depths chosen_together(const Given& given, SharedDepths* shared, int64_t* spent) {
  const size_t n = given.a.size();
  shared->reserve(static_cast<int64_t>(n), 3);
  const std::span<const float> all = given.a;
  Depths out(n, 77);
  for (size_t at = 0, turn = 0; at < n; ++turn) {
    const size_t size = std::min(n - at, 1 + (turn * 37) % 600);
    shared->count(static_cast<int>(turn % 3), all.subspan(at, size));
    at += size;
  }
  shared->cut(all, given.max_depth, given.min_depth, given.budget);
  for (int piece = SharedDepths::n_pieces(n) - 1; piece >= 0; --piece)
    shared->split(piece, all, out);
  *spent = shared->settle(all, out);
  return out;
}

Depths chosen(const Given& given, int64_t* spent = nullptr) {
  DepthWorkspace workspace;
  workspace.reserve(static_cast<int64_t>(given.a.size()));
  Depths out(given.a.size());
  const int64_t sum =
      choose_depths(given.a, given.max_depth, given.min_depth, given.budget, out, workspace);
  EXPECT_EQ(sum, std::accumulate(out.begin(), out.end(), int64_t{0}));
  static SharedDepths shared;  // one for all: a choice leaves nothing behind
  int64_t together = -1;
  EXPECT_EQ(chosen_together(given, &shared, &together), out);
  EXPECT_EQ(together, sum);
  if (spent != nullptr) *spent = sum;
  return out;
}

// The definition: one increment at a time to the largest positive gain, smaller index first.
Depths by_heap(const Given& given) {
  Depths out(given.a.size(), static_cast<uint8_t>(given.min_depth));
  std::priority_queue<std::pair<double, int64_t>> heap;  // gain, -index
  const auto push = [&](size_t i) {
    if (out[i] < given.max_depth)
      heap.emplace(key(given.a[i], out[i] + 1), -static_cast<int64_t>(i));
  };
  for (size_t i = 0; i < out.size(); ++i) push(i);
  int64_t left = given.budget - given.min_depth * static_cast<int64_t>(out.size());
  while (left-- > 0 && !heap.empty() && heap.top().first > 0) {
    const auto i = static_cast<size_t>(-heap.top().second);
    heap.pop();
    ++out[i];
    push(i);
  }
  return out;
}

// The first B positive gains in the total order (gain descending, index, level).
Depths by_sort(const Given& given) {
  Depths out(given.a.size(), static_cast<uint8_t>(given.min_depth));
  std::vector<std::tuple<double, size_t, int>> all;
  for (size_t i = 0; i < out.size(); ++i) {
    for (int level = given.min_depth + 1; level <= given.max_depth; ++level)
      if (key(given.a[i], level) > 0) all.emplace_back(-key(given.a[i], level), i, level);
  }
  std::sort(all.begin(), all.end());
  const int64_t left = given.budget - given.min_depth * static_cast<int64_t>(out.size());
  for (int64_t k = 0; k < std::min<int64_t>(left, static_cast<int64_t>(all.size())); ++k)
    ++out[std::get<1>(all[static_cast<size_t>(k)])];
  return out;
}

double objective(const Floats& a, const Depths& t) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    double d = 1;
    for (int level = 1; level <= t[i]; ++level)
      d -= static_cast<double>(kernels::kTreeGains[level - 1]);
    sum += static_cast<double>(a[i]) * d;
  }
  return sum;
}

Floats weights(Rng& rng, size_t n, int kind) {
  Floats a(n);
  for (float& x : a) {
    switch (kind) {
      case 0:
        x = static_cast<float>(rng.uniform());
        break;
      case 1:  // ties
        x = static_cast<float>(rng.below(4));
        break;
      case 2:
        x = static_cast<float>(std::exp(rng.uniform() * 65 - 60));
        break;
      case 3:  // subnormals, and zeros of both signs
        x = static_cast<float>(rng.below(6)) * 1e-45f * (rng.below(4) == 0 ? 0.0f : 1.0f);
        if (rng.below(5) == 0) x = -0.0f;
        break;
      case 4:  // weights whose gains meet across levels
        x = kernels::kTreeGains[rng.below(8)] * (rng.below(3) == 0 ? 0.0f : 1.0f);
        break;
      default:  // the whole range
        x = std::ldexp(1.0f + static_cast<float>(rng.uniform()),
                       static_cast<int>(rng.below(275)) - 148);
        break;
    }
  }
  return a;
}

TEST(ChooseDepths, SeveralPiecesAndAChoiceCutShortChangeNothing) {
  Rng rng(12);
  SharedDepths shared;
  for (int kind = 0; kind < 6; ++kind) {
    const Given given{weights(rng, 3 * SharedDepths::kPiece - 5, kind), 8, kind % 2,
                      5 * SharedDepths::kPiece};
    int64_t spent = -1;
    const Depths once = chosen(given);
    EXPECT_EQ(chosen_together(given, &shared, &spent), once) << kind;
    shared.count(1, given.a);
    shared.forget();
    EXPECT_EQ(chosen_together(given, &shared, &spent), once) << kind;
  }
  Floats bad(100, 1.0f);
  bad[40] = std::numeric_limits<float>::infinity();
  int64_t spent = 0;
  chosen_together({bad, 8, 0, 200}, &shared, &spent);
  EXPECT_EQ(spent, -1);
  const Given after{weights(rng, 1000, 2), 8, 0, 2000};
  EXPECT_EQ(chosen_together(after, &shared, &spent), chosen(after));
}

TEST(ChooseDepths, Rk30EqualsHeapAndSort) {
  for (uint64_t seed = 1; seed <= 6000; ++seed) {
    Rng rng(seed);
    Given given;
    const size_t n = rng.below(seed % 50 == 0 ? 1500 : 41);
    given.a = weights(rng, n, static_cast<int>(seed % 6));
    given.max_depth = 1 + static_cast<int>(rng.below(8));
    given.min_depth = seed % 3 == 0 ? static_cast<int>(rng.below(3)) : 0;
    given.min_depth = std::min(given.min_depth, given.max_depth);
    given.budget =
        static_cast<int64_t>(rng.below(n * (static_cast<size_t>(given.max_depth) + 1) + 2));
    const Depths want = by_heap(given);
    ASSERT_EQ(by_sort(given), want) << "seed " << seed;
    ASSERT_EQ(chosen(given), want) << "seed " << seed << " n " << n << " W " << given.max_depth
                                   << " m " << given.min_depth << " B " << given.budget;
  }
}

TEST(ChooseDepths, Rk30EveryBudgetOfOneSet) {
  Rng rng(30);
  for (int kind = 0; kind < 6; ++kind) {
    Given given{weights(rng, 37, kind)};
    for (given.budget = 0; given.budget <= 37 * 8 + 1; ++given.budget)
      ASSERT_EQ(chosen(given), by_heap(given)) << kind << " B " << given.budget;
  }
}

TEST(ChooseDepths, Rk30OptimumOfSmallCases) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Rng rng(seed);
    Given given;
    given.max_depth = 1 + static_cast<int>(rng.below(4));
    given.a = weights(rng, 1 + rng.below(5), seed % 2 == 0 ? 0 : 1);
    given.budget = static_cast<int64_t>(rng.below(given.a.size() * 4 + 1));
    double best = std::numeric_limits<double>::infinity();
    Depths t(given.a.size());
    const std::function<void(size_t, int64_t)> fill = [&](size_t i, int64_t left) {
      if (i == t.size()) {
        best = std::min(best, objective(given.a, t));
        return;
      }
      for (int d = 0; d <= std::min<int64_t>(given.max_depth, left); ++d) {
        t[i] = static_cast<uint8_t>(d);
        fill(i + 1, left - d);
      }
    };
    fill(0, given.budget);
    EXPECT_NEAR(objective(given.a, chosen(given)), best, 1e-12) << "seed " << seed;
  }
}

TEST(ChooseDepths, Rk30LargeSetsOfManyShapes) {
  for (int kind = 0; kind < 6; ++kind) {
    Rng rng(static_cast<uint64_t>(kind));
    Given given{weights(rng, 20011, kind)};
    for (int64_t budget : {1, 5000, 20011, 40022, 80000, 159000}) {
      given.budget = budget;
      ASSERT_EQ(chosen(given), by_sort(given)) << kind << " B " << budget;
    }
  }
}

TEST(ChooseDepths, TiesGoToTheSmallerIndex) {
  EXPECT_EQ(chosen({Floats(5, 1.0f), 8, 0, 7}), (Depths{2, 2, 1, 1, 1}));
  EXPECT_EQ(chosen({{1.25f, 1.25f, 1.25f, .0625f}, 8, 0, 12}), (Depths{4, 4, 3, 1}));
  EXPECT_EQ(chosen({Floats(3000, 0.5f), 8, 0, 1}), [] {
    Depths one(3000, 0);
    one[0] = 1;
    return one;
  }());
}

TEST(ChooseDepths, BudgetAtItsEnds) {
  int64_t spent = -1;
  EXPECT_EQ(chosen({{3, 1, 2}, 8, 0, 0}, &spent), (Depths{0, 0, 0}));
  EXPECT_EQ(spent, 0);
  EXPECT_EQ(chosen({{3, 1, 2}, 5, 0, 15}, &spent), (Depths{5, 5, 5}));
  EXPECT_EQ(chosen({{3, 0, 2}, 5, 0, 99}, &spent), (Depths{5, 0, 5}));
  EXPECT_EQ(spent, 10);
  EXPECT_EQ(chosen({{0, 0, 0}, 5, 1, 9}, &spent), (Depths{1, 1, 1}));
  EXPECT_EQ(spent, 3);
  EXPECT_EQ(chosen({{5, 7}, 5, 2, 1}, &spent), (Depths{2, 2}));  // the minimum goes first
  EXPECT_EQ(spent, 4);
  EXPECT_EQ(chosen({{}, 8, 0, 4}, &spent), Depths{});
  EXPECT_EQ(spent, 0);
}

TEST(ChooseDepths, RefusesWeightsThatAreNone) {
  int64_t spent = 0;
  for (float bad : {-1.0f, -1e-45f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    DepthWorkspace workspace;
    workspace.reserve(3);
    Depths out(3);
    const Floats a{1, bad, 2};
    EXPECT_EQ(choose_depths(a, 8, 0, 4, out, workspace), -1) << bad;
    EXPECT_EQ(two_depth(a, 8, 0, 8, out, workspace), -1) << bad;
  }
  EXPECT_EQ(chosen({{-0.0f, 1}, 8, 0, 3}, &spent), (Depths{0, 3}));
}

TEST(ChooseDepths, Rk40FactorsChangeNothing) {
  Rng rng(40);
  Given given{weights(rng, 500, 2), 8, 0, 1000};
  const Depths want = chosen(given);
  for (float factor : {0.25f, 8.0f, 0x1p-40f}) {
    Given scaled = given;
    for (float& a : scaled.a) a *= factor;  // powers of two are exact
    EXPECT_EQ(chosen(scaled), want) << factor;
  }
}

// Both hypotheses of the greedy rule are needed.
TEST(ChooseDepths, Rk18GreedyFailsWithoutItsHypotheses) {
  const double gains[2][2] = {{0, 100}, {1, 1}};  // increasing gains of one item
  double greedy = 0, best = 0;
  int taken[2] = {};
  for (int step = 0; step < 2; ++step) {
    const auto next = [&](int i) { return taken[i] < 2 ? gains[i][taken[i]] : -1.0; };
    const int i = next(0) >= next(1) ? 0 : 1;
    greedy += next(i);
    ++taken[i];
  }
  for (int first = 0; first <= 2; ++first) {
    double sum = 0;
    for (int k = 0; k < first; ++k) sum += gains[0][k];
    for (int k = 0; k < 2 - first; ++k) sum += gains[1][k];
    best = std::max(best, sum);
  }
  EXPECT_EQ(greedy, 2);
  EXPECT_EQ(best, 100);
  // Unequal costs: of a gain 3 that costs 2 and two gains 2 that cost 1, the largest comes first.
  const std::pair<double, int> items[3] = {{3, 2}, {2, 1}, {2, 1}};
  double naive = 0, exact = 0;
  int left = 2;
  for (const auto& [value, cost] : items) {
    if (cost > left) continue;
    naive += value;
    left -= cost;
  }
  for (int set = 0; set < 8; ++set) {
    double value = 0;
    int cost = 0;
    for (int i = 0; i < 3; ++i) {
      if ((set >> i & 1) == 0) continue;
      value += items[i].first;
      cost += items[i].second;
    }
    if (cost <= 2) exact = std::max(exact, value);
  }
  EXPECT_EQ(naive, 3);
  EXPECT_EQ(exact, 4);
}

TEST(TwoDepth, GivesAllToTheLargest) {
  DepthWorkspace workspace;
  workspace.reserve(4000);
  Depths out(5);
  const Floats a{1, 3, 2, 3, 0};
  EXPECT_EQ(two_depth(a, 8, 0, 17, out, workspace), 16);
  EXPECT_EQ(out, (Depths{0, 8, 0, 8, 0}));
  EXPECT_EQ(two_depth(a, 8, 1, 5, out, workspace), 5);
  EXPECT_EQ(out, (Depths{1, 1, 1, 1, 1}));
  EXPECT_EQ(two_depth(a, 4, 1, 9, out, workspace), 8);  // one of the two equal ones
  EXPECT_EQ(out, (Depths{1, 4, 1, 1, 1}));
  EXPECT_EQ(two_depth(a, 8, 0, 1000, out, workspace), 40);
  EXPECT_EQ(out, (Depths{8, 8, 8, 8, 8}));
}

TEST(TwoDepth, EqualsAStableSort) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Rng rng(seed);
    const size_t n = 1 + rng.below(1000);
    const Floats a = weights(rng, n, static_cast<int>(seed % 6));
    const int low = static_cast<int>(rng.below(2)), k = static_cast<int>(rng.below(n + 1));
    std::vector<size_t> order(n);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t x, size_t y) { return a[x] > a[y]; });
    Depths want(n, static_cast<uint8_t>(low)), got(n);
    for (int i = 0; i < k; ++i) want[order[static_cast<size_t>(i)]] = 8;
    DepthWorkspace workspace;
    workspace.reserve(static_cast<int64_t>(n));
    const int64_t budget = low * static_cast<int64_t>(n) + k * (8 - low) + (8 - low) - 1;
    ASSERT_EQ(two_depth(a, 8, low, budget, got, workspace),
              std::accumulate(want.begin(), want.end(), int64_t{0}));
    ASSERT_EQ(got, want) << "seed " << seed;
  }
}

}  // namespace
}  // namespace kvist
