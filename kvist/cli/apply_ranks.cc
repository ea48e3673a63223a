// SPDX-License-Identifier: MIT
// Each layer is coded, reconstructed and read; nothing is written before all were.
#include "kvist/cli/apply_ranks.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>

#include "kvist/cache/coded_reader.h"
#include "kvist/cache/dense_rows.h"
#include "kvist/cache/ranked_prefix.h"
#include "kvist/cli/decode_queries.h"
#include "kvist/cli/dump.h"
#include "kvist/cli/staged.h"
#include "kvist/core/error.h"
#include "kvist/methods/rank/encode_layer.h"

namespace kvist {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Results {
  std::vector<int32_t> ranks, anchor_index;
  std::vector<float> coefficients, k, v, out;
  std::vector<Json> layers;  // of the ledger
  int64_t coded = 0;         // tokens of a layer
  int neighbours = 0;
};

// Of the arrays' layers alone, from arrays beside the dump.
RankBasis basis_arrays(const Dump& dump, const RankPlan& plan) {
  const int64_t width = int64_t{2} * dump.kv_heads() * dump.head_dim();
  NpyFile rows((fs::path(dump.folder()) / "basis.npy").string(), NpyType::float32);
  std::vector<int64_t> shape = rows.shape();
  if (!dump.has_layer_axis()) shape.insert(shape.begin(), 1);
  if (shape.size() != 3 || shape[0] != dump.n_layers() || shape[1] < 1 || shape[1] > width ||
      shape[2] != width) {
    refuse_array(rows.path(), str("shape ", shape_text(rows.shape())),
                 str(dump.has_layer_axis() ? str("[", dump.n_layers(), ", ") : "[", "rows, ", width,
                     "], at most ", width, " rows"));
  }
  const int64_t n_rows = shape[1];
  const std::string spread = (fs::path(dump.folder()) / "eigenvalues.npy").string();
  std::unique_ptr<NpyFile> eigenvalues;
  if (format_of(plan).tree() || fs::exists(spread)) {
    eigenvalues = std::make_unique<NpyFile>(spread, NpyType::float32);
    std::vector<int64_t> expected{n_rows};
    if (dump.has_layer_axis()) expected.insert(expected.begin(), dump.n_layers());
    if (eigenvalues->shape() != expected)
      refuse_array(spread, str("shape ", shape_text(eigenvalues->shape())), shape_text(expected));
  }
  if (plan.basis == RankPlan::Basis::heads)
    refuse_array(rows.path(), "rows alone", "a file for basis=heads, which names groups (--basis)");
  RankBasis basis;
  basis.kind = plan.basis;
  basis.value_scale = plan.value_scale;
  for (int i = 0; i < dump.n_layers(); ++i) {
    RankBasisLayer& layer = basis.layers.emplace_back();
    layer.n_rows = static_cast<int>(n_rows);
    layer.width = static_cast<int>(width);
    Buffer<float> numbers(static_cast<size_t>(n_rows * width));
    rows.read(i * n_rows * width, numbers.span());
    require_finite_layer(rows, i, "[layer, row, coordinate, 0]", numbers, width, 1);
    layer.rows.assign(numbers.begin(), numbers.end());
    layer.eigenvalues.assign(static_cast<size_t>(n_rows), 1.0f);
    if (eigenvalues == nullptr) continue;
    Buffer<float> values(static_cast<size_t>(n_rows));
    eigenvalues->read(i * n_rows, values.span());
    require_finite_layer(*eigenvalues, i, "[layer, row, 0, 0]", values, 1, 1);
    if (values[0] <= 0)
      refuse_array(spread, str(values[0], " first"), "eigenvalues, largest first");
    layer.eigenvalues.assign(values.begin(), values.end());
  }
  return basis;
}

// The same layers of a file, which is not compared with model or RoPE.
RankBasis basis_file(const std::string& path, const Dump& dump, const RankPlan& plan) {
  RankBasis basis = load_basis(path);
  const ReadShape& of = basis.source.shape;
  if (of.layers != dump.n_model_layers() || of.kv_heads != dump.kv_heads() ||
      of.head_dim != dump.head_dim()) {
    throw Error(ErrorKind::invalid_argument,
                str(path, ": found a basis of ", of.layers, " layers, ", of.kv_heads,
                    " KV heads of ", of.head_dim, "; expected that of the arrays, ",
                    dump.n_model_layers(), ", ", dump.kv_heads(), " of ", dump.head_dim(),
                    " (meta.json says which layers of how many they are)"));
  }
  basis.check_fits(basis.source, plan);
  std::vector<RankBasisLayer> used;
  for (const int layer : dump.model_layers())
    used.push_back(std::move(basis.layers[static_cast<size_t>(layer)]));
  basis.layers = std::move(used);
  return basis;
}

DenseLayer dense_of(const Dump::Layer& from, const KvShape& shape) {
  DenseLayer dense(shape);
  const int n = from.input.n_tokens, width = shape.kv_heads * shape.head_dim;
  dense.reserve(n);
  dense.resize(n);
  for (int t = 0; t < n; ++t)
    dense.write(t, from.k.data() + int64_t{t} * width, from.v.data() + int64_t{t} * width);
  return dense;
}

class Work {
 public:
  Work(Dump& dump, DecodeQueries* queries, const RankPlan& plan, RankBasis basis, ThreadPool& pool)
      : dump_(dump), queries_(queries), plan_(plan), pool_(pool) {
    shape_ = {.kv_heads = dump.kv_heads(),
              .heads = queries == nullptr ? dump.kv_heads() : queries->heads(),
              .head_dim = dump.head_dim()};
    basis.source.shape = {dump.n_layers(), shape_.kv_heads, shape_.heads, shape_.head_dim};
    prefix_ = std::make_unique<RankedPrefix>(shape_, dump.tokens(),
                                             std::make_shared<RankedModel>(std::move(basis)),
                                             dump.rope(), RankedPrefix::Storage::of(plan));
  }

  void layer(int i) {
    const Dump::Layer in = dump_.load(i, true, pool_);
    const DenseLayer dense = dense_of(in, shape_);
    const DenseRows keys(dense, true), values(dense, false);
    LayerInput input = in.input;
    input.keys = &keys;
    input.values = &values;
    const RankedCode code =
        encode_layer(input, prefix_->model().layer(i), plan_, prefix_->rotations(), pool_);
    std::vector<kernels::KvRun> runs;
    for (int head = 0; head < shape_.kv_heads; ++head) runs.push_back(dense.run(head));
    prefix_->encode(code, runs, pool_);
    add_codes(i, code);
    add_tokens(i);
    if (queries_ != nullptr) add_outputs(i, in.input.logit_scale);
  }
  Results take() { return std::move(results_); }
  const RankedPrefix& prefix() const { return *prefix_; }

 private:
  void add_codes(int i, const RankedCode& code) {
    const size_t begin = results_.ranks.size();
    results_.ranks.resize(begin + static_cast<size_t>(code.n_tokens), -1);
    for (size_t t = 0; t < code.coded.size(); ++t) {
      results_.ranks[begin + static_cast<size_t>(code.coded[t])] = code.rank[t];
      const auto neighbours = code.neighbours_of(t);
      for (size_t n = 0; n < static_cast<size_t>(code.n_neighbours); ++n)
        results_.anchor_index.push_back(n < neighbours.size() ? code.anchors[neighbours[n]] : -1);
    }
    const RankedLayer& layer = prefix_->layer(i);
    const RankedCode stored = layer.decode(prefix_->model().sigma(i));
    results_.coefficients.insert(results_.coefficients.end(), stored.coefficients.begin(),
                                 stored.coefficients.end());
    results_.coded = std::ssize(code.coded);
    results_.neighbours = code.n_neighbours;
    const Bytes bytes = prefix_->bytes(i);
    results_.layers.push_back({{"layer", dump_.model_layers()[static_cast<size_t>(i)]},
                               {"stride", code.stride},
                               {"exact", code.exact.size()},
                               {"coded", code.coded.size()},
                               {"least_rank", code.least_rank},
                               {"coefficients", code.coefficients.size()},
                               {"unspent", code.unspent},
                               {"shift", layer.shift()},
                               {"payload_bytes", bytes.payload},
                               {"metadata_bytes", bytes.metadata}});
  }

  // k_out and v_out, heads inside tokens.
  void add_tokens(int i) {
    const size_t heads = static_cast<size_t>(shape_.kv_heads),
                 d = static_cast<size_t>(shape_.head_dim);
    const size_t begin = results_.k.size(), n = static_cast<size_t>(dump_.tokens());
    results_.k.resize(begin + n * heads * d);
    results_.v.resize(results_.k.size());
    std::vector<float> k, v;
    for (size_t head = 0; head < heads; ++head) {
      prefix_->reconstruct(i, static_cast<int>(head), &k, &v);
      for (size_t t = 0; t < n; ++t) {
        std::copy_n(&k[t * d], d, &results_.k[begin + (t * heads + head) * d]);
        std::copy_n(&v[t * d], d, &results_.v[begin + (t * heads + head) * d]);
      }
    }
  }

  void add_outputs(int i, float logit_scale) {
    const std::vector<float> q = queries_->load(i);
    std::vector<float> out(q.size());
    const SuffixRows rows{.row = 0, .n_rows = queries_->n()};
    const AttendCall call{.layer = i,
                          .q = q.data(),
                          .out = out.data(),
                          .n_rows = queries_->n(),
                          .logit_scale = logit_scale,
                          .suffixes = {&rows, 1},
                          .precision = kernels::Precision::exact};
    AttendWorkspace workspace;
    prefix_->reserve(workspace, queries_->n(), 0, pool_.n_threads());
    pool_.run([&](Worker worker) { prefix_->attend(call, workspace, worker); });
    const size_t heads = static_cast<size_t>(shape_.heads),
                 d = static_cast<size_t>(shape_.head_dim);
    for (size_t h = 0; h < heads; ++h)
      for (size_t row = 0; row < static_cast<size_t>(queries_->n()); ++row) {
        const float* from = out.data() + (row * heads + h) * d;
        results_.out.insert(results_.out.end(), from, from + d);
      }
  }

  Dump& dump_;
  DecodeQueries* queries_;
  const RankPlan& plan_;
  ThreadPool& pool_;
  KvShape shape_;
  std::unique_ptr<RankedPrefix> prefix_;
  Results results_;
};

Json ledger(const Spec& spec, const Dump& dump, const std::string& origin, const Bytes& bytes,
            const Results& results) {
  const uint64_t reference = uint64_t{4} * static_cast<uint64_t>(dump.n_layers()) *
                             static_cast<uint64_t>(dump.tokens()) *
                             static_cast<uint64_t>(dump.kv_heads() * dump.head_dim());
  return {{"method", spec.text},
          {"basis", origin},
          {"model_layers", dump.model_layers()},
          {"tokens", dump.tokens()},
          {"kv_heads", dump.kv_heads()},
          {"head_dim", dump.head_dim()},
          {"neighbours", results.neighbours},
          {"reference_bytes", reference},
          {"payload_bytes", bytes.payload},
          {"metadata_bytes", bytes.metadata},
          {"shared_bytes", bytes.shared},
          {"allocated_bytes", bytes.allocated},
          {"factor", static_cast<double>(reference) / static_cast<double>(bytes.stored())},
          {"layers", results.layers}};
}

void write(const std::string& folder, const Dump& dump, const DecodeQueries* queries,
           const Results& results, const std::string& ledger_text) {
  const auto shape = [&](std::vector<int64_t> axes) {
    if (dump.has_layer_axis()) axes.insert(axes.begin(), dump.n_layers());
    return axes;
  };
  const int64_t g = dump.kv_heads(), d = dump.head_dim(), t = dump.tokens();
  Staged out(folder);
  out.array("ranks.npy", NpyType::int32, shape({t}), results.ranks.data());
  out.array("anchor_index.npy", NpyType::int32, shape({results.coded, results.neighbours}),
            results.anchor_index.data());
  out.array("coefficients.npy", NpyType::float32, {std::ssize(results.coefficients)},
            results.coefficients.data());
  out.array("k_out.npy", NpyType::float32, shape({t, g, d}), results.k.data());
  out.array("v_out.npy", NpyType::float32, shape({t, g, d}), results.v.data());
  if (queries != nullptr)
    out.array("out.npy", NpyType::float32, shape({queries->heads(), queries->n(), d}),
              results.out.data());
  out.text("ledger.json", ledger_text);
  out.commit();
}

}  // namespace

Json apply_ranks(const Spec& spec, const RankFolders& folders, ThreadPool& pool) {
  const RankPlan plan = *spec.ranking();
  Needs needs;
  needs.window_queries = plan.window_queries();
  Dump dump(folders.in, needs);
  dump.require_rope();
  std::optional<DecodeQueries> queries;
  if (fs::exists(fs::path(folders.in) / "q_out.npy")) queries.emplace(dump, "q_out.npy");
  RankBasis basis =
      folders.basis.empty() ? basis_arrays(dump, plan) : basis_file(folders.basis, dump, plan);
  DecodeQueries* asked = queries ? &*queries : nullptr;
  Work work(dump, asked, plan, std::move(basis), pool);
  for (int i = 0; i < dump.n_layers(); ++i) work.layer(i);
  const Results results = work.take();
  const Json book = ledger(spec, dump, folders.basis.empty() ? "arrays" : folders.basis,
                           work.prefix().bytes(), results);
  write(folders.out, dump, asked, results, book.dump(2) + "\n");
  return book;
}

}  // namespace kvist
