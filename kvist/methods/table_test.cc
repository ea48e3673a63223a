// SPDX-License-Identifier: MIT
// Contract of every row of the method table: what all selectors promise, whatever they do.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>

#include "kvist/core/error.h"
#include "kvist/kernels/targets.h"
#include "kvist/methods/describe.h"
#include "kvist/methods/option_value.h"
#include "kvist/methods/select/budget.h"
#include "kvist/methods/select/kvzip.h"
#include "kvist/methods/select/pyramidkv.h"
#include "kvist/methods/spec.h"
#include "kvist/methods/test_layer.h"

namespace kvist {
namespace {

std::vector<const Method*> selectors() {
  std::vector<const Method*> out;
  for (const Method* method : methods()) {
    if (method->select != nullptr) out.push_back(method);
  }
  return out;
}

Selection run_method(const std::string& spec, TestLayer& layer, int threads = 2) {
  ThreadPool pool(threads);
  const auto selector = parse_spec(spec).make_selector();
  layer.show(*selector, pool, 3);
  Selection selection = selector->select(layer.input(pool, 3), true);
  selector->settle({&selection, 1});
  return selection;
}

// "name(options)", with the smallest window where the method has one: prompts here are short.
std::string spec_of(const Method& method, const std::string& options) {
  const std::vector<const Method*> snap = {&find_method("snapkv"), &find_method("pyramidkv"),
                                           &find_method("adakv"), &find_method("fisher")};
  const bool windowed = std::find(snap.begin(), snap.end(), &method) != snap.end();
  return str(method.name, "(", options, windowed ? ",window_size=1" : "", ")");
}

// Entries that layer 3 of 4 keeps. Published baselines have their references' arithmetic.
int64_t entries_kept(const Method& method, int heads, int n, Ratio removed) {
  const std::string_view name = method.name;
  if (name == "twinkv" || name == "random") return heads * kept_tokens(n, removed);
  if (name == "pyramidkv") return heads * pyramid_budget(n, removed, 1, 20, 3, 4);
  if (name == "kvzip") return heads * n - kvzip_pruned(heads * n, removed);
  return heads * reference_kept_tokens(n, removed);
}

TEST(Table, NamesAreUniqueAndEveryRowSaysWhatItIs) {
  std::set<std::string> names;
  for (const Method* method : methods()) {
    EXPECT_TRUE(names.insert(method->name).second) << method->name;
    EXPECT_EQ(&find_method(method->name), method);
    EXPECT_GT(std::strlen(method->summary), 10u);
    EXPECT_GT(std::strlen(method->decides), 0u);
    EXPECT_TRUE(method->select != nullptr || method->read != nullptr || method->rank != nullptr)
        << "a row fills at least one contract";
  }
  EXPECT_THROW(find_method("no_such_method"), Error);
}

TEST(Table, EveryDefaultIsCanonicalAndMayBeGiven) {
  for (const Method* method : methods()) {
    std::set<std::string> names;
    for (const OptionSpec& option : method->options) {
      EXPECT_TRUE(names.insert(option.name).second) << option.name;
      EXPECT_GT(std::strlen(option.help), 0u) << option.name;
      if (*option.fallback == '\0') continue;
      EXPECT_EQ(canonical_value(option, option.fallback), option.fallback) << option.name;
      const std::string text = str(method->name, "(", option.name, "=", option.fallback, ")");
      EXPECT_EQ(parse_spec(text).text, text);
    }
    EXPECT_TRUE(parse_spec(method->name).text == method->name);
  }
}

TEST(Table, EveryChoiceIsAccepted) {
  TestLayer layer = TestLayer::random(150, 2, 2, 8, 150, 1);
  for (const Method* method : methods()) {
    for (const OptionSpec& option : method->options) {
      std::string choices = option.kind == OptionSpec::Kind::boolean  ? "true|false"
                            : option.kind == OptionSpec::Kind::choice ? option.choices
                            : option.kind == OptionSpec::Kind::scorer ? scorer_names("|")
                                                                      : "";
      for (size_t at = 0; at < choices.size();) {
        const size_t bar = std::min(choices.find('|', at), choices.size());
        std::string value = choices.substr(at, bar - at);
        if (value.ends_with(":N")) value.replace(value.size() - 1, 1, "47");
        const char* also = value == "oracle" ? ",gold_end=1" : "";
        const std::string text = str(method->name, "(", option.name, "=", value, also, ")");
        at = bar + 1;
        if (method->select == nullptr) {
          const Spec spec = parse_spec(text);
          EXPECT_TRUE(spec.reading().has_value() || spec.ranking().has_value()) << text;
          continue;
        }
        const Selection s = run_method(text, layer);
        size_t kept = 0;
        for (const auto& head : s.kept) kept += head.size();
        EXPECT_EQ(kept, 150u) << option.name << "=" << value;
      }
    }
  }
}

TEST(Table, RatioZeroIsIdentity) {
  for (const Method* method : selectors()) {
    for (int n : {1, 2, 33, 100}) {
      TestLayer layer = TestLayer::random(n, 2, 3, 7, n, 1);
      std::vector<int32_t> all(static_cast<size_t>(n));
      std::iota(all.begin(), all.end(), 0);
      for (const char* size : {"ratio=0", "keep=1"}) {
        for (const auto& kept : run_method(str(method->name, "(", size, ")"), layer).kept)
          EXPECT_EQ(kept, all) << method->name;
      }
    }
  }
}

// All layers of a prompt, as a session goes through them.
std::vector<Selection> select_all(const std::string& text, int n_layers, int n, int pinned) {
  ThreadPool pool(2);
  const auto selector = parse_spec(text).make_selector();
  std::vector<Selection> all;
  for (int i = 0; i < n_layers; ++i) {
    TestLayer layer = TestLayer::random(n, 2, 3, 6, n, static_cast<uint64_t>(i));
    layer.show(*selector, pool, i);
    LayerInput in = layer.input(pool, i);
    in.n_layers = n_layers;
    in.pinned = pinned;
    all.push_back(selector->select(in, false));
  }
  selector->settle(all);
  return all;
}

TEST(Table, BudgetsOfAPromptAreWhatTheRowSays) {
  constexpr int kLayers = 3;
  for (const Method* method : selectors()) {
    for (int n : {40, 97}) {
      for (const char* ratio : {"0", "0.25", "2/3"}) {
        const std::string spec = spec_of(*method, str("ratio=", ratio));
        for (int pinned : {0, 9}) {
          int64_t kept = 0;
          for (const Selection& layer : select_all(spec, kLayers, n, pinned))
            for (const auto& head : layer.kept) kept += static_cast<int64_t>(head.size());
          EXPECT_EQ(kept, parse_spec(spec).kept({kLayers, 2, n})) << spec << " of " << n;
        }
      }
    }
  }
  EXPECT_EQ(parse_spec("none").kept({3, 2, 40}), 240);
  EXPECT_EQ(parse_spec("readkv").kept({3, 2, 40}), 240);
  EXPECT_EQ(parse_spec("kvzip(ratio=0.5,layerwise=true)").kept({3, 1, 5}), 9);
}

TEST(Table, PinnedPositionsStay) {
  for (const Method* method : selectors()) {
    for (int pinned : {1, 9, 30}) {  // the last is more than the budget
      const std::string spec = spec_of(*method, "ratio=0.75");
      for (const Selection& layer : select_all(spec, 2, 80, pinned)) {
        for (const auto& head : layer.kept) {
          // Where heads compete, one may get a little less than a quarter.
          const int stay = std::min({pinned, 16, static_cast<int>(head.size())});
          for (int position = 80 - stay; position < 80; ++position)
            EXPECT_TRUE(std::binary_search(head.begin(), head.end(), position))
                << spec << " pins " << pinned << ", position " << position;
        }
      }
    }
  }
}

TEST(Table, RandomPlacesDifferByDocument) {
  ThreadPool pool(1);
  TestLayer layer(60, 1, 1, 2, 0);
  const auto kept = [&](uint64_t document) {
    LayerInput in = layer.input(pool);
    in.document = document;
    return parse_spec("random(ratio=0.5)").make_selector()->select(in, false).kept;
  };
  EXPECT_EQ(kept(5), kept(5));
  EXPECT_NE(kept(5), kept(6));
}

TEST(Table, CountsAreExactSortedAndInRange) {
  for (const Method* method : selectors()) {
    for (int n : {2, 3, 31, 32, 33, 64, 65, 97, 211}) {
      for (int group : {1, 2, 8}) {
        TestLayer layer = TestLayer::random(n, 3, group, 5, n, static_cast<uint64_t>(n + group));
        for (const char* ratio : {"0.1", "0.5", "2/3", "9/10"}) {
          const int64_t budget = entries_kept(*method, 3, n, Ratio::parse(ratio));
          const std::string spec = spec_of(*method, str("ratio=", ratio));
          if (budget == 0) {
            EXPECT_THROW(run_method(spec, layer), Error) << spec;
            continue;
          }
          int64_t kept = 0;
          for (const auto& head : run_method(spec, layer).kept) {
            kept += static_cast<int64_t>(head.size());
            EXPECT_EQ(std::adjacent_find(head.begin(), head.end(), std::greater_equal<>()),
                      head.end());
            EXPECT_TRUE(head.empty() || (head.front() >= 0 && head.back() < n));
          }
          EXPECT_EQ(kept, budget) << spec << " n " << n;
        }
      }
    }
  }
}

// Attention weights round differently on another instruction set; what is kept does not change
// where no two scores are that close, and here none are.
void expect_close(const Scores& got, const Scores& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t head = 0; head < want.size(); ++head) {
    const double most = *std::max_element(want[head].begin(), want[head].end());
    for (size_t i = 0; i < want[head].size(); ++i)
      ASSERT_NEAR(got[head][i], want[head][i], 1e-5 * std::fabs(most)) << head << " " << i;
  }
}

TEST(Table, SameResultForAnyThreadCountOnEveryInstructionSet) {
  TestLayer layer = TestLayer::random(301, 2, 4, 48, 301, 9);
  for (const Method* method : selectors()) {
    SCOPED_TRACE(method->name);
    const Selection want = run_method(method->name, layer, 1);
    kernels::for_each_target([&](const std::string& target) {
      SCOPED_TRACE(target);
      const Selection one = run_method(method->name, layer, 1);
      EXPECT_EQ(one.kept, want.kept);
      EXPECT_EQ(one.counts, want.counts);
      expect_close(one.scores, want.scores);
      for (int threads : {2, 5}) {
        const Selection got = run_method(method->name, layer, threads);
        EXPECT_EQ(got.kept, one.kept) << threads;
        EXPECT_EQ(got.scores, one.scores) << threads;
        EXPECT_EQ(got.counts, one.counts) << threads;
      }
    });
  }
}

TEST(Table, WatchingInOneStepOrInManyIsTheSame) {
  TestLayer layer = TestLayer::random(301, 2, 4, 48, 301, 10);
  ThreadPool pool(2);
  for (const Method* method : selectors()) {
    std::vector<Selection> selections;
    for (int step : {301, 64, 7}) {
      const auto selector = parse_spec(method->name).make_selector();
      layer.show(*selector, pool, 3, step);
      selections.push_back(selector->select(layer.input(pool, 3), true));
      EXPECT_EQ(selections.back().kept, selections.front().kept) << method->name << " " << step;
      expect_close(selections.back().scores, selections.front().scores);
    }
  }
}

TEST(Table, ANumberThatIsNotFiniteIsRefusedByName) {
  for (const Method* method : selectors()) {
    const std::string_view name = method->name;
    if (name == "random" || name == "streamingllm") continue;  // look at no number
    TestLayer layer = TestLayer::random(200, 2, 2, 8, 200, 3);
    *layer.key(137, 1) = std::numeric_limits<float>::quiet_NaN();
    try {
      run_method(method->name, layer);
      ADD_FAILURE() << method->name << " took a NaN";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::corrupt);
      for (const char* place : {"layer 3", "head 1", "position 137"})
        EXPECT_NE(std::string(error.what()).find(place), std::string::npos) << error.what();
    }
  }
}

TEST(Random, IsUniformOverPositionsAndChangesWithSeedLayerAndHead) {
  TestLayer layer = TestLayer::random(50, 2, 1, 2, 0, 1);
  std::vector<int> hits(50, 0);
  for (int seed = 0; seed < 400; ++seed) {
    const Selection s = run_method(str("random(ratio=0.8,seed=", seed, ")"), layer);
    EXPECT_NE(s.kept[0], s.kept[1]);
    for (int32_t position : s.kept[0]) ++hits[static_cast<size_t>(position)];
  }
  for (int count : hits) EXPECT_NEAR(count, 80, 48);  // 6 sigma of 400 draws at 0.2
  EXPECT_NE(run_method("random(seed=1)", layer).kept, run_method("random(seed=2)", layer).kept);
}

TEST(Describe, ShowsEveryMethodAndOptionInEveryForm) {
  for (const std::string& text : {methods_markdown(), methods_json()}) {
    for (const Method* method : methods()) {
      EXPECT_NE(text.find(method->name), std::string::npos);
      for (const OptionSpec& option : method->options)
        EXPECT_NE(text.find(option.help), std::string::npos) << option.name;
    }
  }
  for (const Method* method : methods()) {
    EXPECT_NE(methods_text().find(method->summary), std::string::npos);
    for (const OptionSpec& option : method->options) {
      EXPECT_NE(method_text(*method).find(option.help), std::string::npos);
    }
  }
  EXPECT_NE(method_markdown(find_method("twinkv")).find("| `recent` | 64 tokens | at least 0 |"),
            std::string::npos);
}

}  // namespace
}  // namespace kvist
