// SPDX-License-Identifier: MIT
// Layers of a ranked prefix, and the reader's workspace.
#include "kvist/cache/ranked_prefix.h"

#include <algorithm>
#include <numeric>

#include "kvist/cache/ranked_reader.h"
#include "kvist/core/error.h"

namespace kvist {

RankedModel::RankedModel(RankBasis basis) : basis_(std::move(basis)) {
  for (const RankBasisLayer& layer : basis_.layers)
    sigmas_.push_back(row_sigmas(layer.eigenvalues));
  const ReadShape& of = basis_.source.shape;
  for (const RankBasisLayer& layer : basis_.layers)
    tiles_.push_back(
        key_tiles_of(layer, {.kv_heads = of.kv_heads, .heads = of.heads, .head_dim = of.head_dim}));
}

uint64_t RankedModel::bytes(int layer) const {
  const RankBasisLayer& of = this->layer(layer);
  return (of.rows.size() + of.eigenvalues.size()) * sizeof(float) +
         tiles_[static_cast<size_t>(layer)].size_bytes();
}

void check_fits(const KvShape& shape, int n_layers, const RankedModel& model) {
  const ReadShape& of = model.basis().source.shape;
  const ReadShape mine{n_layers, shape.kv_heads, shape.heads, shape.head_dim};
  if (of != mine)
    throw Error(ErrorKind::invalid_argument,
                str("the basis is of ", of.layers, " layers, ", of.kv_heads, " KV heads, ",
                    of.heads, " heads of ", of.head_dim, ", the cache has ", mine.layers, ", ",
                    mine.kv_heads, ", ", mine.heads, " of ", mine.head_dim));
}

RankedPrefix::RankedPrefix(const KvShape& shape, int n_tokens,
                           std::shared_ptr<const RankedModel> model, const Rope& rope,
                           const Storage& storage)
    : shape_(shape),
      n_tokens_(n_tokens),
      model_(std::move(model)),
      rotations_(rope, n_tokens),
      storage_(storage) {
  check(storage.format);
  check_fits(shape, static_cast<int>(model_->basis().layers.size()), *model_);
}

void RankedPrefix::encode(const RankedCode& code, std::span<const kernels::KvRun> runs,
                          ThreadPool& pool) {
  const int index = n_layers();
  KVIST_ASSERT(index < std::ssize(model_->basis().layers) && code.n_tokens == n_tokens_);
  require_codable(code, index, storage_.format, model_->sigmas(index), pool);
  if (tokens_ == nullptr || !tokens_->divides(code))
    tokens_ = std::make_shared<const RankedTokens>(code);
  layers_.push_back({.coded = RankedLayer(shape_, tokens_, runs, code, storage_.format,
                                          model_->sigma(index), pool)});
  RankedView view = this->view(index);
  if (storage_.skip) {
    view.skip = false;
    layers_.back().coded.keep_key_norms(measure_residuals(view, pool));
  }
  if (storage_.read) layers_.back().coded.keep_row_weights(model_->sigma(index));
  sizes_.cover(view);
}

void RankedPrefix::expand(uint64_t most_bytes, ThreadPool& pool) {
  if (storage_.read)
    throw Error(ErrorKind::unsupported,
                "keys cannot be kept expanded where every query chooses how deep it reads them "
                "(read=)");
  for (Layer& layer : layers_) layer.expanded = {};
  for (int i = 0; i < n_layers(); ++i) {
    Layer& layer = layers_[static_cast<size_t>(i)];
    layer.expanded = expand_keys(view(i), most_bytes, pool);
    most_bytes -= layer.expanded.k.size();
  }
}

uint64_t RankedPrefix::expanded_bytes() const {
  uint64_t sum = 0;
  for (const Layer& layer : layers_) sum += layer.expanded.k.allocated_bytes();
  return sum;
}

RankedView RankedPrefix::view(int layer) const {
  const Layer& of = layers_[static_cast<size_t>(layer)];
  return {.layer = &of.coded,
          .basis = &model_->layer(layer),
          .sigma = model_->sigma(layer),
          .rotations = &rotations_,
          .key_tiles = model_->key_tiles(layer),
          .value_scale = model_->basis().value_scale,
          .expanded = of.expanded.n_blocks > 0 ? &of.expanded : nullptr,
          .skip = storage_.skip,
          .read = storage_.read};
}

Bytes RankedPrefix::bytes(int layer) const {
  const Layer& of = layers_[static_cast<size_t>(layer)];
  Bytes bytes = of.coded.bytes();
  const RankedTokens& tokens = of.coded.tokens();
  if (layer == 0 || &this->layer(layer - 1).tokens() != &tokens) bytes += tokens.bytes();
  bytes.shared = model_->bytes(layer);
  if (layer == 0)
    bytes.shared += static_cast<uint64_t>(n_tokens_) *
                    static_cast<uint64_t>(rotations_.n_frequencies()) * 2 * sizeof(float);
  return bytes;
}

void RankedPrefix::add_to(Digest& digest) const {
  for (const Layer& layer : layers_) {
    layer.coded.tokens().add_to(digest);
    layer.coded.add_to(digest);
  }
}

void RankedPrefix::reserve(AttendWorkspace& workspace, int n_rows, int, int n_workers) const {
  workspace.ranked().reserve(sizes_, n_rows, n_workers);
}

void RankedPrefix::attend(const AttendCall& call, AttendWorkspace& workspace,
                          Worker worker) const noexcept {
  const RankedView of = view(call.layer);
  read_ranked(of, call, workspace.ranked(), worker);
}

std::vector<int32_t> RankedPrefix::kept(int, int) const {
  std::vector<int32_t> all(static_cast<size_t>(n_tokens_));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

void RankedPrefix::reconstruct(int layer, int head, std::vector<float>* k,
                               std::vector<float>* v) const {
  reconstruct_ranked(view(layer), head, k, v);
}

}  // namespace kvist
