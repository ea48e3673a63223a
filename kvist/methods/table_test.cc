// SPDX-License-Identifier: MIT
// Contract of every row of the method table: what all selectors promise, whatever they do.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "kvist/core/error.h"
#include "kvist/kernels/targets.h"
#include "kvist/methods/describe.h"
#include "kvist/methods/option_value.h"
#include "kvist/methods/select/budget.h"
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
  return parse_spec(spec).make_selector()->select(layer.input(pool, 3), true);
}

TEST(Table, NamesAreUniqueAndEveryRowSaysWhatItIs) {
  std::set<std::string> names;
  for (const Method* method : methods()) {
    EXPECT_TRUE(names.insert(method->name).second) << method->name;
    EXPECT_EQ(&find_method(method->name), method);
    EXPECT_GT(std::strlen(method->summary), 10u);
    EXPECT_GT(std::strlen(method->decides), 0u);
    EXPECT_TRUE(method->select != nullptr || method->read != nullptr)
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
  TestLayer layer = TestLayer::random(150, 2, 2, 8, 32, 1);
  for (const Method* method : methods()) {
    for (const OptionSpec& option : method->options) {
      if (option.kind != OptionSpec::Kind::choice && option.kind != OptionSpec::Kind::boolean)
        continue;
      std::string choices =
          option.kind == OptionSpec::Kind::boolean ? "true|false" : option.choices;
      for (size_t at = 0; at < choices.size();) {
        const size_t bar = std::min(choices.find('|', at), choices.size());
        std::string value = choices.substr(at, bar - at);
        if (value.ends_with(":N")) value.replace(value.size() - 1, 1, "47");
        const std::string text = str(method->name, "(", option.name, "=", value, ")");
        at = bar + 1;
        if (method->select == nullptr) {
          EXPECT_TRUE(parse_spec(text).reading().has_value()) << text;
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
      TestLayer layer = TestLayer::random(n, 2, 3, 7, std::min(n, 32), 1);
      std::vector<int32_t> all(static_cast<size_t>(n));
      std::iota(all.begin(), all.end(), 0);
      for (const char* size : {"ratio=0", "keep=1"}) {
        for (const auto& kept : run_method(str(method->name, "(", size, ")"), layer).kept)
          EXPECT_EQ(kept, all) << method->name;
      }
    }
  }
}

TEST(Table, CountsAreExactSortedAndInRange) {
  for (const Method* method : selectors()) {
    for (int n : {2, 3, 31, 32, 33, 64, 65, 97, 211}) {
      for (int group : {1, 2, 8}) {
        TestLayer layer =
            TestLayer::random(n, 3, group, 5, std::min(n, 32), static_cast<uint64_t>(n + group));
        for (const char* ratio : {"0.1", "0.5", "2/3", "9/10"}) {
          const int64_t budget = kept_tokens(n, Ratio::parse(ratio));
          if (budget == 0) {
            EXPECT_THROW(run_method(str(method->name, "(ratio=", ratio, ")"), layer), Error);
            continue;
          }
          int64_t kept = 0;
          for (const auto& head :
               run_method(str(method->name, "(ratio=", ratio, ")"), layer).kept) {
            kept += static_cast<int64_t>(head.size());
            EXPECT_EQ(std::adjacent_find(head.begin(), head.end(), std::greater_equal<>()),
                      head.end());
            EXPECT_TRUE(head.empty() || (head.front() >= 0 && head.back() < n));
          }
          EXPECT_EQ(kept, 3 * budget) << method->name << " n " << n << " ratio " << ratio;
        }
      }
    }
  }
}

TEST(Table, SameResultForAnyThreadCountOnEveryInstructionSet) {
  TestLayer layer = TestLayer::random(301, 2, 4, 48, 32, 9);
  for (const Method* method : selectors()) {
    const Selection want = run_method(method->name, layer, 1);
    kernels::for_each_target([&](const std::string& target) {
      for (int threads : {1, 2, 5}) {
        const Selection got = run_method(method->name, layer, threads);
        EXPECT_EQ(got.kept, want.kept) << method->name << " " << target << " " << threads;
        EXPECT_EQ(got.scores, want.scores) << method->name << " " << target << " " << threads;
        EXPECT_EQ(got.counts, want.counts) << method->name << " " << target << " " << threads;
      }
    });
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
