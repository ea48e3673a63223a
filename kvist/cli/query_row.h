// SPDX-License-Identifier: MIT
// One query row of one layer, read from codes without a model: its depths, its output, and what the
// certificate says of them.
#pragma once

#include <cstdint>
#include <vector>

#include "kvist/cache/coded_layer.h"
#include "kvist/cache/coded_reader.h"
#include "kvist/methods/method.h"
#include "kvist/methods/read/certificate.h"

namespace kvist {

constexpr uint8_t kExactDepth = 16;  // of tokens that a plan keeps in 16 bits

struct RowReading {
  int n_tokens = 0;                   // T, the tokens the row sees
  std::vector<uint8_t> key_depths;    // [kv_heads][head_dim]
  std::vector<uint8_t> value_depths;  // [kv_heads][n_tokens], kExactDepth where they are exact
  std::vector<float> out;             // [heads][head_dim]
  ReadTrace trace;                    // of this row alone
};

// The keys and values of `input` as codes, whole pages sealed. Throws corrupt naming the layer
// where a number is not finite once transformed. `code` outlives the result.
CodedLayer code_layer(const LayerInput& input, int heads, const LayerCode& code,
                      const ReadPlan& plan);

// The row q [heads][head_dim], after RoPE, over the first n_tokens tokens, the last of them the
// current one. `workspace` is kept between calls.
RowReading read_row(const CodedLayer& layer, const ReadPlan& plan, const float* q, int n_tokens,
                    float logit_scale, ReadWorkspace& workspace);

// Theorem 3 for such a row; `input` has the exact keys and values that `layer` was made of. Exact
// tokens enter with the distortion of depth 8.
LayerCertificate certify_row(const LayerInput& input, const CodedLayer& layer, const ReadPlan& plan,
                             const float* q, const RowReading& row);

}  // namespace kvist
