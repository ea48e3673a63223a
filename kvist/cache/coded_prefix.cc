// SPDX-License-Identifier: MIT
// Coding layer by layer, and handing calls to the reader that fits the layer.
#include "kvist/cache/coded_prefix.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "kvist/cache/suffix.h"
#include "kvist/core/error.h"
#include "kvist/kernels/window.h"

namespace kvist {
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

void require_finite(const PlainPrefix& prefix, int layer, ThreadPool& pool) {
  const DenseLayer& dense = *prefix.dense(layer);
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

CodedPrefix::CodedPrefix(std::unique_ptr<PlainPrefix> plain, const ReadPlan& plan,
                         std::shared_ptr<const CalibratedCode> code)
    : plain_(std::move(plain)),
      plan_(plan),
      code_(std::move(code)),
      coded_(static_cast<size_t>(plain_->n_layers())) {
  check(plan_);
  const ReadShape& shape = code_->calibration().source.shape;
  KVIST_ASSERT(shape.layers == n_layers() && shape.kv_heads == this->shape().kv_heads &&
               shape.heads == this->shape().heads && shape.head_dim == this->shape().head_dim);
}

void CodedPrefix::encode(int layer, ThreadPool& pool) {
  if (is_protected(plan_, layer, n_layers())) return;
  const DenseLayer* dense = plain_->dense(layer);
  KVIST_ASSERT(dense != nullptr && !coded(layer));
  const int n = next_position();
  auto made = std::make_unique<CodedLayer>(shape(), code_->layer(layer), plan_);
  made->expect(n);
  made->reserve(n);
  made->resize(n);
  const int blocks = (n + kernels::kBlock - 1) / kernels::kBlock;
  const size_t size = static_cast<size_t>(shape().head_dim * kernels::kBlock);
  std::atomic<int> next{0};
  pool.run([&](Worker) {
    Buffer<float> k(size), v(size), scratch(made->block_scratch_floats());
    for (int i = next++; i < blocks * shape().kv_heads; i = next++) {
      const int head = i / blocks, begin = i % blocks * kernels::kBlock;
      const int end = std::min(n, begin + kernels::kBlock);
      kernels::load_keys(dense->run(head), begin, end, k.data());
      kernels::load_values(dense->run(head), begin, end, v.data());
      made->write_block(head, begin, end - begin, k.data(), v.data(), scratch.data());
    }
  });
  made->freeze();
  coded_[static_cast<size_t>(layer)] = std::move(made);
  plain_->release(layer);
}

Bytes CodedPrefix::bytes(int layer) const {
  if (!coded(layer)) return plain_->bytes(layer);
  Bytes bytes = this->layer(layer).bytes();
  bytes.shared = code_->charged_bytes() / static_cast<uint64_t>(n_layers());
  return bytes;
}

SuffixLayer CodedPrefix::new_suffix(int layer) const {
  if (is_protected(plan_, layer, n_layers())) return PrefixCache::new_suffix(layer);
  return SuffixLayer(CodedLayer(shape(), code_->layer(layer), plan_, next_position()));
}

void CodedPrefix::reserve(AttendWorkspace& workspace, int n_rows, int n_tokens,
                          int n_workers) const {
  if (plan_.protect > 0) PrefixCache::reserve(workspace, n_rows, n_tokens, n_workers);
  workspace.read().reserve(shape(), next_position() + n_tokens, n_workers);
}

void CodedPrefix::attend(const AttendCall& call, AttendWorkspace& workspace,
                         Worker worker) const noexcept {
  if (!coded(call.layer)) return plain_->attend(call, workspace, worker);
  read_coded(coded_[static_cast<size_t>(call.layer)].get(), shape(), code_->layer(call.layer),
             plan_, call, workspace.read(), worker);
}

std::vector<int32_t> CodedPrefix::kept(int, int) const {
  std::vector<int32_t> all(static_cast<size_t>(next_position()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

void CodedPrefix::reconstruct(int layer, int head, std::vector<float>* k,
                              std::vector<float>* v) const {
  coded(layer) ? this->layer(layer).reconstruct(head, k, v)
               : plain_->reconstruct(layer, head, k, v);
}

}  // namespace kvist
