// SPDX-License-Identifier: MIT
// Rows that are right come back as they were; rows that are wrong are named.
#include "kvist/eval/row.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "kvist/core/error.h"
#include "kvist/core/sha256.h"

namespace kvist {
namespace {

namespace fs = std::filesystem;

class Rows : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = (fs::temp_directory_path() /
             str("kvist_rows_", ::testing::UnitTest::GetInstance()->random_seed(), "_", getpid()))
                .string();
  }
  void TearDown() override { fs::remove(path_); }

  std::vector<EvalRow> read(const std::string& text) {
    std::ofstream(path_, std::ios::binary) << text;
    return read_rows(path_);
  }
  void expect_refusal(const std::string& text, std::initializer_list<std::string> parts) {
    try {
      read(text);
      ADD_FAILURE() << "read: " << text;
    } catch (const Error& error) {
      for (const std::string& part : parts) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
            << "wanted: " << part << "\ngot: " << error.what();
      }
    }
  }
  std::string path_;
};

const std::string kGood =
    R"({"suite":"s","task":"t","id":"1","length":null,"context":"c","question":"q","answers":["a"],"max_new_tokens":4,"meta":{"metric":"all"}})";

std::string with(const std::string& from, const std::string& to) {
  std::string text = kGood;
  text.replace(text.find(from), from.size(), to);
  return text + "\n";
}

TEST_F(Rows, ComeBackAsTheyWere) {
  EvalRow row;
  row.suite = "passkey";
  row.task = "t";
  row.id = "v1-s0-0";
  row.length = 512;
  row.context = "grün \"\n";
  row.question = "?";
  row.answer_prefix = " is";
  row.answers = {"12345"};
  row.all_classes = std::vector<std::string>{"x", "y"};
  row.max_new_tokens = 24;
  row.meta = {{"metric", {"all", "first_integer"}}, {"depth", 0.5}};
  seal(&row);
  const auto rows = read(to_json(row).dump() + "\n\n");
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(to_json(rows[0]), to_json(row));
  EXPECT_EQ(rows[0].metrics(), (std::vector<std::string>{"all", "first_integer"}));
  EXPECT_EQ(rows[0].name(), "passkey/t/512/v1-s0-0");
}

TEST_F(Rows, CarryClozeAnswers) {
  const auto cloze = with(R"(["a"])", R"({"<mask-1>":"b","<mask-0>":"a"})");
  expect_refusal(cloze, {":1:", "metric all", "list of answers"});
}

TEST_F(Rows, NameFileLineAndKey) {
  expect_refusal(kGood + "\n{\"suite\":\n", {path_ + ":2", "not JSON"});
  expect_refusal("[1]\n", {path_ + ":1", "object"});
  expect_refusal(with("\"t\"", "5"), {":1:", "\"task\"", "'5'", "a text"});
  expect_refusal(with("\"question\":\"q\",", ""), {"\"question\"", "missing"});
  expect_refusal(with("[\"a\"]", "[]"), {"\"answers\"", "at least one"});
  expect_refusal(with("[\"a\"]", "[7]"), {"\"answers\"", "list of texts"});
  expect_refusal(with(":4", ":0"), {"\"max_new_tokens\"", "at least 1"});
  expect_refusal(with(":4", ":4.5"), {"\"max_new_tokens\"", "whole number"});
  expect_refusal(with("\"all\"", "\"rouge\""), {":1:", "'rouge'", "first_integer"});
  expect_refusal(with("\"metric\":\"all\"", ""), {"metric"});
  expect_refusal(with("null", "null,\"grop\":1"), {"unknown key", "'grop'"});
  expect_refusal(with("null", "null,\"group\":\"ab\""), {"\"group\"", "SHA-256"});
  expect_refusal("\n", {"no row"});
  expect_refusal(std::string("{\"suite\":\"\xFF\"}\n"), {":1", "not JSON"});
}

TEST_F(Rows, RefuseIdsThatComeTwice) {
  expect_refusal(kGood + "\n\n" + kGood + "\n", {path_ + ":3", "s/t/-/1", "line 1"});
  EXPECT_EQ(read(kGood + "\n" + with("null", "8")).size(), 2u) << "another length, another row";
}

TEST(Fingerprint, IsOfTaskQuestionAndSortedAnswers) {
  EvalRow row;
  row.task = "hotpotqa";
  row.question = "Who?";
  row.answers = {"B", "A"};
  EXPECT_EQ(fingerprint_text(row), R"(["hotpotqa","Who?",["A","B"]])");
  EXPECT_EQ(fingerprint(row).substr(0, 16), "26a2ab09dd902f98");
  row.answers = nlohmann::ordered_json::object({{"<mask-1>", "b"}, {"<mask-0>", "a"}});
  EXPECT_EQ(fingerprint_text(row), R"(["hotpotqa","Who?",{"<mask-0>":"a","<mask-1>":"b"}])");
}

}  // namespace
}  // namespace kvist
