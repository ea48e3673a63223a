// SPDX-License-Identifier: MIT
// Writes small GGUF files: random models of each architecture with a real vocabulary, damaged ones,
// and widened copies.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kvist::testing {

// A GGUF file being put together, key by key; nothing is checked, so that wrong files can be
// written as well.
class GgufBuilder {
 public:
  struct Tensor {
    std::string name;
    std::vector<int64_t> ne;  // innermost first
    uint32_t type = 0;
    std::vector<uint8_t> data;
  };

  void set_u32(const std::string& key, uint32_t value);
  void set_f32(const std::string& key, float value);
  void set_bool(const std::string& key, bool value);
  void set_text(const std::string& key, std::string_view value);
  void set_texts(const std::string& key, const std::vector<std::string>& values);
  void set_i32s(const std::string& key, const std::vector<int32_t>& values);
  void set_raw(const std::string& key, std::string bytes) {
    values_[key] = std::move(bytes);
  }  // type and value
  void remove(const std::string& key) { values_.erase(key); }
  // Stores `values` in `type`; ne innermost first.
  void set_tensor(const std::string& name, const std::vector<int64_t>& ne, ggml_type type,
                  const std::vector<float>& values);
  void remove_tensor(const std::string& name);
  Tensor* tensor(const std::string& name);  // null where absent
  const std::vector<Tensor>& tensors() const { return tensors_; }

  uint32_t version = 3;
  std::string bytes() const;
  void write(const std::string& path) const;

 private:
  std::map<std::string, std::string> values_;  // the type and the value, as the file has them
  std::vector<Tensor> tensors_;
};

struct TinyModel {
  std::string architecture = "llama";
  int n_layers = 2, heads = 4, kv_heads = 2, head_dim = 64, width = 128, ffn_width = 160,
      context = 512;
  ggml_type weights = GGML_TYPE_F32;
  bool tied = true;
  bool rope_freqs = false;        // llama only
  std::string rope_scaling = "";  // "", linear, yarn
  float rope_factor = 4;
  uint64_t seed = 1;
};

// The vocabulary is byte-level BPE with one token per byte, a few merges, and <|im_start|> and
// <|im_end|>.
constexpr int kTinyVocab = 320;
GgufBuilder tiny_model(const TinyModel& shape);

// Rewrites a GGUF file with every tensor as f32; keys are kept as they are.
void dequantize_gguf(const std::string& from, const std::string& to);

}  // namespace kvist::testing
