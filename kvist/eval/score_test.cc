// SPDX-License-Identifier: MIT
// Scorers against worked examples.
#include "kvist/eval/score.h"

#include <gtest/gtest.h>

#include "kvist/core/error.h"
#include "kvist/eval/unicode.h"

namespace kvist {
namespace {

EvalRow with(std::vector<std::string> answers, std::vector<std::string> classes = {}) {
  EvalRow row;
  row.answers = answers;
  row.all_classes = classes;
  return row;
}

double score(const char* metric, const std::string& text, std::vector<std::string> answers,
             std::vector<std::string> classes = {}) {
  return find_metric(metric).score(text, with(std::move(answers), std::move(classes)));
}

TEST(Score, RulerCountsAnswersThatOccur) {
  EXPECT_DOUBLE_EQ(score("all", "The values are 1234567, 7654321 and",
                         {"1234567", "7654321", "1111111", "2222222"}),
                   0.5);
  EXPECT_EQ(score("all", "ABC-def", {"abc-DEF"}), 1);
  EXPECT_EQ(score("part", "Denver Broncos", {"the Broncos", "Broncos", "Denver"}), 1);
  EXPECT_EQ(score("part", "nothing", {"the Broncos", "Broncos"}), 0);
  const double rows[] = {1, 0.5, 0.25};
  EXPECT_DOUBLE_EQ(task_score(rows), 58.33);
}

TEST(Score, RulerCleansControlCharacters) {
  const std::string text = std::string(" 12") + '\0' + "34\n";
  EXPECT_EQ(ruler_clean(text), "12\n34");
  EXPECT_EQ(score("all", text, {"1234"}), 0);
}

TEST(Score, FirstIntegerIsStricter) {
  EXPECT_EQ(score("first_integer", " 12345. Remember", {"12345"}), 1);
  EXPECT_EQ(score("first_integer", " 1 12345", {"12345"}), 0);
  EXPECT_EQ(score("all", " 1 12345", {"12345"}), 1);
  EXPECT_EQ(score("first_integer", "none", {"12345"}), 0);
}

TEST(Score, CountAndRetrieval) {
  EXPECT_DOUBLE_EQ(score("count", "There are 12 or 13 paragraphs, so 12", {"12"}), 2.0 / 3);
  EXPECT_EQ(score("count", "012", {"12"}), 0);
  EXPECT_EQ(score("count", "twelve", {"12"}), 0);
  EXPECT_EQ(score("count", "12.0", {"12"}), 0.5);
  EXPECT_EQ(score("retrieval", "Paragraph 7 or Paragraph 17", {"Paragraph 7"}), 0.5);
}

TEST(Score, ClassificationKeepsTheSkip) {
  EXPECT_EQ(score("classification", "City or State", {"City"}, {"City", "State"}), 0.5);
  EXPECT_EQ(score("classification", "It is Other location", {"Other location"},
                  {"Other", "Person", "Other location"}),
            1);
  EXPECT_EQ(score("classification", "It is Other location", {"Other location"},
                  {"Other", "location", "Other location"}),
            0.5);
}

TEST(Score, UnknownMetricsNameTheKnown) {
  try {
    find_metric("rouge");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("first_integer"), std::string::npos);
  }
  EvalRow row = with({"x"});
  row.meta = {{"metric", "classification"}};
  row.all_classes.reset();
  EXPECT_THROW(require_metrics(row), Error);
}

TEST(Unicode, LowersAndSplits) {
  EXPECT_EQ(lower_case("ÉTÉ ΩΣ ЖЯЀ ŁŻŒ ǅ"), "été ωσ жяѐ łżœ ǅ");
  EXPECT_EQ(lower_case("\xC3"), "\xC3") << "half a character stays";
  const auto words = split_words("\u00A0a\u2003b \t c\u3000");
  EXPECT_EQ(words, (std::vector<std::string_view>{"a", "b", "c"}));
  EXPECT_EQ(stripped("\n x y\u00A0"), "x y");
  EXPECT_EQ(stripped(" \n"), "");
}

TEST(Score, CodeIsComparedByMatchingBlocks) {
  const auto like = [](const std::string& text, const std::string& gold) {
    return score("code_sim", text, {gold});
  };
  EXPECT_EQ(like("foo(bar)", "bar(foo)"), 0.50);
  EXPECT_EQ(like("abxcd", "abcd"), 0.89);
  EXPECT_EQ(like("return self._cache.get(key, default)", "return self.cache.get(key)"), 0.84);
  EXPECT_EQ(like("// only\n# comments", "x"), 0);
  EXPECT_EQ(like("bab", "acb"), 0.33);
  EXPECT_EQ(like("```python\n# c\nreturn x + 1\n", "return x + 2"), 0.92);
  EXPECT_EQ(like("\n\nx = 1\ny", "x = 1"), 1);
  EXPECT_EQ(like("", "x"), 0);
  std::string a, b;
  for (int i = 0; i < 99; ++i) a += "ab";
  for (int i = 0; i < 100; ++i) b += "ab";
  EXPECT_EQ(like("q" + a + "z", b), 0) << "letters that are everywhere begin no block";
  EXPECT_EQ(like("\xC3\xA9t\xC3\xA9", "\xC3\xA9t\xC3\xA0"), 0.67) << "code points, not bytes";
}

}  // namespace
}  // namespace kvist
