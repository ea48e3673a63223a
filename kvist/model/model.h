// SPDX-License-Identifier: MIT
// A GGUF model on ggml: what it is, and one step of it over a batch of rows.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvist/model/attention.h"

namespace kvist {

struct RopeInfo {
  double theta = 10000;
  int dims = 0;                  // leading channels of a head that rotate
  bool adjacent = true;          // pairs (2f, 2f+1); else (f, f + dims/2)
  std::string scaling = "none";  // none, linear, yarn, llama3
  double factor = 1;             // linear and yarn
  int original_context = 0;      // yarn
  // All of the above and the file's own factors in numbers: pair f turns by position *
  // frequencies[f] radians, and the table of cosines and sines is multiplied by magnitude.
  std::vector<double> frequencies;  // [dims / 2]
  double magnitude = 1;
};

struct ModelInfo {
  std::string path, name, architecture, weight_types;  // weight_types: "q4_1 x 210, f32 x 61"
  std::string hash;  // of the header and the size: identifies the file; 16 hex digits
  uint64_t file_bytes = 0;
  int n_layers = 0, heads = 0, kv_heads = 0, head_dim = 0, width = 0, ffn_width = 0, vocab = 0;
  int context =
      0;  // tokens the model can address: trained context, times the factor of --rope-scaling
  float logit_scale = 0;
  RopeInfo rope;
};

// How batches of many rows multiply by weights whose batched product is slow in ggml.
enum class BatchWeights { native, scratch, copy, automatic };

struct ModelOptions {
  int n_threads = 1;
  BatchWeights batch_weights = BatchWeights::automatic;
  // Products of single rows with packed 4- and 8-bit weights: activations of 8 bits for all but the
  // output head (false), or of about 16 bits for all (true), as the head always has them. libllama
  // has 8 everywhere.
  bool exact_products = false;
  std::string rope_scaling;  // "", "linear:2", "yarn:4": the user's way past the trained context
  std::function<void(const std::string&)> log;  // one line at a time; may be empty
};

// Owns weights, ggml's threads and the graphs. One step at a time.
class Model {
 public:
  // Throws Error naming the file, the key and the value found for anything it cannot run exactly.
  static std::unique_ptr<Model> load(const std::string& path, const ModelOptions& options);
  ~Model();

  const ModelInfo& info() const;
  // Runs the rows through all layers, calling `attention` for each. logits: [number of wanted
  // rows][vocab], resized. An exception thrown while it runs reaches the caller.
  void step(const RowBatch& rows, Attention& attention, std::vector<float>* logits);

  // What turns the heads' outputs into a layer's, widened: [width][heads * head_dim].
  std::vector<float> output_projection(int layer) const;

  // Bytes of weights: mapped from the file, repacked, widened copies.
  struct WeightBytes {
    uint64_t mapped = 0, repacked = 0, widened = 0;
  };
  WeightBytes weight_bytes() const;
  static std::string ggml_version_text();

 private:
  Model();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvist
