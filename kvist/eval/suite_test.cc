// SPDX-License-Identifier: MIT
// Suites with a tokenizer of words: how much fits, what is asked, what is never twice.
#include "kvist/eval/suite.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "kvist/core/error.h"
#include "kvist/eval/prose.h"
#include "kvist/eval/score.h"
#include "kvist/eval/suites/ruler_needles.h"
#include "kvist/eval/unicode.h"
#include "kvist/eval/words.h"

namespace kvist {
namespace {

namespace fs = std::filesystem;

int words_in(std::string_view text) { return static_cast<int>(split_words(text).size()); }

size_t occurrences(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// Words, prose and facts that are made up.
class Suites : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = (fs::temp_directory_path() / str("kvist_suites_", getpid())).string();
    fs::create_directories(folder_ + "/words");
    fs::create_directories(folder_ + "/prose");
    Rng rng(1);
    for (const char* kind : {"adjectives", "nouns", "verbs"}) {
      std::ofstream out(folder_ + "/words/" + kind + ".txt");
      for (int i = 0; i < 1000; ++i) out << random_letters(rng, 8, 'a') << "\n";
    }
    for (int d = 0; d < 4; ++d) {
      std::ofstream out(str(folder_, "/prose/", d, ".txt"));
      for (int i = 0; i < 600; ++i) {
        out << "Sentence";
        for (int w = 0; w < 12; ++w) out << " " << random_letters(rng, 3 + w % 5, 'a');
        out << ".\n";
      }
    }
    std::ofstream kinds(folder_ + "/kinds.txt");
    for (const char* kind : {"animal", "food", "plant"})
      for (int i = 0; i < 60; ++i) kinds << random_letters(rng, 8, 'a') << " " << kind << "\n";
    fs::create_directories(folder_ + "/code");
    for (int f = 0; f < 6; ++f) {
      std::ofstream out(str(folder_, "/code/", f, ".go"));
      for (int i = 0; i < 900; ++i)
        out << "\t" << random_letters(rng, 6, 'a') << " := " << random_letters(rng, 6, 'a')
            << (i % 3 == 0 ? " // set\n" : "(1)\n");
    }
    std::ofstream out(folder_ + "/factbook.jsonl");
    for (int i = 0; i < 40; ++i) {
      const std::string name = random_letters(rng, 7, 'A'), capital = random_letters(rng, 9, 'a'),
                        peak = random_letters(rng, 10, 'a');
      out << nlohmann::json{{"name", name},
                            {"text", str(name, " is a country. Capital: ", capital,
                                         ". Highest point: ", peak, ". Currency: coins.")},
                            {"facts",
                             {{"capital", capital},
                              {"highest point", peak},
                              {"currency", "coins"}}}}
                 .dump()
          << "\n";
    }
  }
  static void TearDownTestSuite() { fs::remove_all(folder_); }

  static SuiteInput input(std::vector<int> lengths, int limit,
                          std::vector<std::string> tasks = {}) {
    return {std::move(lengths), limit, 3, folder_, words_in, std::move(tasks)};
  }
  static std::vector<EvalRow> rows(const char* suite, std::vector<int> lengths, int limit,
                                   std::vector<std::string> tasks = {}) {
    return rows_of(find_suite(suite), input(std::move(lengths), limit, std::move(tasks)));
  }
  static int used(const EvalRow& row) {
    return words_in(row.context + row.question + row.answer_prefix) + row.max_new_tokens;
  }
  static std::string folder_;
};
std::string Suites::folder_;

struct Filled {
  const char* task;
  const char* unit;  // of meta
  int length, units, used;
};

// Worked out for a tokenizer of words from the texts of the tasks.
TEST_F(Suites, RulerFillsWhatThereIs) {
  for (const Filled& f :
       std::initializer_list<Filled>{{"niah_single_1", "units", 512, 17, 509},
                                     {"niah_single_1", "units", 4096, 205, 4081},
                                     {"niah_single_1", "units", 8192, 421, 8185},
                                     {"niah_single_1", "units", 16384, 852, 16374},
                                     {"niah_multikey_2", "units", 512, 32, 506},
                                     {"niah_multikey_2", "units", 4096, 391, 4096},
                                     {"niah_multikey_2", "units", 8192, 800, 8186},
                                     {"cwe", "units", 512, 48, 512},
                                     {"cwe", "units", 4096, 490, 4096},
                                     {"cwe", "units", 8192, 1172, 8188},
                                     {"fwe", "words", 512, 427, 505},
                                     {"fwe", "words", 4096, 3950, 3990},
                                     {"fwe", "words", 8192, 7961, 7966},
                                     {"vt", "units", 4096, 184, 4093},
                                     {"vt", "units", 8192, 399, 8178}}) {
    const auto all = rows("kv-ruler", {f.length}, 2, {f.task});
    ASSERT_EQ(all.size(), 2u);
    for (const EvalRow& row : all) {
      EXPECT_EQ(row.meta[f.unit], f.units) << f.task << " at " << f.length;
      EXPECT_EQ(used(row), f.used) << f.task << " at " << f.length;
    }
  }
}

TEST_F(Suites, DataAreKnownByTheirHashes) {
  EXPECT_TRUE(data_hashes(find_suite("passkey"), folder_).empty());
  const auto before = data_hashes(find_suite("kv-ruler"), folder_);
  ASSERT_EQ(before.size(), 2u);
  EXPECT_EQ(before, data_hashes(find_suite("kv-ruler"), folder_));
  const std::string extra = folder_ + "/prose/extra.txt";
  std::ofstream(extra) << "One more.";
  const auto after = data_hashes(find_suite("kv-ruler"), folder_);
  fs::remove(extra);
  EXPECT_EQ(after.at("words"), before.at("words"));
  EXPECT_NE(after.at("prose"), before.at("prose"));
}

TEST_F(Suites, CodeGoesOnWithALineThatCanBeScored) {
  const auto all = rows("kv-code", {300, 600}, 4);
  ASSERT_EQ(all.size(), 8u);
  std::set<std::string> files;
  for (const EvalRow& row : all) {
    const std::string answer = row.answer_list().front();
    EXPECT_EQ(answer.find("//"), std::string::npos) << answer;
    EXPECT_TRUE(answer.ends_with("(1)")) << answer;
    std::ifstream in(folder_ + "/code/" + row.meta["file"].get<std::string>());
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    const std::string code = row.context.substr(row.context.find('\n') + 1);
    EXPECT_TRUE(text.starts_with(code + answer)) << row.name() << ": the next line of the file";
    files.insert(str(*row.length, row.meta["file"].get<std::string>()));
  }
  EXPECT_EQ(files.size(), 8u) << "each file once";
  const auto fewer = rows("kv-code", {600}, 2);
  EXPECT_EQ(to_json(fewer[1]), to_json(all[5])) << "rows do not depend on how many there are";
}

TEST_F(Suites, EverySampleFitsAndHoldsItsAnswers) {
  for (const char* suite : {"passkey", "needle", "kv-ruler", "kv-qa", "kv-reuse", "kv-retrieval",
                            "kv-count", "kv-fewshot", "kv-code"}) {
    for (const EvalRow& row : rows(suite, {700, 2048}, 5)) {
      EXPECT_LE(used(row), *row.length) << row.name();
      EXPECT_GT(used(row), *row.length / 10) << row.name();
      const bool counts =
          row.suite == "kv-count" || row.suite == "kv-fewshot" || row.suite == "kv-code";
      for (const std::string& answer : row.answer_list()) {
        EXPECT_TRUE(counts || row.context.find(answer) != std::string::npos) << row.name();
      }
      EXPECT_EQ(find_metric(row.metrics().front()).score(joined(row.answer_list(), ", "), row), 1)
          << row.name();
      EXPECT_EQ(find_metric(row.metrics().front()).score("", row), 0) << row.name();
    }
  }
}

TEST_F(Suites, ASampleDependsOnItsOwnNumberAlone) {
  const auto few = rows("kv-ruler", {1024}, 2), more = rows("kv-ruler", {512, 1024}, 4);
  size_t found = 0;
  for (const EvalRow& row : few) {
    for (const EvalRow& other : more)
      if (row.name() == other.name()) {
        EXPECT_EQ(to_json(row), to_json(other));
        ++found;
      }
  }
  EXPECT_EQ(found, few.size());
  SuiteInput other = input({1024}, 2);
  other.seed = 4;
  EXPECT_NE(rows_of(find_suite("kv-ruler"), other)[0].context, few[0].context);
}

TEST_F(Suites, NeedlesStandOnce) {
  for (const EvalRow& row : rows("kv-ruler", {2048}, 4)) {
    if (!row.task.starts_with("niah")) continue;
    const auto answers = row.answer_list();
    EXPECT_EQ(answers.size(),
              row.task == "niah_multivalue" || row.task == "niah_multiquery" ? 4u : 1u);
    for (const std::string& answer : answers) EXPECT_EQ(occurrences(row.context, answer), 1u);
    EXPECT_EQ(std::set(answers.begin(), answers.end()).size(), answers.size());
    const bool one = answers.size() == 1;
    EXPECT_TRUE(row.question.starts_with(one ? "What is the special magic "
                                             : "What are all the special magic "))
        << row.question;
    EXPECT_TRUE(row.question.ends_with("? ")) << "the space before the prefix ends the question";
    EXPECT_TRUE(row.answer_prefix.starts_with("The special magic "));
  }
}

TEST_F(Suites, ChainsAreInOrderAndExamplesAreFresh) {
  const auto all = rows("kv-ruler", {4096, 700}, 3, {"vt"});
  for (const EvalRow& row : all) {
    const auto names = row.answer_list();
    ASSERT_EQ(names.size(), 5u);
    size_t before = 0;
    for (size_t i = 0; i < names.size(); ++i) {
      const size_t at = row.context.find(str("VAR ", names[i], " = "));
      ASSERT_NE(at, std::string::npos);
      EXPECT_GT(at, before);
      before = at;
    }
    EXPECT_EQ(row.meta["example"], *row.length == 4096);
    EXPECT_EQ(row.context.find("12345"), std::string::npos) << "the example keeps no value";
  }
  EXPECT_NE(all[0].context.substr(0, 600), all[1].context.substr(0, 600));
}

TEST_F(Suites, WordsAreAsOftenAsTheyShould) {
  for (int length : {512, 4096}) {
    const EvalRow row = rows("kv-ruler", {length}, 1, {"cwe"})[0];
    const std::string list = row.context.substr(row.context.rfind("Memorize the ones"));
    for (const std::string& word : row.answer_list())
      EXPECT_EQ(occurrences(list, ". " + word + " ") + occurrences(list, ". " + word + "\n"),
                length == 512 ? 6u : 30u);
  }
  EXPECT_EQ(zipf_counts(1000, 8), (std::vector<int>{607, 151, 67, 37, 24, 16, 12, 9}));
  EXPECT_EQ(zipf_counts(2000, 8), (std::vector<int>{1215, 303, 135, 75, 48, 33, 24, 18}));
  EXPECT_EQ(zipf_counts(1000, 25)[24], 0);
  EXPECT_EQ(zipf_counts(1000, 24)[23], 1);
  EXPECT_EQ(frequent_sizes(16384).vocabulary, 326);
  EXPECT_EQ(frequent_sizes(16384).step, 510);
}

TEST_F(Suites, DepthsOfRuler) {
  const int expected[] = {0,  3,  5,  8,  10, 13, 15, 18, 21, 23, 26, 28, 31, 33,
                          36, 38, 41, 44, 46, 49, 51, 54, 56, 59, 62, 64, 67, 69,
                          72, 74, 77, 79, 82, 85, 87, 90, 92, 95, 97, 100};
  for (size_t i = 0; i < 40; ++i) EXPECT_EQ(ruler_depth(i), expected[i]);
}

TEST_F(Suites, OneCacheAnswersSixteenQuestions) {
  const auto all = rows("kv-reuse", {2048}, 2);
  ASSERT_EQ(all.size(), 32u);
  std::set<std::string> groups;
  for (const EvalRow& row : all) groups.insert(row.group);
  EXPECT_EQ(groups.size(), 2u);
}

TEST_F(Suites, TheBridgeIsNotNamed) {
  for (const EvalRow& row : rows("kv-qa", {1024}, 10, {"kv-qa-2"})) {
    const size_t at = row.context.find(row.answer_list()[0]);
    const size_t document = row.context.rfind(":\n", at) + 2;
    const std::string country =
        row.context.substr(document, row.context.find(' ', document) - document);
    EXPECT_EQ(row.question.find(country), std::string::npos);
  }
  for (const EvalRow& row : rows("kv-qa", {1024}, 20, {"kv-qa-1"}))
    EXPECT_EQ(row.question.find("currency"), std::string::npos) << "all have the same coins";
}

TEST_F(Suites, NeedlesOfTheGridAreTheSameAtEveryLength) {
  const auto all = rows("needle", {700, 1400}, 10);
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(all[i].answers, all[10 + i].answers);
    EXPECT_EQ(all[i].meta["depth"], all[10 + i].meta["depth"]);
  }
  EXPECT_TRUE(all[0].context.starts_with("The access code of"));
  EXPECT_TRUE(stripped(all[4].context).ends_with(str(all[4].answer_list()[0], ".")));
}

TEST_F(Suites, RefuseWhatDoesNotFit) {
  const auto expect_refusal = [&](const char* suite, int length, std::vector<std::string> tasks,
                                  std::initializer_list<std::string> parts) {
    try {
      rows(suite, {length}, 1, std::move(tasks));
      ADD_FAILURE() << suite;
    } catch (const Error& error) {
      for (const std::string& part : parts)
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  expect_refusal("kv-ruler", 128, {"niah_single_1"}, {"niah_single_1 at 128 tokens"});
  expect_refusal("kv-ruler", 512, {"niah_single"}, {"'niah_single'", "niah_single_1"});
  expect_refusal("needle", 20, {}, {"needle at 20"});
  SuiteInput nowhere = input({512}, 1);
  nowhere.data = "/nowhere";
  for (const char* suite : {"kv-ruler", "kv-qa", "kv-fewshot", "kv-code", "needle"}) {
    try {
      rows_of(find_suite(suite), nowhere);
      ADD_FAILURE() << suite;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::not_found);
      EXPECT_NE(std::string(error.what()).find("tools/texts.py"), std::string::npos);
    }
  }
}

TEST(Prose, SentencesEndWhereTheyDo) {
  const auto cut = sentences(
      "Mr. Adams spoke. \"Why?\" 3 men asked (in the U.S. Senate.) He left at 4 p.m. on Jan. 5! so "
      "it ended. J. Q. Public e.g. Smith");
  EXPECT_EQ(cut, (std::vector<std::string_view>{
                     "Mr. Adams spoke.", "\"Why?\"", "3 men asked (in the U.S. Senate.)",
                     "He left at 4 p.m. on Jan. 5! so it ended.", "J. Q. Public e.g. Smith"}));
  EXPECT_TRUE(sentences("").empty());
}

TEST(Words, UuidsAreOfVersionFour) {
  Rng rng(5);
  const std::regex form("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}");
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(std::regex_match(random_uuid(rng), form));
}

TEST(Words, DistinctIndexesAreDistinct) {
  Rng rng(6);
  std::vector<int> seen(10, 0);
  for (int i = 0; i < 3000; ++i) {
    const auto some = distinct_indexes(rng, 3, 10);
    EXPECT_TRUE(some[0] < some[1] && some[1] < some[2] && some[2] < 10);
    for (size_t at : some) ++seen[at];
  }
  for (int n : seen) EXPECT_NEAR(n, 900, 120);
}

}  // namespace
}  // namespace kvist
