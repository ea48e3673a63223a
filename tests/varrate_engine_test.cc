// SPDX-License-Identifier: MIT
// VarRate in the engine: a tiny model reads, its prefix is coded, questions read the codes; what is
// refused leaves everything as it was.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "kvist/core/error.h"
#include "kvist/core/rng.h"
#include "kvist/runtime/calibrate.h"
#include "kvist/runtime/session.h"
#include "tests/support/embedded_model.h"
#include "tests/support/tiny_gguf.h"

namespace kvist {
namespace {

constexpr int kTokens = 300;

class VarRateEngine : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    path_ =
        (std::filesystem::temp_directory_path() / str("kvist_varrate_engine_", ::getpid(), ".gguf"))
            .string();
    testing::TinyModel shape;
    shape.n_layers = 3;
    testing::tiny_model(shape).write(path_);
    ModelOptions options;
    options.n_threads = 1;
    model_ = Model::load(path_, options);
    Rng rng(7);
    for (int i = 0; i < kTokens + 40; ++i) ids_.push_back(static_cast<int32_t>(rng.below(250)));
    ThreadPool pool(2);
    Session session(*model_, pool, {});
    const std::vector<std::vector<int32_t>> window{ids_};
    const auto kinds = {RankPlan::Basis::residual, RankPlan::Basis::token, RankPlan::Basis::heads};
    std::vector<RankBasis> bases =
        learn_bases(session, read_source(model_->info()), RankPlan{}, kinds, 1 << 16, window);
    ranked_ = std::make_shared<RankedModel>(std::move(bases[0]));
    for (const size_t kind : {1, 2})
      controls_.push_back(std::make_shared<RankedModel>(std::move(bases[kind])));
  }
  static void TearDownTestSuite() {
    ranked_.reset();
    controls_.clear();
    model_.reset();
    ids_.clear();
    std::filesystem::remove(path_);
  }

  std::unique_ptr<Session> read() {
    auto session = std::make_unique<Session>(
        *model_, pool_, SessionOptions{.precision = kernels::Precision::exact});
    session->prefill(std::span(ids_).first(kTokens), Needs{.window_queries = 64});
    return session;
  }
  static RankPlan plan(const std::string& spec) { return *parse_spec(spec).ranking(); }
  // Logits after each of the tokens that follow the document.
  static std::vector<float> ask(Session& session) {
    const int sequence = session.open();
    auto logits = session.extend_all(sequence, std::span(ids_).subspan(kTokens, 20));
    session.close(sequence);
    return logits;
  }
  static double divergence(const std::vector<float>& a, const std::vector<float>& b) {
    const size_t vocab = static_cast<size_t>(model_->info().vocab);
    double sum = 0;
    for (size_t at = 0; at < a.size(); at += vocab)
      sum += testing::kl(std::span(a).subspan(at, vocab), std::span(b).subspan(at, vocab));
    return sum / static_cast<double>(a.size() / vocab);
  }
  // `encode` refuses, and the prefix answers as before.
  static void expect_refused(Session& session, const RankPlan& plan, const char* why) {
    const auto before = ask(session);
    try {
      session.encode(plan, ranked_);
      ADD_FAILURE() << "not refused";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(why), std::string::npos) << e.what();
    }
    EXPECT_EQ(ask(session), before);
  }

  static std::string path_;
  static std::unique_ptr<Model> model_;
  static std::vector<int32_t> ids_;
  static std::shared_ptr<const RankedModel> ranked_;
  static std::vector<std::shared_ptr<const RankedModel>> controls_;  // of tokens, of heads
  ThreadPool pool_{2};
};
std::string VarRateEngine::path_;
std::unique_ptr<Model> VarRateEngine::model_;
std::vector<int32_t> VarRateEngine::ids_;
std::shared_ptr<const RankedModel> VarRateEngine::ranked_;
std::vector<std::shared_ptr<const RankedModel>> VarRateEngine::controls_;

TEST_F(VarRateEngine, MoreKeptLosesLess) {
  const auto session = read();
  const auto want = ask(*session);
  std::vector<double> lost;
  std::vector<uint64_t> stored;
  for (const char* spec : {"varrate(keep=1)", "varrate(keep=0.75)", "varrate(keep=0.4)"}) {
    session->set_aside();
    session->encode(plan(spec), ranked_);
    ASSERT_NE(session->ranked(), nullptr);
    lost.push_back(divergence(want, ask(*session)));
    stored.push_back(session->prefix().bytes().stored());
    session->restore();
    EXPECT_EQ(session->ranked(), nullptr);
    EXPECT_EQ(ask(*session), want);
  }
  EXPECT_LT(lost[0], 1e-6);  // every token is exact
  EXPECT_LT(lost[0], lost[1]);
  EXPECT_LT(lost[1], lost[2]);
  EXPECT_GT(stored[0], stored[1]);
  EXPECT_GT(stored[1], stored[2]);
}

// Mode B in the engine is mode A up to rounding: the exact and the fast reader, with and without
// skipping, with keys expanded, alone and together.
TEST_F(VarRateEngine, AllWaysToReadAgree) {
  std::vector<std::vector<float>> out;
  for (const bool exact : {true, false}) {
    for (const char* spec : {"varrate(keep=0.5)", "varrate(keep=0.5,skip=true)"}) {
      Session session(*model_, pool_,
                      {.precision = exact ? kernels::Precision::exact : kernels::Precision::fast});
      session.prefill(std::span(ids_).first(kTokens), Needs{.window_queries = 64});
      session.encode(plan(spec), ranked_);
      out.push_back(ask(session));
      const RankedCounts& reads = session.read_trace().ranked;
      EXPECT_EQ(reads.rows, 20 * model_->info().n_layers);
      EXPECT_EQ(reads.passes, 2 * model_->info().n_layers);
      EXPECT_EQ(reads.expanded_bytes, 0);
      session.expand_keys(1 << 30);
      EXPECT_GT(session.prefix().expanded_bytes(), 0u);
      out.push_back(ask(session));
      EXPECT_GT(session.read_trace().ranked.expanded_bytes, 0);
    }
  }
  for (size_t i = 0; i < out.size(); ++i)  // the second half multiplies in bf16
    EXPECT_LT(divergence(out[0], out[i]), i < out.size() / 2 ? 1e-5 : 1e-3) << i;
}

// Low rank without anchors, of tokens and of groups of heads: stored, read, and better for more.
TEST_F(VarRateEngine, ControlsAreReadLikeAnyOther) {
  const auto session = read();
  const auto want = ask(*session);
  const double numbers = static_cast<double>(kTokens * model_->info().n_layers *
                                             model_->info().kv_heads * model_->info().head_dim * 2);
  for (const size_t control : {0, 1}) {
    std::vector<double> lost;
    for (const char* keep : {"0.8", "0.5"}) {
      const std::string spec =
          str("varrate(basis=", control == 0 ? "token" : "heads", ",keep=", keep, ")");
      session->set_aside();
      session->encode(plan(spec), controls_[control]);
      const RankedPrefix& prefix = *session->ranked();
      lost.push_back(divergence(want, ask(*session)));
      double kept = 0;
      for (int layer = 0; layer < prefix.n_layers(); ++layer) {
        EXPECT_EQ(prefix.layer(layer).tokens().exact.size(), 65u);
        const int width = prefix.shape().kv_heads * prefix.shape().head_dim * 2;
        kept += static_cast<double>(65 * width + prefix.layer(layer).rank_sum());
      }
      EXPECT_LE(kept / numbers, std::stod(keep)) << spec;
      EXPECT_GE(kept / numbers, std::stod(keep) - (control == 0 ? 0.001 : 0.15)) << spec;
      session->restore();
      EXPECT_EQ(ask(*session), want);
    }
    EXPECT_LT(lost[0], lost[1]);
    EXPECT_GT(lost[0], 0);
  }
}

// Fewer bits of the coefficients, chosen by each query: a step alone or in company reads the same.
TEST_F(VarRateEngine, QueriesChooseWhatTheyRead) {
  const auto session = read();
  const auto want = ask(*session);
  std::vector<double> lost;
  for (const char* bits : {"8", "3", "1"}) {
    session->set_aside();
    session->encode(plan(str("varrate(keep=0.5,bits=8,code=sigma,read=", bits, ")")), ranked_);
    const auto got = ask(*session);
    lost.push_back(divergence(want, got));
    const RankedCounts& reads = session->read_trace().ranked;
    EXPECT_EQ(reads.passes, reads.rows);
    EXPECT_LE(reads.bits(), std::stod(bits));
    EXPECT_GT(reads.bits(), 0.9 * std::stod(bits));
    const int sequence = session->open();
    std::vector<float> alone, logits;
    for (int i = 0; i < 20; ++i) {
      session->decode({&sequence, 1}, {&ids_[static_cast<size_t>(kTokens + i)], 1}, &logits);
      alone.insert(alone.end(), logits.begin(), logits.end());
    }
    session->close(sequence);
    EXPECT_LT(divergence(got, alone), 1e-6);
    EXPECT_THROW(session->expand_keys(1 << 20), Error);
    session->restore();
  }
  EXPECT_LT(lost[0], lost[1]);
  EXPECT_LT(lost[1], lost[2]);
}

TEST_F(VarRateEngine, RefusesAndLeavesThingsAsTheyWere) {
  const auto session = read();
  expect_refused(*session, plan("varrate(keep=0.05)"), "keep");
  const auto twin = parse_spec("streamingllm(ratio=0.5)").make_selector();
  session->compress(*twin);
  expect_refused(*session, plan("varrate(keep=0.5)"), "selector");
  EXPECT_THROW(session->expand_keys(1), Error);

  const auto coded = read();
  coded->encode(plan("varrate(keep=0.5)"), ranked_);
  EXPECT_THROW(coded->encode(plan("varrate(keep=0.5)"), ranked_), Error);
  EXPECT_THROW(coded->set_aside(), Error);
}

}  // namespace
}  // namespace kvist
