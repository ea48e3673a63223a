// SPDX-License-Identifier: MIT
// Fills the table and the JSON document from what was measured.
#include "kvist/cli/report.h"

#include <algorithm>

#include "kvist/cli/terminal.h"
#include "kvist/cli/version.h"
#include "kvist/core/error.h"
#include "kvist/core/peak_rss.h"
#include "kvist/kernels/targets.h"

namespace kvist {
namespace {

using nlohmann::json;

double factor_of(uint64_t reference, const Bytes& bytes) {
  return bytes.stored() == 0 ? 0
                             : static_cast<double>(reference) / static_cast<double>(bytes.stored());
}

std::string rate(double tok_s) { return tok_s > 0 ? fmt::format("{:.1f}", tok_s) : "–"; }
std::string ms(double value) {
  return value >= 100 ? fmt::format("{:.0f}", value) : fmt::format("{:.1f}", value);
}

std::vector<std::string> stage_row(const Stage& stage, uint64_t reference,
                                   const std::string& construct, const std::string& prefill) {
  return {stage.label,
          human_bytes(stage.bytes.payload),
          human_bytes(stage.bytes.metadata),
          human_bytes(stage.bytes.allocated),
          fmt::format("{:.2f}x", factor_of(reference, stage.bytes)),
          prefill,
          construct,
          rate(stage.tok_s)};
}

json answers_json(const std::vector<Answer>& answers) {
  json out = json::array();
  for (const Answer& a : answers) {
    out.push_back({{"question", a.question},
                   {"text", a.text},
                   {"token_ids", a.token_ids},
                   {"n_tokens", a.token_ids.size()},
                   {"first_token_ms", a.first_token_ms},
                   {"decode_tok_s", a.decode_tok_s}});
  }
  return out;
}

json bytes_json(uint64_t reference, const Bytes& bytes) {
  return {{"payload_bytes", bytes.payload},
          {"metadata_bytes", bytes.metadata},
          {"shared_bytes", bytes.shared},
          {"allocated_bytes", bytes.allocated},
          {"factor", factor_of(reference, bytes)}};
}

json reads_json(const ReadCounts& reads) {
  return {{"rows", reads.rows},
          {"bits_per_number", reads.bits_per_number()},
          {"key_bits_per_number", reads.bits_per_key()},
          {"value_bits_per_number", reads.bits_per_value()},
          {"key_bits", reads.key_bits},
          {"value_bits", reads.value_bits},
          {"key_budget_bits", reads.key_budget},
          {"value_budget_bits", reads.value_budget},
          {"dense_bytes", reads.dense_bytes},
          {"lines_touched", reads.lines},
          {"touched_share", reads.touched_share()}};
}

double mib(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// Of ranked layers: bytes a token's step touched, beside those that f16 would.
double touched_share(const RankedCounts& reads, uint64_t layer_bytes) {
  return static_cast<double>(reads.bytes()) / static_cast<double>(reads.rows) /
         static_cast<double>(layer_bytes);
}

json ranked_json(const RankedCounts& reads, uint64_t layer_bytes, const PrefixCache& prefix) {
  return {{"rows", reads.rows},
          {"passes", reads.passes},
          {"exact_bytes", reads.exact_bytes},
          {"coded_bytes", reads.coded_bytes},
          {"bits_per_coefficient", reads.bits()},
          {"coefficients", reads.coefficients},
          {"asked_bits", reads.asked_bits},
          {"budget_bits", reads.budget_bits},
          {"metadata_bytes", reads.metadata_bytes},
          {"basis_bytes", reads.basis_bytes},
          {"expanded_bytes", reads.expanded_bytes},
          {"blocks", reads.blocks},
          {"skipped", reads.skipped},
          {"touched_share", touched_share(reads, layer_bytes)},
          {"expanded_workspace_bytes", prefix.expanded_bytes()}};
}

std::string ranked_text(const RankedCounts& reads, uint64_t layer_bytes,
                        const PrefixCache& prefix) {
  if (reads.rows == 0) return "";
  const double share = touched_share(reads, layer_bytes);
  std::string text = fmt::format(
      "touched {:.2f} MiB a token, {:.0f} % of the bytes that f16 would; {:.0f} % of it the basis",
      share * mib(layer_bytes) * prefix.n_layers(), 100 * share,
      100 * static_cast<double>(reads.basis_bytes) / static_cast<double>(reads.bytes()));
  if (reads.coefficients > 0) text += fmt::format("; {:.2f} bits of a coefficient", reads.bits());
  if (reads.skipped > 0)
    text +=
        fmt::format("; {:.0f} % of key blocks skipped",
                    100 * static_cast<double>(reads.skipped) / static_cast<double>(reads.blocks));
  if (prefix.expanded_bytes() > 0)
    text += fmt::format("; {:.1f} MiB of keys kept expanded", mib(prefix.expanded_bytes()));
  return text + "\n";
}

std::string reads_text(const ReadCounts& reads) {
  if (reads.numbers == 0) return "";
  return fmt::format(
      "read {:.2f} bits of a number: {:.2f} of keys, {:.2f} of values; {:.0f} % of the "
      "bytes that f16 of the same tokens would touch\n",
      reads.bits_per_number(), reads.bits_per_key(), reads.bits_per_value(),
      100 * reads.touched_share());
}

}  // namespace

uint64_t reference_bytes(const ModelInfo& model, int n_tokens) {
  const KvShape shape{model.kv_heads, model.heads, model.head_dim, Scalar::f16};
  return shape.token_bytes() * static_cast<uint64_t>(model.n_layers) *
         static_cast<uint64_t>(n_tokens);
}

std::vector<std::vector<int>> kept_counts(const PrefixCache& prefix) {
  std::vector<std::vector<int>> counts(static_cast<size_t>(prefix.n_layers()));
  for (int layer = 0; layer < prefix.n_layers(); ++layer) {
    for (int head = 0; head < prefix.shape().kv_heads; ++head) {
      counts[static_cast<size_t>(layer)].push_back(
          static_cast<int>(prefix.kept(layer, head).size()));
    }
  }
  return counts;
}

double median_tok_s(const std::vector<Answer>& answers) {
  std::vector<double> rates;
  for (const Answer& a : answers) {
    if (a.decode_tok_s > 0) rates.push_back(a.decode_tok_s);
  }
  if (rates.empty()) return 0;
  std::sort(rates.begin(), rates.end());
  const size_t half = rates.size() / 2;
  return rates.size() % 2 ? rates[half] : (rates[half - 1] + rates[half]) / 2;
}

std::string summary(const Loaded& loaded, const Report& report) {
  const uint64_t reference = reference_bytes(loaded.model->info(), report.n_tokens);
  const bool none = loaded.recipe.spec.none();
  const std::string prefill = ms(report.timings.prefill_ms);
  Table table({"cache", "payload", "metadata", "allocated", "factor", "prefill ms", "construct ms",
               "tok/s"});
  if (report.uncompressed) {
    table.add(stage_row(*report.uncompressed, reference, "–", prefill));
  } else if (!none) {
    table.add(
        {"uncompressed, f16 (computed)", human_bytes(reference), "–", "–", "1.00x", "–", "–", "–"});
  }
  table.add(
      stage_row(report.stage, reference, none ? "–" : ms(report.timings.construct_ms), prefill));
  return str(human_count(static_cast<uint64_t>(report.n_tokens)), " tokens, ",
             loaded.model->info().name.empty() ? loaded.model->info().architecture
                                               : loaded.model->info().name,
             "\n", table.text(), reads_text(report.stage.reads),
             ranked_text(report.stage.reads.ranked,
                         reference / static_cast<uint64_t>(loaded.model->info().n_layers),
                         loaded.session->prefix()));
}

json to_json(const Loaded& loaded, const Context& context, const Report& report) {
  const ModelInfo& info = loaded.model->info();
  const uint64_t reference = reference_bytes(info, report.n_tokens);
  json out = {{"kvist", version()},
              {"commit", commit()},
              {"model", info.path},
              {"model_hash", info.hash},
              {"architecture", info.architecture},
              {"threads", context.threads},
              {"simd_target", kernels::current_target()},
              {"cache_type", name(loaded.session->prefix().shape().type)},
              {"n_prompt", report.n_tokens},
              {"method", loaded.recipe.spec.none() ? "none" : loaded.recipe.spec.text},
              {"ratio", loaded.recipe.spec.removed().value()},
              {"reference_bytes", reference},
              {"kept", report.kept},
              {"prefill_ms", report.timings.prefill_ms},
              {"construct_ms", report.timings.construct_ms},
              {"answers", answers_json(report.stage.answers)},
              {"decode_tok_s", report.stage.tok_s}};
  out.update(bytes_json(reference, report.stage.bytes));
  if (report.stage.reads.numbers > 0) out["reads"] = reads_json(report.stage.reads);
  if (report.stage.reads.ranked.rows > 0)
    out["ranked"] =
        ranked_json(report.stage.reads.ranked, reference / static_cast<uint64_t>(info.n_layers),
                    loaded.session->prefix());
  if (report.uncompressed) {
    out["uncompressed"] = bytes_json(reference, report.uncompressed->bytes);
    out["uncompressed"]["answers"] = answers_json(report.uncompressed->answers);
    out["uncompressed"]["decode_tok_s"] = report.uncompressed->tok_s;
  }
  out["peak_rss_bytes"] = peak_rss_bytes();
  return out;
}

json inspection_json(const Loaded& loaded, const Context& context, const Timings& timings,
                     const Bytes& bytes) {
  Report report;
  report.n_tokens = loaded.session->n_prompt();
  report.timings = timings;
  report.stage.bytes = bytes;
  report.kept = kept_counts(loaded.session->prefix());
  json out = to_json(loaded, context, report);
  out.erase("answers");
  out.erase("decode_tok_s");
  return out;
}

}  // namespace kvist
