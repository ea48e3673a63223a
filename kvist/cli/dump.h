// SPDX-License-Identifier: MIT
// A folder of plain arrays: keys, values and queries that a researcher took from some model, as
// `kvist apply` reads them.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kvist/core/buffer.h"
#include "kvist/core/npy.h"
#include "kvist/methods/method.h"

namespace kvist {

// Throws corrupt: "FILE: found FOUND; expected EXPECTED".
[[noreturn]] void refuse_array(const std::string& file, const std::string& found,
                               const std::string& expected);
// Refuses layer `layer` of `file`, data [n][rows][columns], at the first number that is not finite.
void require_finite_layer(const NpyFile& file, int layer, const char* axes,
                          const Buffer<float>& data, int64_t rows, int64_t columns);

// k.npy, v.npy [layers, tokens, kv_heads, head_dim], q.npy [layers, rows, heads, head_dim],
// float32; the layer axis may be absent in all of them. k_pre.npy, in place of k.npy: the keys
// before RoPE, which are turned as meta.json says. q_pre.npy, in place of q.npy where a method asks
// for it: the queries before RoPE. q_pos.npy int32 [rows] says which positions the rows of q belong
// to, by default the last ones. meta.json, optional: {"layers": [model layer of each array layer],
// "n_layers": 30, "rope": {"theta": 10000 or "inv_freq": [radians per position], "dims": head_dim,
// "pairs": "half", "attention_factor": 1}}.
class Dump {
 public:
  // Checks everything but the numbers; queries are opened only if needed. Throws naming file, found
  // and expected.
  Dump(const std::string& folder, const Needs& needs);

  const std::string& folder() const { return folder_; }
  bool has_layer_axis() const { return has_layer_axis_; }
  int n_layers() const { return static_cast<int>(model_layers_.size()); }  // in the arrays
  int n_model_layers() const { return n_model_layers_; }
  const std::vector<int>& model_layers() const { return model_layers_; }
  int tokens() const { return tokens_; }
  int kv_heads() const { return kv_heads_; }
  int head_dim() const { return head_dim_; }
  // Throws corrupt where meta.json says nothing of the rotation.
  void require_rope() const;
  const Rope& rope() const { return *rope_; }  // after require_rope()

  // One layer in memory. Throws naming file and place where a number is not finite and
  // `check_finite` is set.
  struct Layer {
    Buffer<float> k, v;  // [tokens][kv_heads][head_dim]
    Buffer<float> q;     // [window][heads][head_dim] of the last positions, or empty; or q_pre
    std::unique_ptr<HeadRows> keys, values;
    LayerInput input;
  };
  Layer load(int layer, bool check_finite, ThreadPool& pool);

 private:
  void open_queries(const std::string& folder, const char* name);
  void read_meta(const std::string& folder, int64_t array_layers);
  void read_rope(const std::string& path, const nlohmann::json& rope);

  std::string folder_;
  std::unique_ptr<NpyFile> k_, v_, q_;
  bool has_layer_axis_ = false;
  int tokens_ = 0, kv_heads_ = 0, head_dim_ = 0, heads_ = 0;
  int window_ = 0;             // q rows that are used
  std::vector<int64_t> rows_;  // [window_] of q, for the last positions in ascending order
  int64_t q_rows_ = 0;         // rows of q a layer
  std::vector<int> model_layers_;
  int n_model_layers_ = 0;
  bool pre_rope_ = false;    // q_ is q_pre.npy
  bool turns_keys_ = false;  // k_ is k_pre.npy
  std::optional<Rope> rope_;
};

}  // namespace kvist
