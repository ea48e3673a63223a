// SPDX-License-Identifier: MIT
// A layer is coded whole and read query by query; nothing is written before all were read.
#include "kvist/cli/apply_read.h"

#include <algorithm>

#include "kvist/cache/coded_prefix.h"
#include "kvist/cli/array_calibration.h"
#include "kvist/cli/decode_queries.h"
#include "kvist/cli/dump.h"
#include "kvist/cli/query_row.h"
#include "kvist/cli/staged.h"
#include "kvist/core/error.h"

namespace kvist {
namespace {

using Json = nlohmann::ordered_json;

struct Results {
  std::vector<uint8_t> codes_k, codes_v, depths_k, depths_v;
  std::vector<float> out;
  std::vector<Json> rows;  // of the ledger
  ReadCounts sum;
  Bytes bytes;
};

// What the numbers of a dump must be for codes, beyond what Dump checks.
void check_arrays(const Dump& dump, const ReadPlan& plan) {
  const int64_t numbers = int64_t{dump.tokens()} * dump.kv_heads() * dump.head_dim();
  if (numbers > INT32_MAX) {
    throw Error(ErrorKind::unsupported, str(dump.folder(), "/k.npy: found ", numbers,
                                            " numbers a layer; expected at most ", INT32_MAX));
  }
  for (int layer : dump.model_layers()) {
    if (!is_protected(plan, layer, dump.n_model_layers())) continue;
    throw Error(ErrorKind::unsupported,
                str(dump.folder(), ": layer ", layer, " of ", dump.n_model_layers(),
                    " stays uncompressed under protect=", plan.protect,
                    ", so there is nothing to code: leave it out of the arrays"));
  }
}

void add_codes(const CodedLayer& layer, Results& results) {
  const KvShape& shape = layer.shape();
  const int drop = 8 - layer.width();
  for (int token = 0; token < layer.size(); ++token) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      for (int c = 0; c < shape.head_dim; ++c) {
        results.codes_k.push_back(static_cast<uint8_t>(layer.key_code(head, token, c) >> drop));
        results.codes_v.push_back(static_cast<uint8_t>(layer.value_code(head, token, c) >> drop));
      }
    }
  }
}

Json counts_json(const ReadCounts& t) {
  return {{"key_bits_budget", t.key_budget},     {"key_bits", t.key_bits},
          {"value_bits_budget", t.value_budget}, {"value_bits", t.value_bits},
          {"dense_bytes", t.dense_bytes},        {"key_lines", t.key_lines},
          {"value_lines", t.lines - t.key_lines}};
}

void add_row(const RowReading& row, int layer, int query, int tokens, int kv_heads,
             Results& results) {
  results.depths_k.insert(results.depths_k.end(), row.key_depths.begin(), row.key_depths.end());
  for (int g = 0; g < kv_heads; ++g) {
    const auto begin = row.value_depths.begin() + int64_t{g} * row.n_tokens;
    results.depths_v.insert(results.depths_v.end(), begin, begin + row.n_tokens);
    results.depths_v.insert(results.depths_v.end(), static_cast<size_t>(tokens - row.n_tokens), 0);
  }
  Json line = {{"layer", layer}, {"query", query}, {"tokens", row.n_tokens}};
  line.update(counts_json(row.trace));
  results.rows.push_back(line);
  results.sum += row.trace;
}

// rows [n][heads][d] to [heads][n][d], behind what is there.
void add_outputs(const std::vector<RowReading>& rows, int heads, int head_dim,
                 std::vector<float>& out) {
  for (int h = 0; h < heads; ++h) {
    for (const RowReading& row : rows)
      out.insert(out.end(), row.out.begin() + h * head_dim, row.out.begin() + (h + 1) * head_dim);
  }
}

Results work(Dump& dump, DecodeQueries& queries, const CodedModel& code, const ReadPlan& plan,
             ThreadPool& pool) {
  Results results;
  ReadWorkspace workspace;
  for (int i = 0; i < dump.n_layers(); ++i) {
    const Dump::Layer in = dump.load(i, true, pool);
    const std::vector<float> q = queries.load(i);
    const int layer = in.input.layer;
    const ReadPlan own = at_layer(plan, layer, in.input.n_layers);
    CodedLayer coded = code_layer(in.input, queries.heads(), code.layer(layer), own);
    add_codes(coded, results);
    std::vector<RowReading> rows;
    for (int row = 0; row < queries.n(); ++row) {
      const float* at = q.data() + int64_t{row} * queries.heads() * dump.head_dim();
      rows.push_back(read_row(coded, own, at, queries.positions()[static_cast<size_t>(row)] + 1,
                              in.input.logit_scale, workspace));
      add_row(rows.back(), layer, row, dump.tokens(), dump.kv_heads(), results);
    }
    add_outputs(rows, queries.heads(), dump.head_dim(), results.out);
    coded.freeze();
    results.bytes += coded.bytes();
  }
  return results;
}

Json ledger(const Spec& spec, const Dump& dump, const DecodeQueries& queries,
            const std::string& origin, const Results& results) {
  const ReadCounts& sum = results.sum;
  const uint64_t reference = uint64_t{4} * static_cast<uint64_t>(dump.n_layers()) *
                             static_cast<uint64_t>(dump.tokens()) *
                             static_cast<uint64_t>(dump.kv_heads() * dump.head_dim());
  Json out = {{"method", spec.text},
              {"calibration", origin},
              {"model_layers", dump.model_layers()},
              {"tokens", dump.tokens()},
              {"queries", queries.n()},
              {"q_pos", queries.positions()},
              {"kv_heads", dump.kv_heads()},
              {"heads", queries.heads()},
              {"head_dim", dump.head_dim()},
              {"reference_bytes", reference},
              {"payload_bytes", results.bytes.payload},
              {"metadata_bytes", results.bytes.metadata},
              {"shared_bytes", results.bytes.shared},
              {"allocated_bytes", results.bytes.allocated}};
  Json reads = counts_json(sum);
  reads["rate_budget"] = sum.budget_per_number();
  reads["rate"] = sum.bits_per_number();
  reads["logical_bytes"] = (sum.key_bits + sum.value_bits + 7) / 8 + sum.dense_bytes;
  reads["physical_bytes"] = sum.lines * 64 + sum.dense_bytes;
  reads["reference_bytes"] = sum.numbers * 2;
  out["reads"] = reads;
  out["rows"] = results.rows;
  return out;
}

void write(const std::string& folder, const Dump& dump, const DecodeQueries& queries,
           const Results& results, const std::string& ledger_text) {
  const auto shape = [&](std::vector<int64_t> axes) {
    if (dump.has_layer_axis()) axes.insert(axes.begin(), dump.n_layers());
    return axes;
  };
  const int64_t n = queries.n(), g = dump.kv_heads(), d = dump.head_dim(), t = dump.tokens();
  Staged out(folder);
  out.array("codes_k.npy", NpyType::uint8, shape({t, g, d}), results.codes_k.data());
  out.array("codes_v.npy", NpyType::uint8, shape({t, g, d}), results.codes_v.data());
  out.array("depths_k.npy", NpyType::uint8, shape({n, g, d}), results.depths_k.data());
  out.array("depths_v.npy", NpyType::uint8, shape({n, g, t}), results.depths_v.data());
  out.array("out.npy", NpyType::float32, shape({queries.heads(), n, d}), results.out.data());
  out.text("ledger.json", ledger_text);
  out.commit();
}

}  // namespace

Json apply_read(const Spec& spec, const ReadFolders& folders, ThreadPool& pool) {
  const Reading reading = *spec.reading();
  if (spec.make_selector() != nullptr) {
    throw Error(ErrorKind::unsupported,
                str(spec.text, ": arrays are either selected or coded; give one method"));
  }
  Dump dump(folders.in, Needs{});
  check_arrays(dump, reading.plan);
  DecodeQueries queries(dump);
  ArrayCalibration from = calibration_of(dump, queries, reading, folders.calibration, pool);
  const CodedModel code(std::move(from.calibration));
  check_fits({.kv_heads = dump.kv_heads(), .heads = queries.heads(), .head_dim = dump.head_dim()},
             dump.n_model_layers(), code, reading.plan);
  const Results results = work(dump, queries, code, reading.plan, pool);
  const Json book = ledger(spec, dump, queries, from.origin, results);
  write(folders.out, dump, queries, results, book.dump(2) + "\n");
  return book;
}

}  // namespace kvist
