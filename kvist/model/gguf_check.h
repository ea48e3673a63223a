// SPDX-License-Identifier: MIT
// Turns the keys and tensors of a GGUF file into the sizes of a graph, refusing whatever the graph
// would not run exactly.
#pragma once

#include <string>
#include <vector>

#include "kvist/model/arch.h"
#include "kvist/model/gguf_file.h"
#include "kvist/model/model.h"

namespace kvist {

// What ggml's rope is given.
struct RopeParams {
  int dims = 0;              // leading channels that rotate
  int original_context = 0;  // tokens before any scaling
  float theta = 10000;
  float freq_scale = 1;  // 1 / factor
  float ext_factor = 0;  // 1: yarn
  float attn_factor = 1;
  float beta_fast = 32, beta_slow = 1;
  bool freq_factors = false;  // rope_freqs.weight applies
};

// The tensors of one layer; bias and norm entries are null where the file has none.
struct LayerTensors {
  const GgufTensor *attn_norm, *q, *k, *v, *o, *q_bias, *k_bias, *v_bias, *q_norm, *k_norm;
  const GgufTensor *ffn_norm, *gate, *up, *down;
};

// A checked model: every tensor is there, has its shape, and none is left over.
struct CheckedModel {
  const Arch* arch = nullptr;
  int n_layers = 0, heads = 0, kv_heads = 0, head_dim = 0, width = 0, ffn_width = 0, vocab = 0;
  int context = 0;  // tokens that can be addressed, scaling included
  float norm_eps = 0;
  float attention_scale = 0;  // of q . k before softmax
  RopeParams rope;
  RopeInfo rope_info;
  std::string name;
  std::vector<LayerTensors> layers;
  const GgufTensor *embed = nullptr, *output_norm = nullptr, *head = nullptr, *rope_freqs = nullptr;
};

// Throws Error naming the file, the key or tensor and the value found. rope_scaling: as
// ModelOptions says.
CheckedModel check_model(const GgufFile& file, const std::string& rope_scaling);

// The part that libllama's vocabulary needs.
void check_vocabulary(const GgufFile& file);

}  // namespace kvist
