// SPDX-License-Identifier: MIT
// Runs with the copy model, whose answers are known: what is asked, what is kept, what is refused.
#include "kvist/eval/runner.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>

#include "kvist/core/error.h"
#include "kvist/eval/copy_model.h"
#include "kvist/eval/score.h"
#include "kvist/eval/suite.h"

namespace kvist {
namespace {

namespace fs = std::filesystem;

class Runs : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::temp_directory_path() / str("kvist_runs_", getpid());
    fs::create_directories(dir_);
    subject_ = copy_model(pool_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::string path(const char* name = "predictions.jsonl") const { return (dir_ / name).string(); }
  std::vector<EvalRow> passkeys(int limit, int length = 300) {
    return rows_of(find_suite("passkey"),
                   {{length},
                    limit,
                    7,
                    "",
                    [&](std::string_view text) { return subject_->count_tokens(text); },
                    {}});
  }
  static RunPlan plan(std::vector<std::string> specs) {
    RunPlan plan;
    plan.seed = 7;
    for (const std::string& spec : specs) plan.methods.push_back(parse_spec(spec));
    return plan;
  }
  std::vector<Prediction> run(std::span<const EvalRow> rows, const RunPlan& plan,
                              const char* file = "predictions.jsonl") {
    PredictionLog log(path(file));
    run_rows(rows, *subject_, plan, log, {});
    return log.all();
  }
  static double right(const std::vector<Prediction>& all, std::span<const EvalRow> rows,
                      const std::string& method) {
    double sum = 0;
    for (const Prediction& p : all) {
      for (const EvalRow& row : rows)
        if (p.method == method && p.id == row.id) sum += find_metric("all").score(p.text, row);
    }
    return sum;
  }

  fs::path dir_;
  ThreadPool pool_{2};
  std::unique_ptr<Subject> subject_;
};

// What does not depend on the clock.
std::vector<std::string> untimed(const std::vector<Prediction>& all) {
  std::vector<std::string> out;
  for (Prediction p : all) {
    p.prefill_ms = p.construct_ms = p.first_ms = p.decode_ms = 0;
    out.push_back(to_json(p).dump());
  }
  std::sort(out.begin(), out.end());
  return out;
}

TEST_F(Runs, ScoreASelectionExactly) {
  const auto rows = passkeys(10);
  const auto all = run(rows, plan({"streamingllm(ratio=0.75)", "twinkv(ratio=0.5)",
                                   "random(ratio=0.75)", "knorm(ratio=0)"}));
  EXPECT_EQ(all.size(), 10u * 6);
  EXPECT_EQ(right(all, rows, "none"), 10);
  EXPECT_EQ(right(all, rows, "floor"), 0);
  // A quarter at the end holds the key at depth 0.9 and no other.
  EXPECT_EQ(right(all, rows, "streamingllm(ratio=0.75)"), 2);
  EXPECT_EQ(right(all, rows, "twinkv(ratio=0.5)"), 10) << "all that is no noise has no twin";
  EXPECT_LE(right(all, rows, "random(ratio=0.75)"), 4);
}

TEST_F(Runs, NothingRemovedIsTheUncompressedRunWordForWord) {
  const auto rows = passkeys(5);
  const auto all = run(rows, plan({"twinkv(ratio=0)", "random(ratio=0)"}));
  std::map<std::string, std::set<std::vector<int32_t>>> answers;
  for (const Prediction& p : all)
    if (p.method != kFloor) answers[p.id].insert(p.token_ids);
  for (const auto& [id, different] : answers) EXPECT_EQ(different.size(), 1u) << id;
}

TEST_F(Runs, HashesAgreeAcrossMethods) {
  const auto rows = passkeys(3);
  std::map<std::string, std::set<std::string>> contexts, questions;
  for (const Prediction& p : run(rows, plan({"twinkv", "h2o", "expected_attention", "snapkv"}))) {
    questions[p.id].insert(p.question_hash + p.answer_fingerprint);
    if (p.method != kFloor) contexts[p.id].insert(p.context_hash);
  }
  for (const auto& [id, hashes] : contexts) EXPECT_EQ(hashes.size(), 1u) << id;
  for (const auto& [id, hashes] : questions) EXPECT_EQ(hashes.size(), 1u) << id;
}

TEST_F(Runs, OrderOfRowsDoesNotMatter) {
  auto rows = passkeys(6);
  const auto forward = run(rows, plan({"random(ratio=0.5)", "snapkv"}));
  std::reverse(rows.begin(), rows.end());
  EXPECT_EQ(untimed(run(rows, plan({"snapkv", "random(ratio=0.5)"}), "other.jsonl")),
            untimed(forward));
}

TEST_F(Runs, GoOnWhereTheyWereStopped) {
  const auto rows = passkeys(6);
  const RunPlan both = plan({"snapkv", "knorm"});
  const auto whole = run(rows, both, "whole.jsonl");
  std::atomic<bool> stop{false};
  int told = 0;
  {
    PredictionLog log(path());
    RunHooks hooks;
    hooks.stop = &stop;
    hooks.on_progress = [&](int done, int total, double) {
      EXPECT_EQ(done, ++told);
      EXPECT_EQ(total, 24);
      stop = done == 5;
    };
    try {
      run_rows(rows, *subject_, both, log, hooks);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::interrupted);
      EXPECT_NE(std::string(error.what()).find("5 of 24"), std::string::npos) << error.what();
    }
  }
  std::ofstream(path(), std::ios::app) << "{\"suite\":\"pass";  // as a kill leaves it
  PredictionLog log(path());
  EXPECT_TRUE(log.cut_a_line());
  EXPECT_EQ(log.all().size(), 5u);
  const Prediction before = log.all()[3];
  int asked = 0;
  RunHooks hooks;
  hooks.on_progress = [&](int, int total, double) {
    ++asked;
    EXPECT_EQ(total, 19);
  };
  run_rows(rows, *subject_, both, log, hooks);
  EXPECT_EQ(asked, 19) << "finished rows are not asked again";
  EXPECT_EQ(to_json(log.all()[3]), to_json(before));
  EXPECT_EQ(untimed(log.all()), untimed(whole));
  EXPECT_EQ(untimed(read_predictions(path())), untimed(whole));
}

TEST_F(Runs, RefuseToGoOnWithOtherRows) {
  auto rows = passkeys(2);
  run(rows, plan({}));
  for (auto* change : {&rows[1].context, &rows[1].question}) {
    const std::string was = *change;
    *change += "!";
    try {
      run(rows, plan({}));
      FAIL();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("another"), std::string::npos) << error.what();
    }
    *change = was;
  }
  rows[1].answers = {"other"};
  EXPECT_THROW(run(rows, plan({})), Error);
}

TEST_F(Runs, AFullDiskKeepsWhatIsFinished) {
  const auto rows = passkeys(6);
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  {
    PredictionLog log(path());
    const rlimit small{4000, old.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    try {
      run_rows(rows, *subject_, plan({"knorm"}), log, {});
      ADD_FAILURE() << "4,000 bytes were enough";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::io);
      EXPECT_NE(std::string(error.what()).find("finished predictions are kept"), std::string::npos)
          << error.what();
    }
  }
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, before);
  const auto kept = read_predictions(path());
  EXPECT_GE(kept.size(), 2u);
  EXPECT_EQ(run(rows, plan({"knorm"})).size(), 18u);
}

TEST_F(Runs, TwoAtOnceAreRefused) {
  PredictionLog log(path());
  EXPECT_THROW(PredictionLog again(path()), Error);
}

TEST_F(Runs, AwareCompressionSeesTheQuestion) {
  const auto rows = passkeys(2);
  RunPlan aware = plan({"streamingllm(ratio=0.5)"});
  aware.mode = Mode::aware;
  const auto all = run(rows, aware);
  const auto plain = run(rows, plan({"streamingllm(ratio=0.5)"}));
  ASSERT_EQ(plain.size(), all.size() * 2) << "both modes fit in one folder";
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].mode, "aware");
    EXPECT_EQ(all[i].n_prompt, plain[all.size() + i].n_prompt);
    EXPECT_GT(all[i].n_context, plain[all.size() + i].n_context);
  }
}

TEST_F(Runs, BudgetsAreMet) {
  const auto rows = passkeys(2);
  for (const Prediction& p : run(rows, plan({"adakv(ratio=0.5)"}))) {
    int sum = 0;
    for (const auto& layer : p.kept)
      for (int n : layer) sum += n;
    const int heads = 4, per_head = p.method == "adakv(ratio=0.5)" ? p.n_context / 2 : p.n_context;
    EXPECT_NEAR(sum, heads * per_head, heads) << p.method;
    EXPECT_EQ(p.stored_bytes, static_cast<uint64_t>(sum) * 128);
    EXPECT_NEAR(p.n_kept, static_cast<double>(sum) / heads, 1e-9);
  }
}

TEST_F(Runs, RandomPlacesDifferByPrompt) {
  const auto rows = passkeys(10, 200);
  const auto all = run(rows, plan({"random(ratio=0.75)"}));
  // Rows 5 apart have their keys at the same places: the same slots would leave as many digits.
  std::vector<size_t> digits;
  for (const Prediction& p : all)
    if (p.method == "random(ratio=0.75)") digits.push_back(p.text.size());
  ASSERT_EQ(digits.size(), 10u);
  EXPECT_FALSE(std::equal(digits.begin(), digits.begin() + 5, digits.begin() + 5));
  EXPECT_EQ(untimed(run(rows, plan({"random(ratio=0.75)"}), "again.jsonl")), untimed(all));
}

TEST_F(Runs, APinnedTailStaysWithinTheBudget) {
  const auto rows = passkeys(5);
  RunPlan p = plan({"knorm(ratio=0.75)", "twinkv(ratio=0.75)", "random(ratio=0.75)",
                    "h2o(ratio=0.75)", "adakv(ratio=0.75,scorer=keydiff)"});
  const auto loose = run(rows, p, "loose.jsonl");
  subject_ = copy_model(pool_, {.pin_tail = 60});
  p.pin_tail = 60;
  const auto pinned = run(rows, p, "loose.jsonl");
  ASSERT_EQ(pinned.size(), 2 * loose.size()) << "a mode of its own in one folder";
  for (size_t i = 0; i < loose.size(); ++i) {
    const Prediction& one = pinned[loose.size() + i];
    EXPECT_EQ(one.mode, "agnostic, tail of 60");
    EXPECT_EQ(one.n_kept, loose[i].n_kept) << one.method;
    EXPECT_EQ(one.stored_bytes, loose[i].stored_bytes) << one.method;
  }
  // The last sentences hold the key at depth 0.9.
  for (const char* method : {"knorm(ratio=0.75)", "random(ratio=0.75)", "h2o(ratio=0.75)"})
    EXPECT_GE(right({pinned.begin() + static_cast<std::ptrdiff_t>(loose.size()), pinned.end()},
                    rows, method),
              1)
        << method;
}

TEST_F(Runs, DensePrefillCompressesTheWholePrompt) {
  const auto rows = passkeys(5);
  RunPlan p = plan({"streamingllm(ratio=0.5)"});
  const auto question_apart = run(rows, p);
  p.boundary = Boundary::dense_prefill;
  const auto all = run(rows, p);
  ASSERT_EQ(all.size(), 2 * question_apart.size()) << "a boundary of its own in one folder";
  for (size_t i = question_apart.size(); i < all.size(); ++i) {
    const Prediction &one = all[i], &apart = question_apart[i - question_apart.size()];
    EXPECT_EQ(one.boundary, "dense-prefill");
    EXPECT_EQ(one.n_context, apart.n_prompt);
    EXPECT_EQ(one.n_prompt, apart.n_prompt);
    if (one.method == kUncompressed) {
      EXPECT_EQ(one.token_ids, apart.token_ids);
    }
  }
}

// Keeps one entry more than the budget allows, or changes its cache while it is asked.
class Faulty final : public Subject {
 public:
  explicit Faulty(std::unique_ptr<Subject> inner) : inner_(std::move(inner)) {}
  bool keeps_too_much = false, changes = false;

  std::string model_hash() const override { return inner_->model_hash(); }
  int count_tokens(std::string_view text) const override { return inner_->count_tokens(text); }
  PromptIds prompt(const EvalRow& row, Mode mode) const override {
    return inner_->prompt(row, mode);
  }
  uint64_t reference_bytes(int n) const override { return inner_->reference_bytes(n); }
  double read(std::span<const int32_t> context, std::span<const Spec> specs,
              const std::atomic<bool>* stop) override {
    return inner_->read(context, specs, stop);
  }
  Placed place(size_t i) override {
    Placed placed = inner_->place(i);
    placed.kept[1][0] += keeps_too_much && i == 1;
    return placed;
  }
  Reply ask(std::span<const int32_t> question, int limit, const std::atomic<bool>* stop) override {
    asked_ += changes;
    return inner_->ask(question, limit, stop);
  }
  void restore() override { inner_->restore(); }
  uint64_t digest() const override { return static_cast<uint64_t>(asked_); }

 private:
  std::unique_ptr<Subject> inner_;
  int asked_ = 0;
};

TEST_F(Runs, WitnessBudgetAndCache) {
  const auto rows = passkeys(2);
  const auto complaint = [&](bool keeps_too_much, bool changes) {
    Faulty faulty(copy_model(pool_));
    faulty.keeps_too_much = keeps_too_much;
    faulty.changes = changes;
    PredictionLog log(path("faulty.jsonl"));
    try {
      run_rows(rows, faulty, plan({"snapkv(ratio=0.5)"}), log, {});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(complaint(true, false).find("but its budget is"), std::string::npos);
  EXPECT_NE(complaint(false, true).find("changed while"), std::string::npos);
  EXPECT_EQ(complaint(false, false), "");
}

TEST_F(Runs, NameTheRowThatFailed) {
  const auto rows = passkeys(1);
  try {
    run(rows, plan({"readkv"}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(rows[0].name()), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace kvist
