// SPDX-License-Identifier: MIT
// kvist apply: a method on plain arrays, without a model.
#include <CLI/Option.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "kvist/cache/dense.h"
#include "kvist/cache/ragged.h"
#include "kvist/cli/apply_ranks.h"
#include "kvist/cli/apply_read.h"
#include "kvist/cli/command.h"
#include "kvist/cli/dump.h"
#include "kvist/cli/staged.h"
#include "kvist/cli/terminal.h"
#include "kvist/core/error.h"
#include "kvist/core/npy.h"
#include "kvist/methods/spec.h"

namespace kvist {
namespace {

struct ApplyOptions {
  std::string method, in, out, calibration, basis;
};

// Everything that is written, in the order of the layers.
struct Result {
  std::vector<int32_t> kept_count, kept, counts;
  std::vector<double> scores;
  Bytes bytes;
};

bool ranks_nonfinite(const Spec& spec) {
  for (const MethodCall& call : spec.calls) {
    for (const OptionSpec& option : call.method->options) {
      if (option.name == std::string_view("nonfinite") && call.options.text("nonfinite") == "last")
        return true;
    }
  }
  return false;
}

Selection everything(const Dump& dump) {
  std::vector<int32_t> all(static_cast<size_t>(dump.tokens()));
  std::iota(all.begin(), all.end(), 0);
  Selection selection;
  selection.kept.assign(static_cast<size_t>(dump.kv_heads()), all);
  return selection;
}

// What a cache of f16 numbers takes for the kept entries: built, so that nothing is estimated. The
// numbers themselves do not matter.
Bytes stored_bytes(const Dump& dump, const Selection& selection) {
  DenseLayer dense(KvShape{dump.kv_heads(), dump.kv_heads(), dump.head_dim(), Scalar::f16});
  dense.reserve(dump.tokens());
  dense.resize(dump.tokens());
  return RaggedLayer(dense, selection.kept).bytes();
}

template <typename T>
void append(const std::vector<std::vector<T>>& rows, std::vector<T>* out) {
  for (const auto& row : rows) out->insert(out->end(), row.begin(), row.end());
}

Result work(Dump& dump, const Spec& spec, Selector* selector, ThreadPool& pool) {
  std::vector<Selection> selections;
  for (int i = 0; i < dump.n_layers(); ++i) {
    const Dump::Layer layer = dump.load(i, !ranks_nonfinite(spec), pool);
    if (selector != nullptr && selector->needs().every_query) selector->observe(layer.input);
    selections.push_back(selector ? selector->select(layer.input, true) : everything(dump));
  }
  if (selector != nullptr) selector->settle(selections);
  Result result;
  for (const Selection& selection : selections) {
    for (const auto& kept : selection.kept)
      result.kept_count.push_back(static_cast<int32_t>(kept.size()));
    append(selection.kept, &result.kept);
    append(selection.scores, &result.scores);
    append(selection.counts, &result.counts);
    result.bytes += stored_bytes(dump, selection);
  }
  return result;
}

nlohmann::ordered_json ledger(const Dump& dump, const Spec& spec, const Result& result) {
  const uint64_t element_bytes = size_of(Scalar::f16);
  const uint64_t reference = uint64_t{2} * static_cast<uint64_t>(dump.n_layers()) *
                             static_cast<uint64_t>(dump.tokens()) *
                             static_cast<uint64_t>(dump.kv_heads()) *
                             static_cast<uint64_t>(dump.head_dim()) * element_bytes;
  const uint64_t stored = result.bytes.stored();
  nlohmann::ordered_json kept = nlohmann::ordered_json::array();
  for (int layer = 0; layer < dump.n_layers(); ++layer) {
    const auto begin = result.kept_count.begin() + int64_t{layer} * dump.kv_heads();
    kept.push_back(std::vector<int32_t>(begin, begin + dump.kv_heads()));
  }
  return {{"method", spec.text},
          {"ratio", spec.removed().text()},
          {"model_layers", dump.model_layers()},
          {"tokens", dump.tokens()},
          {"kv_heads", dump.kv_heads()},
          {"head_dim", dump.head_dim()},
          {"element_type", name(Scalar::f16)},
          {"element_bytes", element_bytes},
          {"reference_bytes", reference},
          {"payload_bytes", result.bytes.payload},
          {"metadata_bytes", result.bytes.metadata},
          {"shared_bytes", result.bytes.shared},
          {"allocated_bytes", result.bytes.allocated},
          {"factor", stored == 0 ? nlohmann::ordered_json()
                                 : nlohmann::ordered_json(static_cast<double>(reference) /
                                                          static_cast<double>(stored))},
          {"kept", kept}};
}

void write(const std::string& folder, const Dump& dump, const Result& result,
           const std::string& ledger_text) {
  const int64_t layers = dump.n_layers(), heads = dump.kv_heads(), tokens = dump.tokens();
  Staged out(folder);
  out.array("kept_count.npy", NpyType::int32, {layers, heads}, result.kept_count.data());
  out.array("kept.npy", NpyType::int32, {static_cast<int64_t>(result.kept.size())},
            result.kept.data());
  if (!result.scores.empty())
    out.array("scores.npy", NpyType::float64, {layers, heads, tokens}, result.scores.data());
  if (!result.counts.empty())
    out.array("counts.npy", NpyType::int32, {layers, heads, tokens}, result.counts.data());
  out.text("ledger.json", ledger_text);
  out.commit();
}

int code_and_read(const ApplyOptions& options, const Spec& spec, const Context& context) {
  const nlohmann::ordered_json book =
      apply_read(spec, {options.in, options.out, options.calibration}, *context.pool);
  if (context.json) {
    std::fputs((book.dump(2) + "\n").c_str(), stdout);
    return kDone;
  }
  const nlohmann::ordered_json& reads = book["reads"];
  std::fputs(
      str(spec.text, ": ", book["rows"].size(), " rows read ",
          fmt::format("{:.3f}", reads["rate"].get<double>()), " of ",
          fmt::format("{:.3f}", reads["rate_budget"].get<double>()), " bits a number, ",
          human_bytes(reads["logical_bytes"].get<uint64_t>()), " of payload in ",
          human_bytes(reads["physical_bytes"].get<uint64_t>()), " of lines; ", options.out, "\n")
          .c_str(),
      stdout);
  return kDone;
}

int rank_and_code(const ApplyOptions& options, const Spec& spec, const Context& context) {
  const nlohmann::ordered_json book =
      apply_ranks(spec, {options.in, options.out, options.basis}, *context.pool);
  if (context.json) {
    std::fputs((book.dump(2) + "\n").c_str(), stdout);
    return kDone;
  }
  std::fputs(str(spec.text, ": ", book["layers"].size(), " layers of ", book["tokens"].get<int>(),
                 " tokens in ", book["payload_bytes"].get<uint64_t>(), " + ",
                 book["metadata_bytes"].get<uint64_t>(), " bytes (payload + metadata, f16), ",
                 fmt::format("{:.2f}x", book["factor"].get<double>()), "; ", options.out, "\n")
                 .c_str(),
             stdout);
  return kDone;
}

int apply(const ApplyOptions& options, const Context& context) {
  const Spec spec = parse_spec(options.method);
  if (!options.basis.empty() && !spec.ranking()) {
    throw Error(ErrorKind::invalid_argument,
                str("--basis is for methods that rank, as varrate(keep=0.2), not for ",
                    spec.none() ? "none" : spec.text));
  }
  if (spec.ranking()) return rank_and_code(options, spec, context);
  if (spec.reading()) return code_and_read(options, spec, context);
  if (!options.calibration.empty()) {
    throw Error(ErrorKind::invalid_argument,
                str("--calibration is for methods that read, as readkv(read=2), not for ",
                    spec.none() ? "none" : spec.text));
  }
  const std::unique_ptr<Selector> selector = spec.make_selector();
  Dump dump(options.in, selector ? selector->needs() : Needs{});
  const Result result = work(dump, spec, selector.get(), *context.pool);
  const nlohmann::ordered_json book = ledger(dump, spec, result);
  const std::string text = book.dump(2) + "\n";
  write(options.out, dump, result, text);
  if (context.json) {
    std::fputs(text.c_str(), stdout);
  } else {
    std::fputs(
        str(spec.text, ": kept ", result.kept.size(), " of ",
            int64_t{dump.n_layers()} * dump.kv_heads() * dump.tokens(), " entries, ",
            result.bytes.payload, " + ", result.bytes.metadata, " bytes (payload + metadata, f16)",
            book["factor"].is_null() ? std::string()
                                     : fmt::format(", {:.2f}x", book["factor"].get<double>()),
            "; ", options.out, "\n")
            .c_str(),
        stdout);
  }
  return kDone;
}

Action add(CLI::App& app) {
  const auto options = std::make_shared<ApplyOptions>();
  app.add_option("--method", options->method, "method spec, as twinkv(ratio=0.5)")
      ->required()
      ->type_name("SPEC");
  app.add_option(
         "--in", options->in,
         "folder with k.npy, v.npy, q.npy (after RoPE) or q_pre.npy [q_pos.npy, meta.json]; "
         "for readkv q is [heads, n, head_dim], queries that see the tokens 0 to q_pos, "
         "without q_pos all; for varrate also k_pre.npy, keys before RoPE, in place of k.npy, and "
         "q_out.npy [heads, n, head_dim], queries to be answered")
      ->required()
      ->type_name("DIR");
  app.add_option(
         "--out", options->out,
         "folder for kept_count, kept, scores, counts (for readkv codes_k, codes_v, depths_k, "
         "depths_v, out, for varrate ranks, anchor_index, coefficients, k_out, v_out, out; all "
         ".npy) and ledger.json, which are replaced")
      ->required()
      ->type_name("DIR");
  app.add_option(
         "--calibration", options->calibration,
         "for readkv: a file of kvist calibrate of the arrays' shape; nothing tells whether "
         "model and rope are those of the arrays. Without it mu_k, sigma_k, mu_v, sigma_v "
         "[and m2q] .npy in --in, or readkv(calibration=prompt)")
      ->type_name("FILE");
  app.add_option("--basis", options->basis,
                 "for varrate: a file of kvist calibrate --basis of the arrays' shape; without it "
                 "basis.npy [layers, rows, 2 kv_heads head_dim] and, for code=sigma, "
                 "eigenvalues.npy [layers, rows] in --in")
      ->type_name("FILE");
  return [options](const Context& context) { return apply(*options, context); };
}

}  // namespace

extern constinit const Command apply_command = {
    "apply", "apply a method to plain arrays, without a model", add};

}  // namespace kvist
