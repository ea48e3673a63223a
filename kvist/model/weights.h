// SPDX-License-Identifier: MIT
// The weights of a model in the forms a graph multiplies with: mapped, packed for single rows,
// widened for batches.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kvist/model/bf16_product.h"
#include "kvist/model/cpu_backend.h"
#include "kvist/model/gguf_check.h"
#include "kvist/model/model.h"

namespace kvist {

// Which form of a matrix a graph uses.
enum class WeightForm {
  mapped,        // as the file has it
  packed,        // repacked
  packed_twice,  // repacked, for one row in two halves (see activation.h)
  scratch,       // widened inside the graph, forgotten after the product
  widened,       // a kept wide copy
  tiles          // a kept bf16 copy in the layout of AMX products
};

// One or more matrices of the file that multiply the same input, stacked along their output rows:
// q, k and v are one, so are gate and up. A stacked form gives one product where the parts would
// give several.
struct Matrix {
  std::vector<ggml_tensor*> parts;  // mapped; [columns, rows of the part]
  std::vector<ggml_tensor*>
      packed;  // empty, or one stacked tensor, or one per part (mapped where it cannot be packed)
  bool packed_batches = false;        // whether `packed` can multiply several rows at once
  ggml_tensor* widened = nullptr;     // bf16 or f32, stacked; null until made
  std::unique_ptr<PackedBf16> tiles;  // bf16, stacked; null until made
  int64_t columns = 0, rows = 0;
};

struct LayerWeights {
  Matrix qkv, out, gate_up, down;
  ggml_tensor* attn_norm = nullptr;  // [width] f32
  ggml_tensor* ffn_norm = nullptr;   // [width] f32
  ggml_tensor* qkv_bias =
      nullptr;  // [(heads + 2 kv_heads) head_dim] f32, null where the model has none
  ggml_tensor* qk_norm =
      nullptr;  // [head_dim, heads + kv_heads] f32, null where the model has none
};

// Owns all weight memory but the mapping, which `file` owns and which outlives this.
class Weights {
 public:
  using Log = std::function<void(const std::string&)>;
  Weights(const GgufFile& file, const CheckedModel& model, const CpuBackend& cpu,
          const ModelOptions& options);

  ggml_tensor* embed() const { return embed_; }
  ggml_tensor* output_norm() const { return output_norm_; }
  ggml_tensor* rope_freqs() const { return rope_freqs_; }
  LayerWeights& layer(int i) { return layers_[static_cast<size_t>(i)]; }
  Matrix& head() { return head_; }

  // The form for a product of `rows` rows, making the widened copies on the first call that wants
  // one.
  WeightForm form(Matrix& matrix, int rows);
  ggml_type wide_type() const { return wide_type_; }  // of scratch and widened
  bool uses_tiles() const { return tiles_; }          // wide products run on AMX tiles
  Model::WeightBytes bytes() const { return bytes_; }

 private:
  ggml_tensor* map(const GgufTensor* tensor);
  Matrix matrix(std::vector<const GgufTensor*> parts);
  ggml_tensor* joined_f32(const std::vector<const GgufTensor*>& parts,
                          const std::vector<int>& times, int64_t columns);
  void load_layer(const LayerTensors& tensors);
  void pack_all();
  bool pack(Matrix& matrix);
  ggml_tensor* pack_tensors(const std::vector<ggml_tensor*>& parts);
  void decide(BatchWeights wanted);
  bool pays(const Matrix& matrix) const;
  // Whether ggml rounds the activations of one-row products to 8 bits in blocks of 32.
  static bool rounds_by_32(const Matrix& matrix);
  void widen(Matrix& matrix);
  void widen_to(const Matrix& matrix, void* to) const;
  void make_tiles(Matrix& matrix);
  std::vector<Matrix*> all_matrices();

  const GgufFile& file_;
  const CheckedModel& model_;
  const CpuBackend& cpu_;
  Log log_;
  bool exact_ = false;
  BatchWeights batch_ = BatchWeights::native;  // never automatic
  bool forced_ =
      false;  // the user asked for scratch or copy: types that need no help are widened too
  ggml_type wide_type_ = GGML_TYPE_BF16;
  bool tiles_ = bf16_product_available();
  ContextPtr headers_;
  BackendBufferPtr mapped_;
  std::vector<BackendBufferPtr> owned_;
  std::vector<LayerWeights> layers_;
  Matrix head_;
  ggml_tensor *embed_ = nullptr, *output_norm_ = nullptr, *rope_freqs_ = nullptr;
  Model::WeightBytes bytes_;
};

}  // namespace kvist
