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

namespace {

LayerCode one_head(const LayerCode& layer, const ReadShape& shape, size_t head) {
  const size_t d = static_cast<size_t>(shape.head_dim);
  const size_t group = static_cast<size_t>(shape.heads / shape.kv_heads);
  return {.u_k = {layer.u_k[head]},
          .u_v = {layer.u_v[head]},
          .mu_k = layer.mu_k + head * d,
          .sigma_k = layer.sigma_k + head * d,
          .mu_v = layer.mu_v + head * d,
          .sigma_v = layer.sigma_v + head * d,
          .m2q = layer.m2q == nullptr ? nullptr : layer.m2q + head * group * d};
}

}  // namespace

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
    for (size_t head = 0; head < kv_heads; ++head) heads_.push_back(one_head(code, shape, head));
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

void require_finite(const PlainPrefix& plain, int layer, ThreadPool& pool) {
  const int d = plain.shape().head_dim;
  std::vector<int64_t> stray(static_cast<size_t>(2 * plain.shape().kv_heads));
  pool.parallel_for(static_cast<int64_t>(stray.size()), [&](int64_t i) {
    stray[static_cast<size_t>(i)] =
        first_stray(plain.run(layer, static_cast<int>(i / 2)), i % 2 == 0);
  });
  for (size_t i = 0; i < stray.size(); ++i) {
    if (stray[i] < 0) continue;
    const int head = static_cast<int>(i / 2), at = static_cast<int>(stray[i] / d);
    std::vector<float> row(static_cast<size_t>(d));
    const kernels::KvRun& run = plain.run(layer, head);
    i % 2 == 0 ? kernels::load_keys(run, at, at + 1, row.data())
               : kernels::load_values(run, at, at + 1, row.data());
    throw Error(ErrorKind::corrupt,
                str("layer ", layer, ", head ", head, ", position ",
                    plain.kept(layer, head)[static_cast<size_t>(at)], ": the ",
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

CodedPrefix::CodedPrefix(std::unique_ptr<PlainPrefix> plain,
                         std::shared_ptr<const CodedModel> model, const ReadPlan& plan)
    : plain_(std::move(plain)),
      model_(std::move(model)),
      plan_(plan),
      layers_(static_cast<size_t>(plain_->n_layers())) {
  check_fits(shape(), n_layers(), *model_, plan);
  for (int layer = 0; layer < n_layers(); ++layer)
    plans_.push_back(at_layer(plan, layer, n_layers()));
}

CodedPrefix::CodedPrefix(const KvShape& shape, std::vector<DenseLayer> layers, int n_tokens,
                         std::shared_ptr<const CodedModel> model, const ReadPlan& plan)
    : CodedPrefix(std::make_unique<PlainPrefix>(shape, std::move(layers), n_tokens),
                  std::move(model), plan) {}

// Stores for the tokens of a plain layer, empty.
CodedPrefix::Layer CodedPrefix::make_layer(int layer) const {
  Layer made;
  const RaggedLayer* ragged = plain_->ragged(layer);
  if (ragged == nullptr) {
    made.coded.emplace_back(shape(), model_->layer(layer), plan_);
  } else {
    KvShape one = shape();
    one.kv_heads = 1, one.heads = shape().group();
    for (int head = 0; head < shape().kv_heads; ++head) {
      made.coded.emplace_back(one, model_->head(layer, head), plan_);
      const auto positions = ragged->positions(head);
      made.positions.emplace_back(positions.size());
      std::copy(positions.begin(), positions.end(), made.positions.back().begin());
    }
  }
  for (size_t i = 0; i < made.coded.size(); ++i) {
    const int n = plain_->run(layer, static_cast<int>(i)).n_tokens;  // of a dense layer any head's
    made.coded[i].expect(n);
    made.coded[i].reserve(n);
    made.coded[i].resize(n);
  }
  return made;
}

void CodedPrefix::encode(int layer, ThreadPool& pool) {
  if (is_protected(plan_, layer, n_layers())) return;
  KVIST_ASSERT(!is_coded(layer));
  Layer made = make_layer(layer);
  const bool apart = made.coded.size() > 1;  // heads are layers of their own
  struct Block {
    int head, begin;
  };
  std::vector<Block> blocks;
  for (int head = 0; head < shape().kv_heads; ++head)
    for (int at = 0; at < plain_->run(layer, head).n_tokens; at += kernels::kBlock)
      blocks.push_back({head, at});
  const size_t size = static_cast<size_t>(shape().head_dim * kernels::kBlock);
  std::atomic<size_t> next{0};
  pool.run([&](Worker) {
    Buffer<float> k(size), v(size), scratch(made.coded.front().block_scratch_floats());
    for (size_t i = next++; i < blocks.size(); i = next++) {
      const auto [head, begin] = blocks[i];
      const kernels::KvRun& run = plain_->run(layer, head);
      const int end = std::min(run.n_tokens, begin + kernels::kBlock);
      kernels::load_keys(run, begin, end, k.data());
      kernels::load_values(run, begin, end, v.data());
      CodedLayer& to = made.coded[apart ? static_cast<size_t>(head) : 0];
      to.write_block(apart ? 0 : head, begin, end - begin, k.data(), v.data(), scratch.data());
    }
  });
  for (CodedLayer& coded : made.coded) coded.freeze();
  layers_[static_cast<size_t>(layer)] = std::move(made);
  plain_->release(layer);
}

int CodedPrefix::longest_head() const {
  int longest = plain_->longest_head();
  for (const Layer& layer : layers_)
    for (const CodedLayer& coded : layer.coded) longest = std::max(longest, coded.size());
  return longest;
}

Bytes CodedPrefix::bytes(int layer) const {
  if (!is_coded(layer)) return plain_->bytes(layer);
  Bytes bytes;
  for (const CodedLayer& coded : coded(layer)) bytes += coded.bytes();
  for (const auto& positions : layers_[static_cast<size_t>(layer)].positions) {
    bytes.metadata += positions.size_bytes() + sizeof(int32_t);  // and how many they are
    bytes.allocated += positions.allocated_bytes();
  }
  return bytes;
}

void CodedPrefix::add_to(Digest& digest) const {
  plain_->add_to(digest);
  for (const Layer& layer : layers_) {
    for (const CodedLayer& coded : layer.coded) coded.add_to(digest);
    for (const auto& positions : layer.positions) digest.add(positions);
  }
}

void CodedPrefix::reserve(AttendWorkspace& workspace, int n_rows, int n_tokens,
                          int n_workers) const {
  // Workspaces of plain layers are for the longest of them.
  if (std::any_of(layers_.begin(), layers_.end(), [](const Layer& l) { return l.coded.empty(); }))
    PrefixCache::reserve(workspace, n_rows, n_tokens, n_workers);
  workspace.read().reserve(shape(), longest_head() + n_tokens, n_workers);
}

std::vector<SuffixLayer> CodedPrefix::new_suffix() const {
  std::vector<SuffixLayer> made;
  for (int layer = 0; layer < n_layers(); ++layer) {
    if (!is_coded(layer)) {
      made.emplace_back(DenseLayer(shape()));
      continue;
    }
    int shortest = next_position();  // behind it lie a suffix's sinks, if any
    for (const CodedLayer& coded : coded(layer)) shortest = std::min(shortest, coded.size());
    made.emplace_back(CodedLayer(shape(), model_->layer(layer), plan_, shortest));
  }
  return made;
}

void CodedPrefix::attend(const AttendCall& call, AttendWorkspace& workspace,
                         Worker worker) const noexcept {
  if (!is_coded(call.layer)) return plain_->attend(call, workspace, worker);
  read_coded(coded(call.layer), shape(), model_->layer(call.layer),
             plans_[static_cast<size_t>(call.layer)], call, workspace.read(), worker);
}

std::vector<int32_t> CodedPrefix::kept(int layer, int head) const {
  if (!is_coded(layer)) return plain_->kept(layer, head);
  const auto& positions = layers_[static_cast<size_t>(layer)].positions;
  if (!positions.empty()) {
    const auto& own = positions[static_cast<size_t>(head)];
    return {own.begin(), own.end()};
  }
  std::vector<int32_t> all(static_cast<size_t>(next_position()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

void CodedPrefix::reconstruct(int layer, int head, std::vector<float>* k,
                              std::vector<float>* v) const {
  if (!is_coded(layer)) return plain_->reconstruct(layer, head, k, v);
  const auto all = coded(layer);
  if (all.size() == 1) return all.front().reconstruct(head, k, v);
  all[static_cast<size_t>(head)].reconstruct(0, k, v);
}

}  // namespace kvist
