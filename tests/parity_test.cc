// SPDX-License-Identifier: MIT
// Against float32 weights and float32 cache as the judge: our default path must be at least as
// exact as libllama is on the same Q4_1 file, over prompts of 300 and 2,000 tokens and 64 decoded
// ones.
#include <gtest/gtest.h>

#include <string>

#include "kvist/model/model.h"
#include "kvist/model/peer.h"
#include "kvist/runtime/session.h"
#include "tests/support/embedded_model.h"

namespace kvist::testing {
namespace {

// Tokens at the start whose logits are not compared: they go in as a document does, as one batch.
constexpr size_t kUnseen = 16;

struct Agreement {
  double kl = 0;        // mean over positions, KL(judge || run)
  double same_top = 0;  // share of positions with the judge's most likely token
};

// Logits after every prompt token but the first kUnseen, and after each of `continuation`, fed one by one.
std::vector<float> ours(const std::string& path, std::span<const int32_t> prompt,
                        std::span<const int32_t> continuation, const ModelOptions& options,
                        const SessionOptions& how) {
  const auto model = Model::load(path, options);
  ThreadPool pool(options.n_threads);
  Session session(*model, pool, how);
  session.prefill(prompt.first(kUnseen), nullptr);
  const int sequence = session.open();
  std::vector<float> logits = session.extend_all(sequence, prompt.subspan(kUnseen));
  std::vector<float> step;
  for (int32_t token : continuation) {
    session.decode({&sequence, 1}, {&token, 1}, &step);
    logits.insert(logits.end(), step.begin(), step.end());
  }
  return logits;
}

std::vector<float> libllama(const std::string& path, std::span<const int32_t> prompt,
                            std::span<const int32_t> continuation, bool extra_buffers) {
  PeerOptions options;
  options.n_threads = 2;
  options.context = static_cast<int>(prompt.size() + continuation.size()) + 64;
  options.extra_buffers = extra_buffers;
  LlamaPeer peer(path, options);
  peer.prefill(prompt.first(kUnseen));
  std::vector<float> logits = peer.prefill_all(prompt.subspan(kUnseen));
  std::vector<float> step;
  for (int32_t token : continuation) {
    peer.decode({&token, 1}, &step);
    logits.insert(logits.end(), step.begin(), step.end());
  }
  return logits;
}

Agreement agreement(std::span<const float> judge, std::span<const float> run, size_t vocab,
                    size_t begin, size_t end) {
  Agreement a;
  for (size_t row = begin; row < end; ++row) {
    const auto p = judge.subspan(row * vocab, vocab), q = run.subspan(row * vocab, vocab);
    a.kl += kl(p, q);
    a.same_top += argmax(p) == argmax(q);
  }
  a.kl /= static_cast<double>(end - begin);
  a.same_top /= static_cast<double>(end - begin);
  return a;
}

void compare(int n_prompt, const std::string& text) {
  const std::string path = embedded_model(), wide = embedded_model_f32();
  const auto tokenizer = Tokenizer::load(path);
  const size_t vocab = static_cast<size_t>(tokenizer->vocab());
  std::vector<int32_t> tokens = tokenizer->encode(text, false);
  ASSERT_GE(tokens.size(), static_cast<size_t>(n_prompt + 64));
  const std::span<const int32_t> prompt(tokens.data(), static_cast<size_t>(n_prompt));
  const std::span<const int32_t> next(tokens.data() + n_prompt, 64);

  ModelOptions judge_options;
  judge_options.n_threads = 2;
  judge_options.batch_weights = BatchWeights::native;
  SessionOptions judge_session;
  judge_session.cache_type = Scalar::f32;
  judge_session.precision = kernels::Precision::exact;
  const auto judge = ours(wide, prompt, next, judge_options, judge_session);
  ModelOptions defaults;
  defaults.n_threads = 2;
  const auto mine = ours(path, prompt, next, defaults, {});
  const auto plain = libllama(path, prompt, next, false);
  const size_t rows = static_cast<size_t>(n_prompt) - kUnseen;
  const auto print = [&](const char* what, const std::vector<float>& run) {
    const Agreement p = agreement(judge, run, vocab, 0, rows),
                    d = agreement(judge, run, vocab, rows, rows + 64);
    std::printf(
        "%5d prompt tokens  %-24s KL %.2e, same top %.1f %%   64 decoded: KL %.2e, same top %.1f "
        "%%\n",
        n_prompt, what, p.kl, 100 * p.same_top, d.kl, 100 * d.same_top);
    return std::pair{p, d};
  };
  const auto [mine_prompt, mine_decoded] = print("kvist, defaults", mine);
  const auto [plain_prompt, plain_decoded] = print("libllama", plain);
  if (LlamaPeer::extra_buffers_work()) print("libllama, repacked", libllama(path, prompt, next, true));
  EXPECT_LE(mine_prompt.kl, plain_prompt.kl);
  EXPECT_GE(mine_prompt.same_top, plain_prompt.same_top);
  EXPECT_LE(mine_decoded.kl, plain_decoded.kl);
  EXPECT_GE(mine_decoded.same_top, plain_decoded.same_top);
}

TEST(Parity, DefaultsAreAsExactAsLibllamaAt300Tokens) {
  if (embedded_model().empty())
    GTEST_SKIP() << "no embedded model: run `make test`, or set KVIST_MODEL";
  compare(300, read_source_file("examples/demo.txt"));
}

TEST(Parity, DefaultsAreAsExactAsLibllamaAt2000Tokens) {
  if (embedded_model().empty())
    GTEST_SKIP() << "no embedded model: run `make test`, or set KVIST_MODEL";
  compare(2000, read_source_file("examples/demo.txt"));
}

}  // namespace
}  // namespace kvist::testing
