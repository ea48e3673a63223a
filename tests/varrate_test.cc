// SPDX-License-Identifier: MIT
// The preset of VarRate for questions that come later, on the embedded model: passkeys asked after
// compression, which the paper's own rule loses. Needs the basis that `make` learns.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "kvist/cache/ranked_prefix.h"
#include "kvist/runtime/calibrate.h"
#include "kvist/runtime/session.h"
#include "support/embedded_model.h"

namespace kvist::testing {
namespace {

constexpr int kRows = 10;
constexpr int kSentences = 181;  // about 960 tokens with the chat template

bool finds_key(Session& session, const Tokenizer& tokenizer, const Passkey& row) {
  const int sequence = session.open();
  std::vector<float> logits = session.extend(sequence, question_ids(tokenizer, row));
  std::vector<int32_t> answer;
  for (int i = 0; i < 10; ++i) {
    const int32_t token = argmax(logits);
    if (tokenizer.is_end(token)) break;
    answer.push_back(token);
    session.decode({&sequence, 1}, {&token, 1}, &logits);
  }
  session.close(sequence);
  return tokenizer.decode(answer).find(row.key) != std::string::npos;
}

TEST(VarRateQuality, ThePresetKeepsPasskeysThatThePapersRuleLoses) {
  const std::string path = embedded_model();
  if (path.empty()) GTEST_SKIP() << "no embedded model: run `make test`, or set KVIST_MODEL";
  ModelOptions options;
  options.n_threads = 2;
  const auto model = Model::load(path, options);
  const ReadSource source = read_source(model->info());
  const std::string file = basis_path(source, RankPlan::Basis::residual);
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "no basis: run `make`, or kvist calibrate";
  const auto ranked = std::make_shared<RankedModel>(load_basis(file));
  ranked->basis().check_fits(source, RankPlan{});
  const auto tokenizer = Tokenizer::load(path);
  ThreadPool pool(2);
  const std::vector<std::string> specs = {"varrate(keep=0.5,preset=reuse)",
                                          "varrate(keep=0.35,preset=reuse)",
                                          "varrate(keep=0.25,preset=reuse)", "varrate(keep=0.25)"};
  std::map<std::string, int> found;
  for (int r = 0; r < kRows; ++r) {
    const Passkey row =
        make_passkey(kSentences, 0.1 + 0.2 * (r % 5), 700 + static_cast<uint64_t>(r));
    Session session(*model, pool, {});
    session.prefill(context_ids(*tokenizer, row.context), Needs{.window_queries = 64});
    for (const std::string& spec : specs) {
      session.set_aside();
      session.encode(*parse_spec(spec).ranking(), ranked);
      found[spec] += finds_key(session, *tokenizer, row);
      session.restore();
    }
  }
  for (const std::string& spec : specs)
    std::printf("%-40s %d/%d found\n", spec.c_str(), found[spec], kRows);
  EXPECT_GE(found[specs[0]], 9);
  EXPECT_GE(found[specs[1]], 9);
  EXPECT_GE(found[specs[2]], 8);
  EXPECT_LE(found[specs[3]], found[specs[2]] - 3) << "the paper's rule needs no preset";
}

}  // namespace
}  // namespace kvist::testing
