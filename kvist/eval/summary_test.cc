// SPDX-License-Identifier: MIT
// Summaries of predictions whose scores are known, and of pairs that are none.
#include "kvist/eval/summary.h"

#include <gtest/gtest.h>

#include "kvist/core/error.h"

namespace kvist {
namespace {

EvalRow row(const std::string& task, int i, const std::string& context) {
  EvalRow r;
  r.suite = "s";
  r.task = task;
  r.id = str(i);
  r.length = 100;
  r.context = context;
  r.question = str("q", i);
  r.answers = {"yes"};
  r.max_new_tokens = 4;
  r.meta = {{"metric", "all"}};
  seal(&r);
  return r;
}

Prediction said(const EvalRow& r, const std::string& method, bool right) {
  Prediction p;
  p.suite = r.suite;
  p.task = r.task;
  p.id = r.id;
  p.length = r.length;
  p.method = method;
  p.mode = "agnostic";
  p.boundary = "compressed-question";
  p.text = right ? "yes" : "no";
  p.token_ids = {1, right ? 2 : 3};
  p.answer_fingerprint = fingerprint(r);
  p.context_hash = method == "floor" ? "" : r.group;
  p.question_hash = r.question;
  p.stored_bytes = method == "none" ? 200 : 50;
  p.reference_bytes = 200;
  p.construct_ms = 10;
  p.first_ms = 2;
  return p;
}

// Eight rows, uncompressed all right, floor all wrong, "m" right on the first `right` of them.
struct Outcomes {
  std::vector<EvalRow> rows;
  std::vector<Prediction> predictions;
  void add(const std::string& task, int right, int ceiling = 8) {
    for (int i = 0; i < 8; ++i) {
      rows.push_back(row(task, i, str(task, i)));
      predictions.push_back(said(rows.back(), "none", i < ceiling));
      predictions.push_back(said(rows.back(), "floor", false));
      predictions.push_back(said(rows.back(), "m", i < right));
    }
  }
  Summary summary() const { return summarize(rows, predictions, {.methods = {"m"}}); }
};

void expect_refusal(const Outcomes& run, std::initializer_list<std::string> parts) {
  try {
    run.summary();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "wanted: " << part << "\ngot: " << error.what();
    }
  }
}

TEST(Summary, ScoresCostsAndQuality) {
  Outcomes run;
  run.add("t", 6);
  const Summary s = run.summary();
  ASSERT_EQ(s.cells.size(), 1u);
  EXPECT_TRUE(s.overall.empty()) << "one cell is its own mean";
  const auto& methods = s.cells[0].methods;
  ASSERT_EQ(methods.size(), 3u);
  EXPECT_EQ(methods[0].method, "none");
  EXPECT_EQ(methods[1].method, "floor");
  EXPECT_EQ(methods[0].score, 1);
  EXPECT_FALSE(methods[0].change);
  EXPECT_EQ(methods[2].score, 0.75);
  EXPECT_EQ(*methods[2].kept_quality, 0.75);
  EXPECT_EQ(methods[2].retained, 0.25);
  EXPECT_EQ(methods[2].ttft_ms.median, 12);
  EXPECT_EQ(methods[2].losses, 2);
  EXPECT_EQ(methods[2].ties, 6);
  EXPECT_EQ(methods[2].sign_p, 0.5);
  EXPECT_EQ(methods[2].same_words, 0.75);
  EXPECT_NEAR(methods[2].change->mean, -0.25, 1e-12);
  EXPECT_EQ(s.scored.size(), 24u);
}

TEST(Summary, ATaskTheModelCannotDoLeavesTheMean) {
  Outcomes run;
  run.add("able", 4);
  run.add("unable", 8, 1);
  const Summary s = run.summary();
  EXPECT_TRUE(s.cells[0].measurable);
  EXPECT_FALSE(s.cells[1].measurable) << "one of eight is not above the floor";
  EXPECT_FALSE(s.cells[1].methods[2].kept_quality);
  EXPECT_EQ(s.left_out, (std::vector<std::string>{"s/unable at 100"}));
  ASSERT_EQ(s.overall.size(), 3u);
  EXPECT_EQ(s.overall[2].score, 0.5);
  EXPECT_EQ(s.overall[2].rows, 8);
}

TEST(Summary, QuestionsOfOneContextAreOneUnit) {
  Outcomes run;
  run.add("t", 4);
  for (EvalRow& r : run.rows) {
    r.context = "all the same";
    seal(&r);
  }
  for (Prediction& p : run.predictions)
    if (p.method != "floor") p.context_hash = "x";
  const Summary s = run.summary();
  EXPECT_EQ(s.cells[0].methods[2].change->units, 1);
  EXPECT_EQ(s.cells[0].methods[2].change->low, s.cells[0].methods[2].change->high);
  EXPECT_EQ(s.cells[0].methods[2].losses, 1);
}

TEST(Summary, StrataAreResampledApart) {
  Outcomes run;
  run.add("t", 4);
  EXPECT_LT(run.summary().cells[0].methods[2].change->low, -0.5);
  for (size_t i = 0; i < run.rows.size(); ++i) run.rows[i].meta["stratum"] = i < 4 ? 0.1 : 0.9;
  const Interval change = *run.summary().cells[0].methods[2].change;
  EXPECT_EQ(change.mean, -0.5);
  EXPECT_EQ(change.low, -0.5) << "all of one depth are right, all of the other wrong";
  EXPECT_EQ(change.high, -0.5);
  EXPECT_EQ(change.units, 8);
  run.rows[0].meta["stratum"] = 0.5;  // one alone, and three
  EXPECT_LT(run.summary().cells[0].methods[2].change->low, -0.5) << "too few to be apart";
}

TEST(Summary, AMethodThatRemovesNothingAnswersWordForWord) {
  Outcomes run;
  run.add("t", 8);
  const SummaryOptions options{.methods = {"m"}, .same = {"m"}};
  EXPECT_EQ(summarize(run.rows, run.predictions, options).cells[0].methods[2].score, 1);
  run.predictions[5].token_ids.push_back(9);
  try {
    summarize(run.rows, run.predictions, options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("s/t/100/1"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("removes nothing"), std::string::npos);
  }
}

TEST(Summary, CostsAreOfTheMethodsOwnCondition) {
  Outcomes run;
  run.add("t", 8);
  for (Prediction& p : run.predictions) {
    p.answering_bytes = p.method == "none" ? 300 : 100;
    p.touched_share = p.method == "none" ? 1 : 0.5;
  }
  run.predictions[2].answering_bytes = 150;  // of m
  const auto methods = run.summary().cells[0].methods;
  EXPECT_EQ(methods[0].answering_bytes, 300u);
  EXPECT_EQ(methods[2].answering_bytes, 150u) << "the most of any row";
  EXPECT_EQ(methods[2].touched_share, 0.5);
}

TEST(Summary, CellsCountAlike) {
  Outcomes run;
  run.add("a", 8);
  run.add("b", 0);
  for (int i = 8; i < 16; ++i) {  // more rows of b
    run.rows.push_back(row("b", i, str("b", i)));
    for (const char* method : {"none", "floor", "m"})
      run.predictions.push_back(said(run.rows.back(), method, method == std::string("none")));
  }
  EXPECT_EQ(run.summary().overall[2].score, 0.5);
}

TEST(Summary, ListsRowsThatDoNotPair) {
  Outcomes run;
  run.add("t", 6);
  Outcomes lacks = run;
  std::erase_if(lacks.predictions,
                [](const Prediction& p) { return p.method == "m" && p.id == "3"; });
  expect_refusal(lacks, {"s/t/100/3", "no prediction by m"});
  Outcomes other = run;
  other.predictions[5].answer_fingerprint = "else";
  expect_refusal(other, {"1 rows do not pair", "s/t/100/1", "fingerprint"});
  Outcomes ids = run;
  ids.predictions[2].context_hash = "else";
  expect_refusal(ids, {"s/t/100/0", "token ids"});
  Outcomes elsewhere = run;
  elsewhere.predictions[2].boundary = "dense-prefill";
  expect_refusal(elsewhere, {"s/t/100/0", "no prediction by m"});
  Outcomes twice = run;
  twice.predictions.push_back(run.predictions[0]);
  expect_refusal(twice, {"predicted twice"});
}

}  // namespace
}  // namespace kvist
