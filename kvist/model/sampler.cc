// SPDX-License-Identifier: MIT
// Picks tokens from logits: greedily by ourselves, at random through libllama's samplers.
#include <llama.h>

#include <cmath>

#include "kvist/core/error.h"
#include "kvist/model/tokenizer.h"

namespace kvist {

struct Sampler::Impl {
  ~Impl() {
    if (chain != nullptr) llama_sampler_free(chain);
  }
  llama_sampler* chain = nullptr;  // null: greedy
  std::vector<llama_token_data> candidates;
};

Sampler::Sampler(const SamplingOptions& options) : impl_(std::make_unique<Impl>()) {
  if (!(options.temperature >= 0 && options.temperature <= 100) || options.top_k < 0 ||
      !(options.top_p > 0 && options.top_p <= 1)) {
    throw Error(ErrorKind::invalid_argument,
                str("sampling with temperature ", options.temperature, ", top-k ", options.top_k,
                    ", top-p ", options.top_p, ": expected 0 to 100, 0 or more, and above 0 to 1"));
  }
  if (options.temperature == 0) return;
  impl_->chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
  const auto add = [this](llama_sampler* s) { llama_sampler_chain_add(impl_->chain, s); };
  if (options.top_k > 0) add(llama_sampler_init_top_k(options.top_k));
  if (options.top_p < 1) add(llama_sampler_init_top_p(options.top_p, 1));
  add(llama_sampler_init_temp(options.temperature));
  add(llama_sampler_init_dist(options.seed));
}

Sampler::~Sampler() = default;

int32_t Sampler::pick(std::span<const float> logits) {
  if (logits.empty()) throw Error(ErrorKind::invalid_argument, "no logits to pick a token from");
  if (impl_->chain == nullptr) {
    size_t best = 0;
    for (size_t i = 1; i < logits.size(); ++i) {
      if (logits[i] > logits[best] || std::isnan(logits[best])) best = i;
    }
    return static_cast<int32_t>(best);
  }
  impl_->candidates.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i)
    impl_->candidates[i] = {static_cast<llama_token>(i), logits[i], 0};
  llama_token_data_array array{impl_->candidates.data(), impl_->candidates.size(), -1, false};
  llama_sampler_apply(impl_->chain, &array);
  return array.data[array.selected >= 0 ? array.selected : 0].id;
}

}  // namespace kvist
