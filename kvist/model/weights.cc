// SPDX-License-Identifier: MIT
// The weights of a model in the forms a graph multiplies with: mapped, packed for single rows,
// widened for batches.
#include "kvist/model/weights.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "kvist/core/error.h"
#include "kvist/model/widen.h"

namespace kvist {
namespace {

// Bytes the system can still give away; 0 where it does not say.
uint64_t available_memory() {
  std::ifstream in("/proc/meminfo");
  std::string key, unit;
  uint64_t value = 0;
  while (in >> key >> value) {
    std::getline(in, unit);
    if (key == "MemAvailable:") return value * 1024;
  }
  return 0;
}

// Up to this many rows a product is bound by reading the weights, and the packed form, the
// smallest, is the fastest.
constexpr int kPackedRows = 16;
// VDPBF16PS on 512 bits: two a cycle on AMD (Zen 4 and 5), one in two cycles on Intel, where f32
// products are 1.5 times faster than bf16 ones (151 against 106 GFLOP/s on two cores at 512 rows).
bool bf16_dots_pay(const CpuBackend& cpu) {
#if defined(__x86_64__) && defined(__GNUC__)
  if (__builtin_cpu_is("intel")) return false;
#endif
  return cpu.has_feature("AVX512_BF16");
}

// Rounding f32 and f16 weights to bf16 would lose what the user chose to keep.
bool stays_exact_enough(ggml_type type) { return type != GGML_TYPE_F32 && type != GGML_TYPE_F16; }

// From this many rows on, a product pays for widening its matrix first.
constexpr int kScratchRows = 32;

}  // namespace

Weights::Weights(const GgufFile& file, const CheckedModel& model, const CpuBackend& cpu,
                 const ModelOptions& options)
    : file_(file), model_(model), cpu_(cpu), log_(options.log), exact_(options.exact_products) {
  const size_t n_headers = 64 + 40 * static_cast<size_t>(model.n_layers);
  headers_ = header_context(n_headers);
  mapped_.reset(
      ggml_backend_cpu_buffer_from_ptr(const_cast<uint8_t*>(file.data()), file.size_bytes()));
  ggml_backend_buffer_set_usage(mapped_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  for (const GgufTensor& tensor : file.tensors()) bytes_.mapped += tensor.size_bytes;
  embed_ = map(model.embed);
  output_norm_ = joined_f32({model.output_norm}, {1}, model.width);
  if (model.rope_freqs != nullptr)
    rope_freqs_ = joined_f32({model.rope_freqs}, {1}, model.rope_freqs->ne[0]);
  for (const LayerTensors& tensors : model.layers) load_layer(tensors);
  head_ = matrix({model.head});
  decide(options.batch_weights);
  pack_all();
}

void Weights::load_layer(const LayerTensors& t) {
  LayerWeights w;
  w.qkv = matrix({t.q, t.k, t.v});
  w.out = matrix({t.o});
  w.gate_up = matrix({t.gate, t.up});
  w.down = matrix({t.down});
  w.attn_norm = joined_f32({t.attn_norm}, {1}, model_.width);
  w.ffn_norm = joined_f32({t.ffn_norm}, {1}, model_.width);
  const int biases = (t.q_bias != nullptr) + (t.k_bias != nullptr) + (t.v_bias != nullptr);
  if (biases == 1 || biases == 2) {
    throw Error(ErrorKind::unsupported,
                str(file_.path(), ": only ", biases,
                    " of attn_q.bias, attn_k.bias and attn_v.bias are there"));
  }
  if (biases == 3) w.qkv_bias = joined_f32({t.q_bias, t.k_bias, t.v_bias}, {1, 1, 1}, w.qkv.rows);
  if (t.q_norm != nullptr) {
    w.qk_norm = joined_f32({t.q_norm, t.k_norm}, {model_.heads, model_.kv_heads}, model_.head_dim);
  }
  layers_.push_back(std::move(w));
}

ggml_tensor* Weights::map(const GgufTensor* tensor) {
  ggml_tensor* t = ggml_new_tensor_2d(headers_.get(), tensor->type, tensor->ne[0], tensor->ne[1]);
  ggml_set_name(t, tensor->name.c_str());
  ggml_backend_tensor_alloc(mapped_.get(), t, const_cast<uint8_t*>(file_.data()) + tensor->offset);
  return t;
}

Matrix Weights::matrix(std::vector<const GgufTensor*> parts) {
  Matrix m;
  m.columns = parts[0]->ne[0];
  for (const GgufTensor* part : parts) {
    m.parts.push_back(part == model_.embed ? embed_ : map(part));
    m.rows += part->ne[1];
  }
  return m;
}

// The parts one after another as f32, part i repeated times[i] times; [columns, the rest].
ggml_tensor* Weights::joined_f32(const std::vector<const GgufTensor*>& parts,
                                 const std::vector<int>& times, int64_t columns) {
  std::vector<float> values;
  for (size_t i = 0; i < parts.size(); ++i) {
    std::vector<float> one(static_cast<size_t>(parts[i]->ne[0]));
    to_f32(parts[i]->type, file_.data() + parts[i]->offset, parts[i]->ne[0], one.data());
    for (int k = 0; k < times[i]; ++k) values.insert(values.end(), one.begin(), one.end());
  }
  ggml_tensor* t = ggml_new_tensor_2d(headers_.get(), GGML_TYPE_F32, columns,
                                      static_cast<int64_t>(values.size()) / columns);
  owned_.emplace_back(ggml_backend_buft_alloc_buffer(cpu_.buffer_type(), ggml_nbytes(t)));
  if (!owned_.back())
    throw Error(ErrorKind::exhausted, str("no memory for ", ggml_nbytes(t), " bytes of norms"));
  ggml_backend_tensor_alloc(owned_.back().get(), t,
                            ggml_backend_buffer_get_base(owned_.back().get()));
  std::memcpy(t->data, values.data(), ggml_nbytes(t));
  return t;
}

std::vector<Matrix*> Weights::all_matrices() {
  std::vector<Matrix*> out;
  for (LayerWeights& w : layers_) out.insert(out.end(), {&w.qkv, &w.out, &w.gate_up, &w.down});
  out.push_back(&head_);
  return out;
}

// Whether a wide form of the matrix is faster than ggml's own product in batches.
bool Weights::pays(const Matrix& matrix) const {
  return std::any_of(matrix.parts.begin(), matrix.parts.end(), [&](const ggml_tensor* part) {
    return tiles_ ? stays_exact_enough(part->type) : widening_pays(part->type);
  });
}

void Weights::decide(BatchWeights wanted) {
  wide_type_ = tiles_ || bf16_dots_pay(cpu_) ? GGML_TYPE_BF16 : GGML_TYPE_F32;
  forced_ = wanted != BatchWeights::automatic;
  batch_ = wanted;
  if (forced_) return;
  uint64_t copy_bytes = 0;
  for (const Matrix* m : all_matrices()) {
    if (pays(*m))
      copy_bytes += static_cast<uint64_t>(m->rows * m->columns) * ggml_type_size(wide_type_);
  }
  batch_ = copy_bytes == 0                       ? BatchWeights::native
           : available_memory() > 4 * copy_bytes ? BatchWeights::copy
                                                 : BatchWeights::scratch;
}

// Packed forms are copies: they are made where memory allows twice their size.
void Weights::pack_all() {
  uint64_t wanted = 0;
  for (const Matrix* m : all_matrices()) {
    for (const ggml_tensor* part : m->parts) wanted += ggml_nbytes(part);
  }
  const uint64_t available = available_memory();
  if (available != 0 && available < 2 * wanted) {
    if (log_)
      log_(str("weights stay as they are in the file: packing takes ", wanted >> 20, " MiB, ",
               available >> 20, " are free"));
    return;
  }
  size_t packed = 0;
  for (Matrix* m : all_matrices()) packed += pack(*m) ? 1 : 0;
  if (packed > 0 && log_)
    log_(str("packed ", packed, " matrices for decoding: ", bytes_.repacked >> 20, " MiB"));
}

bool Weights::pack(Matrix& m) {
  const ggml_type type = m.parts[0]->type;
  const bool alike = std::all_of(m.parts.begin(), m.parts.end(),
                                 [&](const ggml_tensor* p) { return p->type == type; });
  if (alike) {
    if (ggml_tensor* t = pack_tensors(m.parts)) {
      m.packed = {t};
      m.packed_batches = cpu_.packed_batches_run(ggml_backend_buffer_get_type(t->buffer), type);
      return true;
    }
  }
  bool any = false;
  std::vector<ggml_tensor*> packed;
  for (ggml_tensor* part : m.parts) {
    ggml_tensor* t = m.parts.size() > 1 ? pack_tensors({part}) : nullptr;
    any |= t != nullptr;
    packed.push_back(t != nullptr ? t : part);
  }
  if (any) m.packed = std::move(packed);
  return any;
}

// The parts, of one type, stacked and packed; null where no buffer type packs them.
ggml_tensor* Weights::pack_tensors(const std::vector<ggml_tensor*>& parts) {
  const ggml_type type = parts[0]->type;
  const int64_t columns = parts[0]->ne[0];
  int64_t rows = 0;
  for (const ggml_tensor* part : parts) rows += part->ne[1];
  ggml_backend_buffer_type_t target = cpu_.packed_type(type, columns, rows);
  if (target == nullptr) return nullptr;
  ggml_tensor* t = ggml_new_tensor_2d(headers_.get(), type, columns, rows);
  BackendBufferPtr buffer(
      ggml_backend_buft_alloc_buffer(target, ggml_backend_buft_get_alloc_size(target, t)));
  if (!buffer) return nullptr;
  ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  ggml_backend_tensor_alloc(buffer.get(), t, ggml_backend_buffer_get_base(buffer.get()));
  std::vector<char> stacked;
  const void* source = parts[0]->data;
  if (parts.size() > 1) {
    for (const ggml_tensor* part : parts) {
      const char* bytes = static_cast<const char*>(part->data);
      stacked.insert(stacked.end(), bytes, bytes + ggml_nbytes(part));
    }
    source = stacked.data();
  }
  ggml_backend_tensor_set(t, source, 0, ggml_nbytes(t));
  bytes_.repacked += ggml_backend_buffer_get_size(buffer.get());
  owned_.push_back(std::move(buffer));
  return t;
}

bool Weights::rounds_by_32(const Matrix& matrix) {
  return std::all_of(matrix.parts.begin(), matrix.parts.end(), [](const ggml_tensor* part) {
    return part->type == GGML_TYPE_Q4_0 || part->type == GGML_TYPE_Q4_1 ||
           part->type == GGML_TYPE_Q8_0;
  });
}

WeightForm Weights::form(Matrix& matrix, int rows) {
  const bool packed = !matrix.packed.empty();
  if (rows == 1 && packed && (exact_ || &matrix == &head_) && rounds_by_32(matrix)) {
    return WeightForm::packed_twice;
  }
  if (rows == 1) return packed ? WeightForm::packed : WeightForm::mapped;
  const WeightForm own = packed && matrix.packed_batches ? WeightForm::packed : WeightForm::mapped;
  if (batch_ == BatchWeights::native || !(forced_ || pays(matrix))) return own;
  if (batch_ == BatchWeights::scratch) return rows >= kScratchRows ? WeightForm::scratch : own;
  if (tiles_) {
    if (matrix.tiles == nullptr) make_tiles(matrix);
    return WeightForm::tiles;
  }
  if (own == WeightForm::packed && rows <= kPackedRows) return own;
  if (matrix.widened == nullptr) widen(matrix);
  return WeightForm::widened;
}

void Weights::widen(Matrix& m) {
  m.widened = ggml_new_tensor_2d(headers_.get(), wide_type_, m.columns, m.rows);
  owned_.emplace_back(ggml_backend_buft_alloc_buffer(cpu_.buffer_type(), ggml_nbytes(m.widened)));
  if (!owned_.back()) {
    throw Error(ErrorKind::exhausted,
                str("no memory for a wide copy of ", ggml_nbytes(m.widened),
                    " bytes; batch weights \"scratch\" or \"native\" need none"));
  }
  ggml_backend_tensor_alloc(owned_.back().get(), m.widened,
                            ggml_backend_buffer_get_base(owned_.back().get()));
  widen_to(m, m.widened->data);
  bytes_.widened += ggml_nbytes(m.widened);
}

void Weights::make_tiles(Matrix& m) {
  Buffer<uint16_t> plain(static_cast<size_t>(m.rows * m.columns));
  widen_to(m, plain.data());
  m.tiles = std::make_unique<PackedBf16>(pack_bf16(plain.data(), m.columns, m.rows));
  bytes_.widened += m.tiles->data.allocated_bytes();
}

// All parts, one under the other, in the wide type.
void Weights::widen_to(const Matrix& m, void* to) const {
  const int count = cpu_.n_threads();
  const auto share = [&](int index) {
    char* at = static_cast<char*>(to);
    for (const ggml_tensor* part : m.parts) {
      const int64_t n = part->ne[1];
      widen_rows(part->type, part->data, m.columns, n * index / count, n * (index + 1) / count,
                 wide_type_, at);
      at += ggml_row_size(wide_type_, m.columns) * static_cast<size_t>(n);
    }
  };
  std::vector<std::jthread> helpers;
  for (int i = 1; i < count; ++i) helpers.emplace_back(share, i);
  share(0);
}

}  // namespace kvist
