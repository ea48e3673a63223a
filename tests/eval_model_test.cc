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

  nlohmann::json run(const std::string& methods, const char* folder) const {
    std::string out;
    run_command(eval_command,
                {"passkey", "-m", model_, "--methods", methods, "--lengths", "320", "--limit", "2",
                 "-o", (dir_ / folder).string()},
                &out, true);
    return nlohmann::json::parse(out);
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
  const auto results = run(str(twin, ",", coded, ",", both, ",", zip, ",", nothing), "all");
  const auto& methods = results["cells"][0]["methods"];
  ASSERT_EQ(methods.size(), 7u);
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
  for (const std::string& method : {twin, coded, both, zip}) {
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
