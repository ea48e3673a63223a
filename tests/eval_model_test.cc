// SPDX-License-Identifier: MIT
// kvist eval on the embedded model: methods that select, code and do both behind one prefill, and
// what they come to beside fresh prefills.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "kvist/cli/eval_subject.h"
#include "kvist/cli/test_command.h"
#include "kvist/core/error.h"
#include "kvist/core/peak_rss.h"
#include "kvist/eval/prediction.h"
#include "tests/support/embedded_model.h"

namespace kvist {

extern const Command eval_command;

namespace testing {
namespace {

namespace fs = std::filesystem;

class EvalModel : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = embedded_model();
    if (model_.empty()) GTEST_SKIP() << "no embedded model: run `make test`, or set KVIST_MODEL";
    dir_ = fs::temp_directory_path() / str("kvist_eval_model_", getpid());
  }
  void TearDown() override { fs::remove_all(dir_); }

  nlohmann::json run(const std::string& methods, const char* folder,
                     const std::vector<std::string>& more = {}) const {
    std::vector<std::string> args = {"passkey",
                                     "-m",
                                     model_,
                                     "--methods",
                                     methods,
                                     "--lengths",
                                     "320",
                                     "--limit",
                                     "2",
                                     "-o",
                                     (dir_ / folder).string()};
    args.insert(args.end(), more.begin(), more.end());
    return printed(args);
  }
  static nlohmann::json printed(const std::vector<std::string>& args) {
    std::string out;
    run_command(eval_command, args, &out, true);
    return nlohmann::json::parse(out);
  }
  nlohmann::json perplexity(const std::vector<std::string>& more) const {
    const std::string text = (dir_ / "text.txt").string();
    fs::create_directories(dir_);
    std::ofstream(text) << read_source_file("examples/demo.txt");
    std::vector<std::string> args = {"perplexity",  "-m", model_,     "--text", text,
                                     "--documents", "1",  "--tokens", "320"};
    args.insert(args.end(), more.begin(), more.end());
    return printed(args)["rows"];
  }
  std::vector<Prediction> predictions(const char* folder, const std::string& method) const {
    auto all = read_predictions((dir_ / folder / "predictions.jsonl").string());
    std::erase_if(all, [&](const Prediction& p) { return p.method != method; });
    return all;
  }

  std::string model_;
  fs::path dir_;
};

TEST_F(EvalModel, ManyMethodsShareAPrefillAndAnswerAsAlone) {
  const std::string twin = "twinkv(ratio=0.5)", coded = "readkv(calibration=prompt)",
                    both = "twinkv(ratio=0.5)+readkv(read=8,calibration=prompt)",
                    zip = "kvzip(ratio=0.5)", nothing = "h2o(ratio=0)";
  // Equal scores at other budgets: watched and scored once for all.
  const std::vector<std::string> sharing = {"kvzip(ratio=0.25)", "h2o(ratio=0.25)",
                                            "adakv(ratio=0.5,scorer=h2o)", "snapkv(ratio=0.25)",
                                            "pyramidkv(ratio=0.5)"};
  std::string all = str(twin, ",", coded, ",", both, ",", zip, ",", nothing);
  for (const std::string& one : sharing) all += "," + one;
  const auto results = run(all, "all");
  const auto& methods = results["cells"][0]["methods"];
  ASSERT_EQ(methods.size(), 12u);
  EXPECT_EQ(methods[0]["score"], 1) << "the model finds a key of a prompt this short";
  EXPECT_EQ(methods[1]["score"], 0);
  EXPECT_EQ(methods[6]["same_words"], 1) << "nothing removed is the uncompressed run";
  EXPECT_NEAR(methods[2]["retained"].get<double>(), 0.5, 0.02);
  EXPECT_LT(methods[3]["retained"].get<double>(), 0.55);
  EXPECT_NEAR(methods[3]["read_share"].get<double>(), 0.25, 0.05) << "four of sixteen bits";
  EXPECT_LT(methods[4]["retained"].get<double>(), 0.3);
  EXPECT_GT(methods[5]["compression_ms"]["median"].get<double>(),
            methods[2]["compression_ms"]["median"].get<double>())
      << "kvzip reads the document again";
  std::vector<std::string> compared = {twin, coded, both, zip};
  compared.insert(compared.end(), sharing.begin(), sharing.end());
  for (const std::string& method : compared) {
    run(method, "alone");
    const auto together = predictions("all", parse_spec(method).text),
               alone = predictions("alone", parse_spec(method).text);
    ASSERT_EQ(together.size(), 2u) << method;
    for (size_t i = 0; i < together.size(); ++i) {
      EXPECT_EQ(together[i].token_ids, alone[i].token_ids) << method;
      EXPECT_EQ(together[i].kept, alone[i].kept) << method;
      EXPECT_EQ(together[i].stored_bytes, alone[i].stored_bytes) << method;
    }
    fs::remove_all(dir_ / "alone");
  }
}

TEST_F(EvalModel, CostsAreOfEachMethodsOwnCondition) {
  const auto results =
      run("twinkv(ratio=0.75),readkv(calibration=prompt),h2o(ratio=0.5),h2o(ratio=0.75)", "costs");
  const auto& m = results["cells"][0]["methods"];
  for (const auto& one : m) {
    for (const char* key : {"answering_bytes", "read_share", "touched_share"})
      EXPECT_GT(one[key].get<double>(), 0) << one["method"] << " " << key;
    EXPECT_GE(one["answering_bytes"].get<double>(), one["allocated_bytes"].get<double>());
    EXPECT_GT(one["ttft_ms"]["median"].get<double>(), 0);
    if (reset_peak_rss()) {
      EXPECT_GT(one["peak_rss_bytes"].get<double>(), 1 << 20);
    }
  }
  EXPECT_LT(m[2]["answering_bytes"], m[0]["answering_bytes"]) << "a quarter of the entries is left";
  EXPECT_LT(m[3]["read_share"], m[0]["read_share"]);
  EXPECT_GT(m[3]["touched_share"], m[3]["read_share"])
      << "lines hold more than what is read of them";
  EXPECT_EQ(m[0]["read_share"], m[0]["touched_share"]);
  EXPECT_GT(m[3]["construct_bytes"], 0);
  // Both are charged for the watching that was done once.
  const double quarter = m[4]["compression_ms"]["median"], half = m[5]["compression_ms"]["median"];
  EXPECT_GT(std::min(quarter, half), 0.2 * std::max(quarter, half));
  EXPECT_GT(results["run"]["seconds"]["factor"].get<double>(), 1);
  EXPECT_EQ(results["run"]["tokenizer_sha256"].get<std::string>().size(), 64u);
}

TEST_F(EvalModel, DensePrefillAnswersAsTheWholePromptUntilItIsCompressed) {
  run("streamingllm(ratio=0.5)", "folder");
  run("streamingllm(ratio=0.5)", "folder", {"--boundary", "dense-prefill", "--pin-tail", "16"});
  const auto plain = predictions("folder", "none"),
             cut = predictions("folder", "streamingllm(ratio=0.5)");
  ASSERT_EQ(plain.size(), 4u) << "two boundaries in one folder";
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(plain[i].token_ids, plain[i + 2].token_ids) << "one prompt, read in one or two parts";
    EXPECT_EQ(cut[i + 2].boundary, "dense-prefill");
    EXPECT_EQ(cut[i + 2].mode, "agnostic, tail of 16");
    EXPECT_EQ(cut[i + 2].token_ids.front(), plain[i].token_ids.front())
        << "the first token comes from the uncompressed prompt";
    EXPECT_EQ(cut[i + 2].n_context, cut[i].n_prompt);
  }
}

TEST_F(EvalModel, PerplexityBeginsWithTheUncompressedCacheAndItsCosts) {
  const auto rows = perplexity({"--methods", "twinkv(ratio=0.5),none"});
  ASSERT_EQ(rows.size(), 2u) << "once, whether it is listed or not";
  EXPECT_EQ(rows[0]["method"], "none");
  EXPECT_EQ(rows[0]["kl"]["max"], 0);
  EXPECT_EQ(rows[0]["perplexity"], rows[0]["base_perplexity"]);
  EXPECT_EQ(rows[0]["retained"], 1);
  EXPECT_EQ(rows[0]["read_share"], 1);
  EXPECT_GT(rows[1]["kl"]["mean"], 0);
  EXPECT_NEAR(rows[1]["retained"].get<double>(), 0.51, 0.02);
  EXPECT_LT(rows[1]["read_share"], 0.8);
  EXPECT_LT(rows[1]["answering_bytes"], rows[0]["answering_bytes"]);
  for (const auto& row : rows) {
    EXPECT_GT(row["ttft_ms"]["median"], 0);
    EXPECT_GT(row["decode_ms"]["median"], 0);
    if (reset_peak_rss()) {
      EXPECT_GT(row["peak_rss_bytes"].get<double>(), 1 << 20);
    }
  }
}

TEST_F(EvalModel, BudgetsAreFoundThatStoreAsMuch) {
  const auto rows = perplexity({"--methods", "twinkv,knorm,kvzip", "--at-bytes", ".4"});
  ASSERT_EQ(rows.size(), 4u);
  const double whole = rows[0]["plain_bytes"], row_bytes = whole / 160 * 1.02;
  for (size_t i = 1; i < rows.size(); ++i) {
    const double stored = rows[i]["stored_bytes"];
    EXPECT_LE(stored, 0.4 * whole) << rows[i]["method"];
    EXPECT_GT(stored, 0.4 * whole - row_bytes) << rows[i]["method"] << ": one more token fits";
    EXPECT_NEAR(stored / rows[1]["stored_bytes"].get<double>(), 1, 0.001);
  }
  const auto as = perplexity({"--methods", "knorm", "--at-bytes", "twinkv(ratio=0.7)"});
  EXPECT_EQ(as[1]["method"], "knorm(ratio=0.7)");
  for (const char* fixed : {"knorm(ratio=0.5)", "readkv(calibration=prompt)"}) {
    try {
      perplexity({"--methods", fixed, "--at-bytes", ".4"});
      FAIL() << fixed;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(fixed), std::string::npos) << error.what();
    }
  }
}

TEST_F(EvalModel, PromptsAreCutAtTheQuestion) {
  ThreadPool pool(2);
  Inputs inputs;
  inputs.model = model_;
  const ModelSubject subject(inputs, {2, false, &pool});
  EvalRow row;
  row.context = "The sky is blue.\n";
  row.question = "What is blue?";
  row.answer_prefix = " It is";
  const PromptIds agnostic = subject.prompt(row, Mode::agnostic),
                  aware = subject.prompt(row, Mode::aware);
  EXPECT_LT(agnostic.context.size(), aware.context.size());
  EXPECT_GT(agnostic.question.size(), aware.question.size());
  EXPECT_TRUE(std::equal(agnostic.context.begin(), agnostic.context.end(), aware.context.begin()));
  EXPECT_NE(subject.template_text().find("{context}|{question}"), std::string::npos);
}

}  // namespace
}  // namespace testing
}  // namespace kvist
