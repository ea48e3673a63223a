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

// Logits after every prompt token but the first kUnseen, and after each of `continuation`, fed one
// by one.
std::vector<float> ours(const std::string& path, std::span<const int32_t> prompt,
                        std::span<const int32_t> continuation, const ModelOptions& options,
                        const SessionOptions& how) {
  const auto model = Model::load(path, options);
  ThreadPool pool(options.n_threads);
  Session session(*model, pool, how);
  session.prefill(prompt.first(kUnseen));
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

// Sums of both parts of a run: prompt and decoded tokens.
struct Score {
  Agreement prompt, decoded;
  int windows = 0;
  void add(const Agreement& p, const Agreement& d) {
    prompt.kl += p.kl;
    prompt.same_top += p.same_top;
    decoded.kl += d.kl;
    decoded.same_top += d.same_top;
    ++windows;
  }
  void print(int n_prompt, const char* what) const {
    std::printf(
        "%5d prompt tokens, %d x 64 decoded  %-20s prompt: KL %.2e, same top %.1f %%   decoded: KL "
        "%.2e, same top %.1f %%\n",
        n_prompt, windows, what, prompt.kl / windows, 100 * prompt.same_top / windows,
        decoded.kl / windows, 100 * decoded.same_top / windows);
  }
};

// Windows of n_prompt + 64 tokens of the text, `step` tokens apart.
void compare(int n_prompt, int n_windows, int step) {
  const std::string path = embedded_model(), wide = embedded_model_f32();
  const auto tokenizer = Tokenizer::load(path);
  const size_t vocab = static_cast<size_t>(tokenizer->vocab());
  const std::vector<int32_t> tokens =
      tokenizer->encode(read_source_file("examples/demo.txt"), false);
  ASSERT_GE(tokens.size(), static_cast<size_t>((n_windows - 1) * step + n_prompt + 64));

  ModelOptions judge_options;
  judge_options.n_threads = 2;
  judge_options.batch_weights = BatchWeights::native;
  SessionOptions judge_session;
  judge_session.cache_type = Scalar::f32;
  judge_session.precision = kernels::Precision::exact;
  ModelOptions defaults;
  defaults.n_threads = 2;
  Score mine, plain, repacked;
  for (int w = 0; w < n_windows; ++w) {
    const std::span<const int32_t> prompt(tokens.data() + w * step, static_cast<size_t>(n_prompt));
    const std::span<const int32_t> next(tokens.data() + w * step + n_prompt, 64);
    const auto judge = ours(wide, prompt, next, judge_options, judge_session);
    const size_t rows = static_cast<size_t>(n_prompt) - kUnseen;
    const auto add = [&](Score* score, const std::vector<float>& run) {
      score->add(agreement(judge, run, vocab, 0, rows),
                 agreement(judge, run, vocab, rows, rows + 64));
    };
    add(&mine, ours(path, prompt, next, defaults, {}));
    add(&plain, libllama(path, prompt, next, false));
    if (LlamaPeer::extra_buffers_work()) add(&repacked, libllama(path, prompt, next, true));
  }
  mine.print(n_prompt, "kvist, defaults");
  plain.print(n_prompt, "libllama");
  if (repacked.windows > 0) repacked.print(n_prompt, "libllama, repacked");
  EXPECT_LE(mine.prompt.kl, plain.prompt.kl);
  EXPECT_GE(mine.prompt.same_top, plain.prompt.same_top);
  EXPECT_LE(mine.decoded.kl, plain.decoded.kl);
  EXPECT_GE(mine.decoded.same_top, plain.decoded.same_top);
}

TEST(Parity, DefaultsAreAsExactAsLibllamaAt300Tokens) {
  if (embedded_model().empty())
    GTEST_SKIP() << "no embedded model: run `make test`, or set KVIST_MODEL";
  compare(300, 4, 600);
}

TEST(Parity, DefaultsAreAsExactAsLibllamaAt2000Tokens) {
  if (embedded_model().empty())
    GTEST_SKIP() << "no embedded model: run `make test`, or set KVIST_MODEL";
  compare(2000, 2, 400);
}

}  // namespace
}  // namespace kvist::testing
