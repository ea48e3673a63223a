// SPDX-License-Identifier: MIT
// The architectures the graph knows: one row each, saying where it differs from a plain pre-norm
// SwiGLU decoder with GQA.
#pragma once

#include <span>
#include <string_view>

namespace kvist {

struct Arch {
  std::string_view name;  // value of general.architecture, prefix of its keys
  bool rope_adjacent;     // pairs (2f, 2f+1); else (f, f + dims/2)
  bool qkv_bias;          // attn_{q,k,v}.bias are required; optional where false
  bool qk_norm;           // RMS norm of each head of q and k before RoPE
  bool attention_scale;   // the key attention.scale replaces 1/sqrt(head_dim)
  bool rope_freqs;        // rope_freqs.weight divides the frequencies (llama3 scaling)
};

std::span<const Arch> architectures();
const Arch* find_arch(std::string_view name);  // null where unknown

}  // namespace kvist
