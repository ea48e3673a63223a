// SPDX-License-Identifier: MIT
// What a compressed cache still knows: passkeys asked after compression on the embedded model, with
// random eviction as the control that must fail. An independent reference saw, over 8 rows of about
// 960 tokens: TwinKV .5 8/8 with KL 0.05, TwinKV .75 8/8 with 0.08, energy alone 8/8 with 0.10,
// uniform quotas 8/8 with 0.08, random .75 0/8 with 1.36.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "kvist/methods/spec.h"
#include "kvist/model/model.h"
#include "kvist/runtime/session.h"
#include "tests/support/embedded_model.h"

namespace kvist::testing {
namespace {

constexpr int kRows = 4;
constexpr int kSentences = 181;  // about 960 tokens with the chat template

struct Outcome {
  int right = 0;
  double kl = 0;  // mean over rows, first answer token against the uncompressed run
};

// Asks one row after `spec`; returns the logits of the first answer token and the text.
std::vector<float> ask(Session& session, const Tokenizer& tokenizer, const Passkey& row,
                       std::string* text) {
  const int sequence = session.open();
  const std::vector<float> first = session.extend(sequence, question_ids(tokenizer, row));
  std::vector<float> logits = first;
  std::vector<int32_t> answer;
  for (int i = 0; i < 10; ++i) {
    const int32_t token = argmax(logits);
    if (tokenizer.is_end(token)) break;
    answer.push_back(token);
    session.decode({&sequence, 1}, {&token, 1}, &logits);
  }
  session.close(sequence);
  *text = tokenizer.decode(answer);
  return first;
}

TEST(Quality, TwinKvKeepsThePasskeyAndRandomEvictionLosesIt) {
  const std::string path = embedded_model();
  if (path.empty()) GTEST_SKIP() << "no embedded model: run `make test`, or set KVIST_MODEL";
  const auto tokenizer = Tokenizer::load(path);
  ModelOptions options;
  options.n_threads = 2;
  const auto model = Model::load(path, options);
  ThreadPool pool(2);
  std::map<std::string, Outcome> outcome;
  const std::vector<std::string> specs = {"none",
                                          "twinkv(ratio=0.25)",
                                          "twinkv(ratio=0.5)",
                                          "twinkv(ratio=0.75)",
                                          "twinkv(ratio=0.75,score=value)",
                                          "twinkv(ratio=0.75,capacity=uniform)",
                                          "random(ratio=0.75)"};
  for (int r = 0; r < kRows; ++r) {
    const Passkey row = make_passkey(kSentences, 0.1 + 0.25 * r, 100 + static_cast<uint64_t>(r));
    const std::vector<int32_t> ids = context_ids(*tokenizer, row.context);
    EXPECT_NEAR(static_cast<double>(ids.size()), 960, 60);
    std::vector<float> uncompressed;
    for (const std::string& spec : specs) {
      const auto selector = parse_spec(spec).make_selector();
      Session session(*model, pool, {});
      session.prefill(ids, selector ? selector->needs() : Needs{});
      const uint64_t before = session.prefix().bytes().payload;
      if (selector) session.compress(*selector);
      std::string text;
      const std::vector<float> first = ask(session, *tokenizer, row, &text);
      if (spec == "none") uncompressed = first;
      Outcome& o = outcome[spec];
      o.right += text.find(row.key) != std::string::npos;
      o.kl += kl(uncompressed, first) / kRows;
      if (selector) {
        const double removed = parse_spec(spec).removed().value();
        EXPECT_NEAR(static_cast<double>(session.prefix().bytes().payload),
                    (1 - removed) * static_cast<double>(before), static_cast<double>(before) / 900);
      }
    }
  }
  for (const std::string& spec : specs) {
    std::printf("%-40s %d/%d right, KL %.3f\n", spec.c_str(), outcome[spec].right, kRows,
                outcome[spec].kl);
  }
  EXPECT_EQ(outcome["none"].right, kRows);
  EXPECT_EQ(outcome["twinkv(ratio=0.25)"].right, kRows);
  EXPECT_EQ(outcome["twinkv(ratio=0.5)"].right, kRows);
  EXPECT_EQ(outcome["twinkv(ratio=0.75)"].right, kRows);
  EXPECT_LT(outcome["twinkv(ratio=0.5)"].kl, 0.15);
  EXPECT_LT(outcome["twinkv(ratio=0.75)"].kl, 0.25);
  EXPECT_LE(outcome["random(ratio=0.75)"].right, kRows / 2)
      << "a control that does not fail measures nothing";
  EXPECT_GT(outcome["random(ratio=0.75)"].kl, 4 * outcome["twinkv(ratio=0.75)"].kl);
}

TEST(Quality, AQuestionNeverChangesThePrefix) {
  const std::string path = embedded_model();
  if (path.empty()) GTEST_SKIP() << "no embedded model: run `make test`, or set KVIST_MODEL";
  const auto tokenizer = Tokenizer::load(path);
  const auto model = Model::load(path, {});
  ThreadPool pool(1);
  const Passkey row = make_passkey(60, 0.5, 5);
  const auto selector = parse_spec("twinkv(ratio=0.5)").make_selector();
  Session session(*model, pool, {});
  session.prefill(context_ids(*tokenizer, row.context), selector->needs());
  session.compress(*selector);
  std::string first, other, last;
  const std::vector<float> a = ask(session, *tokenizer, row, &first);
  Passkey second = row;
  second.question = "What colour is the grass?";
  second.answer_prefix = "";
  ask(session, *tokenizer, second, &other);
  const std::vector<float> b = ask(session, *tokenizer, row, &last);
  EXPECT_EQ(first, last);
  EXPECT_EQ(a, b) << "the same question must see the same bytes";
  EXPECT_NE(first, other);
}

}  // namespace
}  // namespace kvist::testing
