// SPDX-License-Identifier: MIT
// The architectures the graph knows: one row each, saying where it differs from a plain pre-norm
// SwiGLU decoder with GQA.
#include "kvist/model/arch.h"

namespace kvist {
namespace {

constexpr Arch kArchitectures[] = {
    {.name = "llama",
     .rope_adjacent = true,
     .qkv_bias = false,
     .qk_norm = false,
     .attention_scale = true,
     .rope_freqs = true},
    {.name = "qwen2",
     .rope_adjacent = false,
     .qkv_bias = true,
     .qk_norm = false,
     .attention_scale = false,
     .rope_freqs = false},
    {.name = "qwen3",
     .rope_adjacent = false,
     .qkv_bias = false,
     .qk_norm = true,
     .attention_scale = false,
     .rope_freqs = false},
};

}  // namespace

std::span<const Arch> architectures() { return kArchitectures; }

const Arch* find_arch(std::string_view name) {
  for (const Arch& arch : kArchitectures) {
    if (arch.name == name) return &arch;
  }
  return nullptr;
}

}  // namespace kvist
