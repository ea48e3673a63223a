// SPDX-License-Identifier: MIT
// kvist eval from the command line to its files, with the copy model.
#include "kvist/cli/eval.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "kvist/cli/eval_chart.h"
#include "kvist/cli/eval_report.h"
#include "kvist/cli/test_command.h"
#include "kvist/core/error.h"

namespace kvist {

extern const Command eval_command;

namespace {

namespace fs = std::filesystem;

class Eval : public ::testing::Test {
 protected:
  void SetUp() override { dir_ = fs::temp_directory_path() / str("kvist_eval_", getpid()); }
  void TearDown() override { fs::remove_all(dir_); }

  int run(std::vector<std::string> args, std::string* out = nullptr, bool json = false) const {
    args.insert(args.end(), {"-o", dir_.string()});
    return run_command(eval_command, std::move(args), out, json);
  }
  std::string slurp(const char* name) const {
    std::ifstream in(dir_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(const char* name, const std::string& text) const {
    fs::create_directories(dir_);
    std::ofstream(dir_ / name, std::ios::binary) << text;
  }
  void expect_refusal(std::vector<std::string> args,
                      std::initializer_list<std::string> parts) const {
    try {
      run(std::move(args));
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      for (const std::string& part : parts) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
            << "wanted: " << part << "\ngot: " << error.what();
      }
    }
  }
  fs::path dir_;
};

const std::vector<std::string> kPasskey = {"passkey",   "--copy-model",
                                           "--methods", "streamingllm,twinkv",
                                           "--ratios",  ".5,3/4",
                                           "--lengths", "300,600",
                                           "--limit",   "5"};

TEST_F(Eval, WritesEverythingAndScoresItAgain) {
  std::string out;
  EXPECT_EQ(run(kPasskey, &out), kDone);
  for (const char* part : {"passkey at 300", "passkey at 600", "mean", "streamingllm(ratio=0.75)"})
    EXPECT_NE(out.find(part), std::string::npos) << out;
  const auto results = nlohmann::json::parse(slurp("results.json"));
  ASSERT_EQ(results["cells"].size(), 2u);
  const auto& methods = results["cells"][0]["methods"];
  ASSERT_EQ(methods.size(), 6u);
  EXPECT_EQ(methods[0]["method"], "none");
  EXPECT_EQ(methods[1]["method"], "floor");
  EXPECT_EQ(methods[3]["method"], "streamingllm(ratio=0.75)");
  EXPECT_EQ(methods[3]["score"], 0.2);
  EXPECT_EQ(methods[3]["kept_quality"], 0.2);
  EXPECT_EQ(methods[3]["first_integer"], 0.2);
  EXPECT_EQ(results["run"]["methods"].size(), 4u);
  const std::string table = slurp("table.md"), page = slurp("report.html");
  for (const char* column : {"retained", "read", "touched", "bytes", "answering", "RSS", "TTFT ms",
                             "compress ms", "decode ms"}) {
    EXPECT_NE(table.find(str("| ", column, " |")), std::string::npos) << column;
    EXPECT_NE(page.find(str("<th>", column, "</th>")), std::string::npos) << column;
  }
  EXPECT_LT(table.find("| none |"), table.find("| floor |"));
  EXPECT_NE(page.find("<svg"), std::string::npos);
  for (const char* part : {"<script", "src=", "url(", "@import"})
    EXPECT_EQ(page.find(part), std::string::npos) << part;

  const std::string before = slurp("results.json");
  EXPECT_EQ(run({"score"}), kDone);
  EXPECT_EQ(slurp("results.json"), before);
  std::string scores = slurp("scores.jsonl");
  scores.replace(scores.rfind("1.0"), 3, "0.5");
  write("scores.jsonl", scores);
  expect_refusal({"score"}, {"scores.jsonl:", "another score"});
}

TEST_F(Eval, FinishedAnswersAreNotAskedAgain) {
  run(kPasskey);
  const std::string before = slurp("predictions.jsonl");
  run(kPasskey);
  EXPECT_EQ(slurp("predictions.jsonl"), before);
  auto more = kPasskey;
  more[3] = "streamingllm,twinkv,knorm";
  run(more);
  EXPECT_TRUE(slurp("predictions.jsonl").starts_with(before));
}

TEST_F(Eval, ShuffledContextsLoseTheAnswer) {
  auto args = kPasskey;
  args.insert(args.end(), {"--control", "shuffled"});
  std::string out;
  run(args, &out, true);
  const auto results = nlohmann::json::parse(out);
  for (const auto& cell : results["cells"]) {
    EXPECT_FALSE(cell["measurable"]);
    EXPECT_EQ(cell["suite"], "passkey-shuffled");
    for (const auto& method : cell["methods"]) EXPECT_EQ(method["score"], 0);
  }
  EXPECT_EQ(results["not_measurable"].size(), 2u);
  EXPECT_NE(slurp("table.md").find("not measurable with this model"), std::string::npos);
}

TEST_F(Eval, AsksRowsOfAFile) {
  write(
      "mine.jsonl",
      R"({"suite":"mine","task":"t","id":"a","length":null,"context":"The cat is called Tom. The dog is old.","question":"?","answer_prefix":" The cat is called","answers":["tom"],"max_new_tokens":3,"meta":{"metric":"all"}}
{"suite":"mine","task":"t","id":"b","length":null,"context":"The cow is called Moo. The dog is old.","question":"?","answer_prefix":" The cow is called","answers":["moo"],"max_new_tokens":3,"meta":{"metric":"all"}}
)");
  std::string out;
  run({(dir_ / "mine.jsonl").string(), "--copy-model"}, &out, true);
  EXPECT_EQ(nlohmann::json::parse(out)["cells"][0]["methods"][0]["score"], 1);
}

TEST_F(Eval, NamesItsDataAndItsProtocol) {
  auto args = kPasskey;
  args.insert(args.end(), {"--boundary", "dense-prefill", "--pin-tail", "20", "--mode", "aware"});
  std::string out;
  run(args, &out, true);
  const auto results = nlohmann::json::parse(out);
  EXPECT_EQ(results["run"]["boundary"], "dense-prefill");
  EXPECT_EQ(results["run"]["pin_tail"], 20);
  EXPECT_TRUE(results["cells"][0]["methods"][0].contains("one_token_answers"));
  EXPECT_NE(slurp("table.md").find("at most one token"), std::string::npos);
  EXPECT_EQ(run({"score"}), kDone) << "the same predictions are found again";
}

TEST_F(Eval, RefusesWhatIsWrong) {
  expect_refusal({"passkeys", "--copy-model"}, {"'passkeys'", "'passkey'"});
  expect_refusal({"passkey", "--copy-model", "--ratios", "1.5"}, {"--ratios"});
  expect_refusal({"passkey", "--copy-model", "--methods", "twinkw"}, {"twinkw"});
  expect_refusal({"passkey", "--copy-model", "--lengths", "64"}, {"passkey at 64 tokens"});
  expect_refusal({"needle", "--copy-model", "--data", "/nowhere"}, {"/nowhere", "tools/texts.py"});
  expect_refusal({"/nowhere/rows.jsonl", "--copy-model"}, {"/nowhere/rows.jsonl"});
  expect_refusal({"score"}, {"rows.jsonl"});
  EXPECT_THROW(run_command(eval_command, {"passkey", "--copy-model"}), Error) << "without -o";
}

TEST(EvalReport, FamiliesDifferInTheirBudget) {
  EXPECT_EQ(family_of("twinkv(ratio=0.5)"), "twinkv");
  EXPECT_EQ(family_of("twinkv(ratio=0.5,sinks=2)"), "twinkv(sinks=2)");
  EXPECT_EQ(family_of("adakv(keep=1/3,scorer=h2o)+readkv(read=2)"),
            "adakv(scorer=h2o)+readkv(read=2)");
  EXPECT_EQ(family_of("readkv"), "readkv");
}

TEST(EvalReport, ChartsStayInTheirFrame) {
  Chart chart;
  chart.title = "a < b";
  chart.x = {"x", 0, 4, false};
  chart.y = {"y", 0, 0.001, false};
  chart.lines = {{"l", chart_colour(0), {{0, 0, "first"}, {4, 0.001, "last"}}}};
  const std::string svg = chart_svg(chart);
  EXPECT_NE(svg.find("a &lt; b"), std::string::npos);
  EXPECT_NE(svg.find("cx=\"46\" cy=\"238\""), std::string::npos) << svg;
  EXPECT_NE(svg.find("cx=\"378\" cy=\"34\""), std::string::npos) << svg;
}

}  // namespace
}  // namespace kvist
