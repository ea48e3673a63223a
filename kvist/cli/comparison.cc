// SPDX-License-Identifier: MIT
// The arithmetic of a comparison, and its tables.
#include "kvist/cli/comparison.h"

#include <algorithm>

#include "kvist/cli/terminal.h"
#include "kvist/cli/version.h"
#include "kvist/core/error.h"
#include "kvist/eval/logit_stats.h"
#include "kvist/kernels/targets.h"

namespace kvist {
namespace {

std::string rate(double tok_s) { return tok_s > 0 ? fmt::format("{:.1f}", tok_s) : "–"; }

// A field of a CSV file (RFC 4180).
std::string quoted_field(const std::string& text) {
  std::string out = "\"";
  for (char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

nlohmann::ordered_json answers_json(const std::vector<Answer>& answers) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const Answer& a : answers) {
    out.push_back({{"question", a.question},
                   {"text", a.text},
                   {"token_ids", a.token_ids},
                   {"decode_tok_s", a.decode_tok_s}});
  }
  return out;
}

}  // namespace

std::vector<std::string> split_specs(const std::string& text) {
  std::vector<std::string> specs(1);
  int depth = 0;
  for (char c : text) {
    depth += (c == '(') - (c == ')');
    if (c == ',' && depth == 0) {
      specs.emplace_back();
    } else {
      specs.back() += c;
    }
  }
  for (std::string& spec : specs) {
    const size_t begin = spec.find_first_not_of(" \t\n"), end = spec.find_last_not_of(" \t\n");
    spec = begin == std::string::npos ? "" : spec.substr(begin, end - begin + 1);
  }
  return specs;
}

Distance distance_of(std::span<const float> reference, std::span<const float> logits, int vocab) {
  KVIST_ASSERT(reference.size() == logits.size());
  Distance d;
  const auto width = static_cast<size_t>(vocab);
  for (size_t at = 0; at + width <= reference.size(); at += width) {
    constexpr int32_t kAnyTarget = 0;  // what came is not looked at
    const TokenDistance one =
        distance_between(reference.subspan(at, width), logits.subspan(at, width), kAnyTarget);
    d.kl += std::max(0.0, one.kl);
    d.same_top += one.same_top;
    ++d.n_tokens;
  }
  if (d.n_tokens > 0) {
    d.kl /= d.n_tokens;
    d.same_top /= d.n_tokens;
  }
  return d;
}

std::string table_text(const Comparison& c) {
  Table table({"method", "factor", "bytes", "bits read", "construct ms", "of prefill", "tok/s",
               "KL", "same top"});
  for (const ComparedRow& row : c.rows) {
    const bool none = &row == &c.rows.front();
    table.add({row.method, fmt::format("{:.2f}x", row.factor), human_bytes(row.bytes.stored()),
               fmt::format("{:.2f}", row.read_bits()),
               none ? "–" : fmt::format("{:.0f}", row.construct_ms),
               none ? "–" : fmt::format("{:.1f} %", 100 * row.construct_ms / c.prefill_ms),
               rate(row.decode_tok_s), none ? "0" : fmt::format("{:.4f}", row.distance.kl),
               none ? "–" : fmt::format("{:.1f} %", 100 * row.distance.same_top)});
  }
  return str(human_count(static_cast<uint64_t>(c.n_prompt)), " tokens, ", c.model, ", prefill ",
             fmt::format("{:.0f}", c.prefill_ms), " ms\n", table.text());
}

std::string csv_text(const Comparison& c) {
  std::string out =
      "method,factor,payload_bytes,metadata_bytes,read_bits,construct_ms,prefill_ms,decode_tok_s,"
      "kl,same_top,"
      "answers\n";
  for (const ComparedRow& row : c.rows) {
    std::string answers;
    for (const Answer& answer : row.answers)
      answers += str(answers.empty() ? "" : "\n", answer.text);
    out += str(quoted_field(row.method),
               fmt::format(",{:.6g},{},{},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},", row.factor,
                           row.bytes.payload, row.bytes.metadata, row.read_bits(), row.construct_ms,
                           c.prefill_ms, row.decode_tok_s, row.distance.kl, row.distance.same_top),
               quoted_field(answers), "\n");
  }
  return out;
}

nlohmann::ordered_json to_json(const Comparison& c, const Context& context) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const ComparedRow& row : c.rows) {
    rows.push_back({{"method", row.method},
                    {"factor", row.factor},
                    {"payload_bytes", row.bytes.payload},
                    {"metadata_bytes", row.bytes.metadata},
                    {"allocated_bytes", row.bytes.allocated},
                    {"read_bits", row.read_bits()},
                    {"construct_ms", row.construct_ms},
                    {"decode_tok_s", row.decode_tok_s},
                    {"kl", row.distance.kl},
                    {"same_top", row.distance.same_top},
                    {"compared_tokens", row.distance.n_tokens},
                    {"answers", answers_json(row.answers)}});
  }
  return {{"kvist", version()},
          {"commit", commit()},
          {"model", c.model},
          {"threads", context.threads},
          {"simd_target", kernels::current_target()},
          {"n_prompt", c.n_prompt},
          {"reference_bytes", c.reference_bytes},
          {"prefill_ms", c.prefill_ms},
          {"methods", rows}};
}

}  // namespace kvist
