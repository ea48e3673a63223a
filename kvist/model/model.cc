// SPDX-License-Identifier: MIT
// A GGUF model on ggml: what it is, and one step of it over a batch of rows.
#include "kvist/model/model.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <map>

#include "kvist/core/error.h"
#include "kvist/model/cpu_backend.h"
#include "kvist/model/gguf_check.h"
#include "kvist/model/graph.h"
#include "kvist/model/rope_scaling.h"
#include "kvist/model/weights.h"

namespace kvist {
namespace {

constexpr size_t kKeptGraphs = 6;  // step shapes: decode alone and together, a full chunk, a last
                                   // chunk, with and without logits

std::string weight_types(const GgufFile& file) {
  std::map<std::string, int> counts;
  for (const GgufTensor& t : file.tensors()) ++counts[ggml_type_name(t.type)];
  std::vector<std::pair<int, std::string>> order;
  for (const auto& [type, n] : counts) order.emplace_back(-n, type);
  std::sort(order.begin(), order.end());
  std::string out;
  for (const auto& [n, type] : order) out += str(out.empty() ? "" : ", ", type, " x ", -n);
  return out;
}

std::vector<float> rope_factors(const GgufFile& file, const CheckedModel& m) {
  if (m.rope_freqs == nullptr) return {};
  std::vector<float> factors(static_cast<size_t>(m.rope_freqs->ne[0]));
  const uint8_t* from = file.data() + m.rope_freqs->offset;
  const auto n = static_cast<int64_t>(factors.size());
  if (m.rope_freqs->type == GGML_TYPE_F32) {
    std::memcpy(factors.data(), from, factors.size() * sizeof(float));
  } else {
    ggml_get_type_traits(m.rope_freqs->type)->to_float(from, factors.data(), n);
  }
  return factors;
}

ModelInfo describe(const GgufFile& file, const CheckedModel& m) {
  ModelInfo info;
  info.path = file.path();
  info.name = m.name;
  info.architecture = m.arch->name;
  info.weight_types = weight_types(file);
  info.hash = fmt::format(
      "{:016x}", XXH3_64bits_withSeed(file.data(), std::min(file.header_bytes(), file.size_bytes()),
                                      file.size_bytes()));
  info.file_bytes = file.size_bytes();
  info.n_layers = m.n_layers;
  info.heads = m.heads;
  info.kv_heads = m.kv_heads;
  info.head_dim = m.head_dim;
  info.width = m.width;
  info.ffn_width = m.ffn_width;
  info.vocab = m.vocab;
  info.context = m.context;
  info.logit_scale = m.attention_scale;
  info.rope = m.rope_info;
  const RopeTable table = rope_table(m.rope, rope_factors(file, m));
  info.rope.frequencies = table.frequencies;
  info.rope.magnitude = table.magnitude;
  return info;
}

}  // namespace

struct Model::Impl {
  Impl(const std::string& path, const ModelOptions& options)
      : log(options.log),
        file(path),
        checked(check_model(file, options.rope_scaling)),
        info(describe(file, checked)),
        cpu(options.n_threads),
        weights(file, checked, cpu, options) {}

  // The graph of a shape, from the most recently used ones or new.
  StepGraph& graph(StepShape shape) {
    for (auto it = graphs.begin(); it != graphs.end(); ++it) {
      if ((*it)->shape() != shape) continue;
      graphs.splice(graphs.begin(), graphs, it);
      return *graphs.front();
    }
    while (graphs.size() >= kKeptGraphs) graphs.pop_back();
    const uint64_t before = weights.bytes().widened;
    graphs.push_front(std::make_unique<StepGraph>(checked, weights, cpu, shape));
    const uint64_t after = weights.bytes().widened;
    if (after > before && log)
      log(str("kept ", ggml_type_name(weights.wide_type()), weights.uses_tiles() ? " (AMX)" : "",
              " copies of weights for batches: ", (after - before) >> 20, " MiB"));
    return *graphs.front();
  }

  void check(const RowBatch& rows) const {
    const size_t n = rows.tokens.size();
    if (n == 0 || n > (1u << 20) || rows.positions.size() != n || rows.sequences.size() != n ||
        rows.want_logits.size() != n) {
      throw Error(ErrorKind::invalid_argument,
                  str("a step of ", n, " tokens, ", rows.positions.size(), " positions, ",
                      rows.sequences.size(), " sequences and ", rows.want_logits.size(),
                      " flags, expected 1 to 1048576 of each"));
    }
    for (size_t i = 0; i < n; ++i) {
      if (rows.tokens[i] < 0 || rows.tokens[i] >= checked.vocab) {
        throw Error(ErrorKind::invalid_argument, str("row ", i, ": token ", rows.tokens[i],
                                                     ", expected 0 to ", checked.vocab - 1));
      }
      if (rows.positions[i] < 0 || rows.positions[i] >= checked.context) {
        throw Error(ErrorKind::invalid_argument,
                    str("row ", i, ": position ", rows.positions[i], ", the model's context is ",
                        checked.context, " tokens"));
      }
    }
  }

  Weights::Log log;
  GgufFile file;
  CheckedModel checked;
  ModelInfo info;
  CpuBackend cpu;
  Weights weights;
  std::list<std::unique_ptr<StepGraph>> graphs;  // most recently used first
  std::vector<int32_t> wanted;
};

Model::Model() = default;
Model::~Model() = default;

std::unique_ptr<Model> Model::load(const std::string& path, const ModelOptions& options) {
  std::unique_ptr<Model> model(new Model);
  model->impl_ = std::make_unique<Impl>(path, options);
  return model;
}

const ModelInfo& Model::info() const { return impl_->info; }

void Model::step(const RowBatch& rows, Attention& attention, std::vector<float>* logits) {
  Impl& impl = *impl_;
  impl.check(rows);
  impl.wanted.clear();
  for (size_t i = 0; i < rows.want_logits.size(); ++i) {
    if (rows.want_logits[i] != 0) impl.wanted.push_back(static_cast<int32_t>(i));
  }
  const StepShape shape{static_cast<int>(rows.tokens.size()), static_cast<int>(impl.wanted.size())};
  const float* out = impl.graph(shape).run(rows, impl.wanted, attention);
  if (logits == nullptr) return;
  logits->resize(impl.wanted.size() * static_cast<size_t>(impl.checked.vocab));
  if (out != nullptr) std::copy_n(out, logits->size(), logits->begin());
}

std::vector<float> Model::output_projection(int layer) const {
  const ggml_tensor* w = impl_->weights.layer(layer).out.parts.front();
  const int64_t columns = w->ne[0], rows = w->ne[1];
  std::vector<float> out(static_cast<size_t>(columns * rows));
  if (w->type == GGML_TYPE_F32) {
    std::copy_n(static_cast<const float*>(w->data), out.size(), out.data());
  } else {
    ggml_get_type_traits(w->type)->to_float(w->data, out.data(), columns * rows);
  }
  return out;
}

Model::WeightBytes Model::weight_bytes() const { return impl_->weights.bytes(); }

std::string Model::ggml_version_text() { return str(ggml_version(), " (", ggml_commit(), ")"); }

}  // namespace kvist
