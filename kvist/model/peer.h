// SPDX-License-Identifier: MIT
// The engines we are measured against, on plain arrays: libllama with its own cache, and ggml's
// flash attention. For benchmarks and tests only; nothing a user asks is answered here.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvist/core/half.h"

namespace kvist {

struct PeerOptions {
  int n_threads = 1;
  int context = 0;            // tokens of all sequences together
  int n_sequences = 1;        // they share one cache and may share a prefix
  bool extra_buffers = true;  // repacked weights, as libllama does by default
  bool float_cache = false;   // f32 keys and values without flash attention: the exact oracle
};

// libllama. Sequence 0 holds the prompt.
class LlamaPeer {
 public:
  // Throws Error(io) when libllama refuses the file.
  LlamaPeer(const std::string& path, const PeerOptions& options);
  ~LlamaPeer();

  // Whether libllama's repacked weights run on this machine at all (see
  // CpuBackend::packed_batches_run).
  static bool extra_buffers_work();

  int vocab() const;
  void clear();
  // Appends to sequence 0 in batches of 512; returns the logits of the last token.
  std::vector<float> prefill(std::span<const int32_t> tokens);
  // The same with logits after every token, [tokens][vocab].
  std::vector<float> prefill_all(std::span<const int32_t> tokens);
  // Sequences 1..n-1 begin with what sequence 0 holds, without a copy.
  void share_prefix();
  // One step: tokens[i] goes to sequence i; logits [tokens][vocab].
  void decode(std::span<const int32_t> tokens, std::vector<float>* logits);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// ggml_flash_attn_ext over one step's shapes, f16 keys and values.
class FlashPeer {
 public:
  // k, v [kv_heads][n_tokens][head_dim]; n_rows query rows, the last of which sees every token
  // (causal).
  FlashPeer(int heads, int kv_heads, int head_dim, int n_tokens, int n_rows, std::span<const f16> k,
            std::span<const f16> v, int n_threads);
  ~FlashPeer();
  // q [n_rows][heads][head_dim]; out the same shape.
  void attend(std::span<const float> q, float logit_scale, std::span<float> out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvist
