// SPDX-License-Identifier: MIT
// Encoding of whole layers, and the choice between the coded and the dense reader.
#include "kvist/cache/coded_prefix.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "kvist/cache/suffix.h"
#include "kvist/core/error.h"
#include "kvist/kernels/window.h"

namespace kvist {

CodedModel::CodedModel(ReadCalibration calibration) : calibration_(std::move(calibration)) {
  const ReadShape& shape = calibration_.source.shape;
  const size_t kv_heads = static_cast<size_t>(shape.kv_heads);
  transforms_.reserve(static_cast<size_t>(shape.layers) * (kv_heads + 1));
  for (int l = 0; l < shape.layers; ++l) {
    const ReadCalibration::Layer& from = calibration_.layers[static_cast<size_t>(l)];
    LayerCode code{.mu_k = from.mu_k.data(),
                   .sigma_k = from.sigma_k.data(),
                   .mu_v = from.mu_v.data(),
                   .sigma_v = from.sigma_v.data(),
                   .m2q = from.m2q.empty() ? nullptr : from.m2q.data()};
    for (int head = 0; head < shape.kv_heads; ++head) {
      transforms_.push_back(calibration_.key_transform(l, head));
      code.u_k.push_back(&transforms_.back());
    }
    transforms_.push_back(calibration_.value_transform(l));
    code.u_v.assign(kv_heads, &transforms_.back());
    layers_.push_back(std::move(code));
  }
}

namespace {

constexpr int kPart = 256;  // rows looked at at a time

// The first number of a head's rows that is not finite, or -1.
int64_t first_stray(const kernels::KvRun& run, bool keys) {
  std::vector<float> rows(static_cast<size_t>(kPart * run.head_dim));
  for (int begin = 0; begin < run.n_tokens; begin += kPart) {
    const int end = std::min(run.n_tokens, begin + kPart);
    keys ? kernels::load_keys(run, begin, end, rows.data())
         : kernels::load_values(run, begin, end, rows.data());
    int64_t at = 0;
    if (kernels::find_nonfinite(rows.data(), int64_t{end - begin} * run.head_dim, &at))
      return int64_t{begin} * run.head_dim + at;
  }
  return -1;
}

}  // namespace

void require_finite(const DenseLayer& dense, int layer, ThreadPool& pool) {
  const int d = dense.shape().head_dim;
  std::vector<int64_t> stray(static_cast<size_t>(2 * dense.shape().kv_heads));
  pool.parallel_for(static_cast<int64_t>(stray.size()), [&](int64_t i) {
    stray[static_cast<size_t>(i)] = first_stray(dense.run(static_cast<int>(i / 2)), i % 2 == 0);
  });
  for (size_t i = 0; i < stray.size(); ++i) {
    if (stray[i] < 0) continue;
    const int head = static_cast<int>(i / 2), token = static_cast<int>(stray[i] / d);
    std::vector<float> row(static_cast<size_t>(d));
    const kernels::KvRun run = dense.run(head);
    i % 2 == 0 ? kernels::load_keys(run, token, token + 1, row.data())
               : kernels::load_values(run, token, token + 1, row.data());
    throw Error(ErrorKind::corrupt,
                str("layer ", layer, ", head ", head, ", position ", token, ": the ",
                    i % 2 == 0 ? "key" : "value", " holds ", row[static_cast<size_t>(stray[i] % d)],
                    "; only finite numbers can be coded"));
  }
}

void check_fits(const KvShape& shape, int n_layers, const CodedModel& model, const ReadPlan& plan) {
  check(plan);
  const ReadShape& of = model.calibration().source.shape;
  const ReadShape mine{n_layers, shape.kv_heads, shape.heads, shape.head_dim};
  if (of != mine)
    throw Error(ErrorKind::invalid_argument,
                str("the calibration is of ", of.layers, " layers, ", of.kv_heads, " KV heads, ",
                    of.heads, " heads of ", of.head_dim, ", the cache has ", mine.layers, ", ",
                    mine.kv_heads, ", ", mine.heads, " of ", mine.head_dim));
  for (int l = 0; l < mine.layers && plan.calibrated_keys; ++l)
    if (model.layer(l).m2q == nullptr)
      throw Error(ErrorKind::invalid_argument,
                  "calibrated_keys needs a calibration with the mean squares of queries");
}

CodedPrefix::CodedPrefix(const KvShape& shape, std::vector<DenseLayer> layers, int n_tokens,
                         std::shared_ptr<const CodedModel> model, const ReadPlan& plan)
    : shape_(shape),
      n_tokens_(n_tokens),
      model_(std::move(model)),
      plan_(plan),
      coded_(layers.size()) {
  check_fits(shape, static_cast<int>(layers.size()), *model_, plan);
  for (DenseLayer& layer : layers) {
    KVIST_ASSERT(layer.size() == n_tokens);
    dense_.push_back(std::make_unique<DenseLayer>(std::move(layer)));
    runs_.emplace_back();
    for (int head = 0; head < shape.kv_heads; ++head)
      runs_.back().push_back(dense_.back()->run(head));
  }
}

void CodedPrefix::encode(int layer, ThreadPool& pool) {
  const size_t at = static_cast<size_t>(layer);
  if (is_protected(plan_, layer, n_layers())) return;
  KVIST_ASSERT(dense_[at] != nullptr);
  const DenseLayer& dense = *dense_[at];
  auto coded = std::make_unique<CodedLayer>(shape_, model_->layer(layer), plan_);
  coded->expect(n_tokens_);
  coded->reserve(n_tokens_);
  coded->resize(n_tokens_);
  const int blocks = (n_tokens_ + kernels::kBlock - 1) / kernels::kBlock;
  const size_t size = static_cast<size_t>(shape_.head_dim * kernels::kBlock);
  std::atomic<int> next{0};
  pool.run([&](Worker) {
    Buffer<float> k(size), v(size), scratch(coded->block_scratch_floats());
    for (int i = next++; i < blocks * shape_.kv_heads; i = next++) {
      const int head = i / blocks, begin = i % blocks * kernels::kBlock;
      const int end = std::min(n_tokens_, begin + kernels::kBlock);
      kernels::load_keys(dense.run(head), begin, end, k.data());
      kernels::load_values(dense.run(head), begin, end, v.data());
      coded->write_block(head, begin, end - begin, k.data(), v.data(), scratch.data());
    }
  });
  coded->freeze();
  coded_[at] = std::move(coded);
  runs_[at].clear();
  dense_[at].reset();
}

Bytes CodedPrefix::bytes(int layer) const {
  const size_t at = static_cast<size_t>(layer);
  if (dense_[at]) return dense_[at]->bytes();
  return coded_[at]->bytes();
}

void CodedPrefix::reserve(AttendWorkspace& workspace, int n_rows, int n_tokens,
                          int n_workers) const {
  PrefixCache::reserve(workspace, n_rows, n_tokens, n_workers);
  workspace.read().reserve(shape_, n_tokens_ + n_tokens, n_workers);
}

std::vector<SuffixLayer> CodedPrefix::new_suffix() const {
  std::vector<SuffixLayer> layers;
  for (int layer = 0; layer < n_layers(); ++layer) {
    if (is_coded(layer))
      layers.emplace_back(CodedLayer(shape_, model_->layer(layer), plan_, n_tokens_));
    else
      layers.emplace_back(DenseLayer(shape_));
  }
  return layers;
}

void CodedPrefix::attend(const AttendCall& call, AttendWorkspace& workspace,
                         Worker worker) const noexcept {
  const size_t at = static_cast<size_t>(call.layer);
  if (coded_[at])
    return read_coded(coded_[at].get(), shape_, model_->layer(call.layer), plan_, call,
                      workspace.read(), worker);
  attend_runs(runs_[at], shape_, call, workspace, worker);
}

std::vector<int32_t> CodedPrefix::kept(int, int) const {
  std::vector<int32_t> all(static_cast<size_t>(n_tokens_));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

void CodedPrefix::reconstruct(int layer, int head, std::vector<float>* k,
                              std::vector<float>* v) const {
  const size_t at = static_cast<size_t>(layer);
  if (coded_[at]) return coded_[at]->reconstruct(head, k, v);
  const kernels::KvRun run = dense_[at]->run(head);
  const size_t n = static_cast<size_t>(run.n_tokens) * static_cast<size_t>(run.head_dim);
  k->resize(n);
  v->resize(n);
  kernels::load_keys(run, 0, run.n_tokens, k->data());
  kernels::load_values(run, 0, run.n_tokens, v->data());
}

}  // namespace kvist
