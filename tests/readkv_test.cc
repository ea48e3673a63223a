// SPDX-License-Identifier: MIT
// ReadKV on a real model: what is read costs what was asked for, deeper reads lose less, questions
// leave the prefix alone, and a calibration of something else is refused.
#include <gtest/gtest.h>

#include "kvist/core/error.h"
#include "kvist/eval/perplexity.h"
#include "kvist/runtime/calibrate.h"
#include "support/embedded_model.h"

namespace kvist {
namespace {

using testing::argmax;
using testing::embedded_model;

// The model, and a calibration over the first tokens of the demo's document.
class ReadKv : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = embedded_model();
    if (path.empty()) GTEST_SKIP() << "no embedded model: run `make test`, or set KVIST_MODEL";
    ModelOptions options;
    options.n_threads = 2;
    model_ = Model::load(path, options);
    tokenizer_ = Tokenizer::load(path);
    ids_ = tokenizer_->encode(testing::read_source_file("examples/demo.txt"), false);
    source_ = read_source(model_->info());
    Session session(*model_, pool_, {});
    const std::vector<std::vector<int32_t>> window{{ids_.begin(), ids_.begin() + 512}};
    const std::vector<ReadBasis> bases{{}, {.klt = true}};
    for (ReadCalibration& made : calibrate(session, source_, bases, window, 512))
      codes_.push_back(std::make_shared<CodedModel>(std::move(made)));
  }

  std::shared_ptr<const CodedModel> code(const Spec& spec) const {
    return codes_[spec.reading()->basis.klt ? 1 : 0];
  }
  std::vector<PerplexityResult> measure(Protocol protocol, const std::vector<std::string>& specs) {
    std::vector<Recipe> contestants;
    for (const std::string& text : specs) {
      const Spec spec = parse_spec(text);
      contestants.push_back({spec, spec.reading() ? code(spec) : nullptr, nullptr});
    }
    const std::vector<std::vector<int32_t>> window{{ids_.begin() + 1000, ids_.begin() + 1384}};
    return perplexity(*model_, pool_, {}, protocol, contestants, window);
  }
  // A session whose first n tokens are coded.
  std::unique_ptr<Session> coded(const std::string& text, int n) {
    const Spec spec = parse_spec(text);
    auto session = std::make_unique<Session>(*model_, pool_, SessionOptions{});
    session->prefill(std::span(ids_).first(static_cast<size_t>(n)));
    session->encode(spec.reading()->plan, code(spec));
    return session;
  }

  ThreadPool pool_{2};
  std::unique_ptr<Model> model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<int32_t> ids_;
  ReadSource source_;
  std::vector<std::shared_ptr<const CodedModel>> codes_;  // hadamard, klt
};

TEST_F(ReadKv, DeeperReadsLoseLess) {
  for (const Protocol protocol : {Protocol::prefix, Protocol::causal}) {
    const auto r = measure(
        protocol, {"readkv(read=8)", "readkv(read=4)", "readkv(read=2)", "readkv(read=2,sinks=4)"});
    EXPECT_EQ(r[0].stats.kl().mean, 0);
    EXPECT_LT(r[1].stats.kl().mean, 0.01);
    EXPECT_LT(r[1].stats.kl().mean, r[2].stats.kl().mean);
    EXPECT_LT(r[2].stats.kl().mean, r[3].stats.kl().mean);
    EXPECT_LT(r[4].stats.kl().mean, r[3].stats.kl().mean);
    EXPECT_NEAR(r[1].stats.log_ratio().mean, 0, 0.01);
    for (size_t i = 1; i < r.size(); ++i) {
      EXPECT_LE(r[i].reads.key_bits, r[i].reads.key_budget);
      EXPECT_LE(r[i].reads.value_bits, r[i].reads.value_budget);
      EXPECT_GT(r[i].reads.key_bits, r[i].reads.key_budget * 99 / 100);
    }
    // Codes of 8 bits are half of f16.
    EXPECT_EQ(r[2].bytes.payload * 2, r[2].plain_bytes);
  }
}

TEST_F(ReadKv, AKeyTransformFittedToTheHeadsLosesLess) {
  const auto r =
      measure(Protocol::prefix, {"readkv(read_keys=2,read_values=2,sinks=4)",
                                 "readkv(read_keys=2,read_values=2,sinks=4,transform=klt)"});
  EXPECT_LT(r[2].stats.kl().mean, r[1].stats.kl().mean);
}

// Slow channels of keys are elsewhere at position 2,500 than in windows of 512 tokens at 0.
TEST_F(ReadKv, WindowsSpreadOverTheSpanHoldBeyondTheirOwnLength) {
  constexpr size_t kPrompt = 2500, kNext = 32;
  const std::span<const int32_t> ids(ids_);
  const std::vector<std::vector<int32_t>> window{{ids_.begin(), ids_.begin() + 512}};
  const std::vector<ReadBasis> bases{{.klt = true}};
  const auto spread = [&](int span) {
    Session session(*model_, pool_, {});
    auto made = calibrate(session, source_, bases, window, span);
    EXPECT_EQ(made.front().positions, span);
    EXPECT_EQ(made.front().tokens, 512);
    return std::make_shared<CodedModel>(std::move(made.front()));
  };
  Session session(*model_, pool_, {});
  session.prefill(ids.first(kPrompt));
  session.set_aside();
  const auto next = [&] {
    const int sequence = session.open();
    auto logits = session.extend_all(sequence, ids.subspan(kPrompt, kNext));
    session.close(sequence);
    return logits;
  };
  const std::vector<float> plain = next();
  const size_t vocab = plain.size() / kNext;
  const auto lost = [&](std::shared_ptr<const CodedModel> code) {
    session.restore();
    session.set_aside();
    session.encode(parse_spec("readkv(transform=klt,sinks=4)").reading()->plan, std::move(code));
    const std::vector<float> coded = next();
    double sum = 0;
    for (size_t t = 0; t < kNext; ++t)
      sum += testing::kl(std::span(plain).subspan(t * vocab, vocab),
                         std::span(coded).subspan(t * vocab, vocab));
    return sum / kNext;
  };
  const double as_read = lost(spread(512)), all_over = lost(spread(4096));
  EXPECT_LT(all_over, 0.02);
  EXPECT_LT(4 * all_over, as_read) << all_over;
}

TEST_F(ReadKv, QuestionsTogetherAreAnsweredAsAlone) {
  const auto session = coded("readkv(read=3)", 600);
  const std::vector<int32_t> first{ids_[700], ids_[701], ids_[702]};
  std::vector<std::vector<float>> alone;
  for (int32_t token : first) {
    const int sequence = session->open();
    alone.push_back(session->extend(sequence, {&token, 1}));
    session->close(sequence);
  }
  std::vector<int32_t> sequences;
  for (size_t i = 0; i < first.size(); ++i) sequences.push_back(session->open());
  std::vector<float> together;
  session->decode(sequences, first, &together);
  const size_t vocab = together.size() / first.size();
  for (size_t i = 0; i < first.size(); ++i) {
    const std::span<const float> row = std::span(together).subspan(i * vocab, vocab);
    // Batches of several rows multiply by weights of another form, which may turn a near tie.
    const auto top = static_cast<size_t>(argmax(row)), own = static_cast<size_t>(argmax(alone[i]));
    EXPECT_GT(alone[i][top], alone[i][own] - 0.2f);
    EXPECT_LT(testing::kl(alone[i], row), 0.02);
  }
}

TEST_F(ReadKv, TheSameQuestionFirstAndLast) {
  const auto session = coded("readkv(store=4,read=2)", 500);
  const auto ask = [&](int at) {
    const int sequence = session->open();
    const auto logits =
        session->extend(sequence, std::span(ids_).subspan(static_cast<size_t>(at), 40));
    session->close(sequence);
    return logits;
  };
  const auto first = ask(600);
  ask(900);
  EXPECT_EQ(ask(600), first);
}

// What a question sees of a passkey document after `text`.
struct Asked {
  bool right = false;
  std::vector<float> first;  // logits of the first answer token
  Bytes bytes;
  ReadCounts reads;
};
Asked ask(Model& model, ThreadPool& pool, const Tokenizer& tokenizer, const testing::Passkey& row,
          const std::string& text, std::shared_ptr<const CodedModel> code) {
  const Spec spec = parse_spec(text);
  Session session(model, pool, {});
  const auto selector = spec.make_selector();
  session.prefill(testing::context_ids(tokenizer, row.context),
                  selector ? selector->needs() : Needs{});
  if (selector) session.compress(*selector);
  if (spec.reading()) session.encode(spec.reading()->plan, std::move(code));
  Asked asked;
  asked.bytes = session.prefix().bytes();
  const int sequence = session.open();
  asked.first = session.extend(sequence, testing::question_ids(tokenizer, row));
  std::vector<float> logits = asked.first;
  std::vector<int32_t> answer;
  for (int i = 0; i < 10 && !tokenizer.is_end(argmax(logits)); ++i) {
    answer.push_back(argmax(logits));
    session.decode({&sequence, 1}, {&answer.back(), 1}, &logits);
  }
  asked.right = tokenizer.decode(answer).find(row.key) != std::string::npos;
  asked.reads = session.read_trace();
  return asked;
}

TEST_F(ReadKv, BehindTwinKvHalfIsStoredAndThePasskeyIsFound) {
  const testing::Passkey row = testing::make_passkey(181, 0.4, 103);  // about 960 tokens
  const auto measured = [&](const std::string& text) {
    return ask(*model_, pool_, *tokenizer_, row, text, codes_[0]);
  };
  const Asked none = measured("none"), alone = measured("readkv(read=4)");
  const Asked both = measured("twinkv(ratio=0.5)+readkv(read=4)");
  const Asked random = measured("random(ratio=0.5)+readkv(read=4)");
  EXPECT_TRUE(none.right);
  EXPECT_TRUE(both.right);
  const double kl = testing::kl(none.first, both.first);
  std::printf("KL %.3f, readkv alone %.3f, behind random %.3f\n", kl,
              testing::kl(none.first, alone.first), testing::kl(none.first, random.first));
  EXPECT_LT(kl, 0.5);
  EXPECT_LT(kl, testing::kl(none.first, random.first));

  // Half of the tokens, up to the rounding of one budget a layer and head.
  const ModelInfo& info = model_->info();
  const auto heads = static_cast<uint64_t>(info.n_layers * info.kv_heads);
  const auto entry = static_cast<uint64_t>(2 * info.head_dim);  // bytes at 8 bits
  EXPECT_NEAR(static_cast<double>(2 * both.bytes.payload), static_cast<double>(alone.bytes.payload),
              static_cast<double>(2 * entry * heads));
  EXPECT_EQ(both.bytes.metadata, 4 * (both.bytes.payload / entry + heads));  // their positions
  EXPECT_EQ(both.bytes.shared, alone.bytes.shared);
  // And four bits of each of them are read.
  const double bits = static_cast<double>(both.reads.key_bits + both.reads.value_bits);
  EXPECT_LE(both.reads.key_bits, both.reads.key_budget);
  EXPECT_LE(both.reads.value_bits, both.reads.value_budget);
  EXPECT_NEAR(bits / static_cast<double>(both.reads.numbers), 4, 0.02);
}

TEST_F(ReadKv, OnePrefillServesSeveralCodes) {
  const auto ask = [&](Session& session) {
    const int sequence = session.open();
    const auto logits = session.extend(sequence, std::span(ids_).subspan(700, 5));
    session.close(sequence);
    return logits;
  };
  Session session(*model_, pool_, {});
  session.prefill(std::span(ids_).first(400));
  const auto uncompressed = ask(session);
  const uint64_t bytes = session.prefix().bytes().stored();
  for (const char* text : {"readkv(read=3)", "readkv(store=4,read=2,sinks=4)", "readkv(protect=2)",
                           "readkv(sparq=16,tokens=64)"}) {
    const Spec spec = parse_spec(text);
    session.set_aside();
    session.encode(spec.reading()->plan, code(spec));
    EXPECT_LT(session.prefix().bytes().stored(), bytes) << text;
    EXPECT_EQ(ask(session), ask(*coded(text, 400))) << text;
    EXPECT_GT(session.read_trace().rows, 0);
    session.restore();
    EXPECT_EQ(session.read_trace().rows, 0);
    EXPECT_EQ(ask(session), uncompressed) << text;
  }
}

TEST_F(ReadKv, BehindASelectorThatKeepsAllNothingChanges) {
  const auto logits = [&](const std::string& text) {
    const Spec spec = parse_spec(text);
    Session session(*model_, pool_, {});
    const auto selector = spec.make_selector();
    session.prefill(std::span(ids_).first(600), selector ? selector->needs() : Needs{});
    if (selector) session.compress(*selector);
    session.encode(spec.reading()->plan, code(spec));
    return session.extend(session.open(), std::span(ids_).subspan(600, 40));
  };
  EXPECT_EQ(logits("twinkv(ratio=0)+readkv(read=3,budget=per_head)"),
            logits("readkv(read=3,budget=per_head)"));
}

TEST_F(ReadKv, RefusesWhatDoesNotFit) {
  ReadSource other = source_;
  other.model = "0123456789abcdef";
  try {
    codes_[0]->calibration().check_fits(other);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_argument);
    EXPECT_NE(std::string(e.what()).find(other.model), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find(source_.model), std::string::npos) << e.what();
  }
  Session session(*model_, pool_, {});
  session.prefill(std::span(ids_).first(64));
  session.encode(parse_spec("readkv").reading()->plan, codes_[0]);
  EXPECT_THROW(session.encode(parse_spec("readkv").reading()->plan, codes_[0]), Error);
  EXPECT_THROW(measure(Protocol::causal, {"twinkv"}), Error);
}

}  // namespace
}  // namespace kvist
