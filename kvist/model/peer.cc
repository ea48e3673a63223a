// SPDX-License-Identifier: MIT
// libllama and ggml's flash attention, called the way their own programs call them.
#include "kvist/model/peer.h"

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kvist/core/error.h"
#include "kvist/model/cpu_backend.h"

namespace kvist {
namespace {

constexpr int kBatch = 512;

void append(llama_batch* batch, int32_t token, int32_t position, int32_t sequence, bool logits) {
  const int i = batch->n_tokens++;
  batch->token[i] = token;
  batch->pos[i] = position;
  batch->n_seq_id[i] = 1;
  batch->seq_id[i][0] = sequence;
  batch->logits[i] = logits;
}

}  // namespace

struct LlamaPeer::Impl {
  llama_model* model = nullptr;
  llama_context* context = nullptr;
  llama_batch batch{};
  std::vector<int32_t> position;  // [sequences] next position

  ~Impl() {
    if (batch.token != nullptr) llama_batch_free(batch);
    if (context != nullptr) llama_free(context);
    if (model != nullptr) llama_model_free(model);
  }
  void submit() {
    const int rc = llama_decode(context, batch);
    if (rc != 0) throw Error(ErrorKind::exhausted, str("libllama's decode returned ", rc));
  }
  void append_prompt(std::span<const int32_t> tokens, bool all, std::vector<float>* logits);
};

LlamaPeer::LlamaPeer(const std::string& path, const PeerOptions& options)
    : impl_(std::make_unique<Impl>()) {
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_model_params mp = llama_model_default_params();
  mp.use_extra_bufts = options.extra_buffers;
  impl_->model = llama_model_load_from_file(path.c_str(), mp);
  if (impl_->model == nullptr) throw Error(ErrorKind::io, str(path, ": libllama cannot load it"));
  llama_context_params cp = llama_context_default_params();
  cp.n_ctx = static_cast<uint32_t>(options.context);
  cp.n_batch = kBatch;
  cp.n_ubatch = kBatch;
  cp.n_seq_max = static_cast<uint32_t>(options.n_sequences);
  cp.kv_unified = true;
  cp.n_threads = cp.n_threads_batch = options.n_threads;
  cp.flash_attn_type =
      options.float_cache ? LLAMA_FLASH_ATTN_TYPE_DISABLED : LLAMA_FLASH_ATTN_TYPE_ENABLED;
  if (options.float_cache) cp.type_k = cp.type_v = GGML_TYPE_F32;
  impl_->context = llama_init_from_model(impl_->model, cp);
  if (impl_->context == nullptr)
    throw Error(ErrorKind::exhausted, str(path, ": libllama makes no context"));
  impl_->batch = llama_batch_init(std::max(kBatch, options.n_sequences), 0, 1);
  impl_->position.assign(options.n_sequences, 0);
}
LlamaPeer::~LlamaPeer() = default;

bool LlamaPeer::extra_buffers_work() {
  const CpuBackend cpu(1);
  for (ggml_type type :
       {GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K}) {
    const auto packed = cpu.packed_type(type, 512, 512);
    if (packed != nullptr && !cpu.packed_batches_run(packed, type)) return false;
  }
  return true;
}

int LlamaPeer::vocab() const { return llama_vocab_n_tokens(llama_model_get_vocab(impl_->model)); }

void LlamaPeer::clear() {
  llama_memory_clear(llama_get_memory(impl_->context), true);
  std::fill(impl_->position.begin(), impl_->position.end(), 0);
}

void LlamaPeer::Impl::append_prompt(std::span<const int32_t> tokens, bool all,
                                    std::vector<float>* logits) {
  const size_t vocab = static_cast<size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model)));
  for (size_t begin = 0; begin < tokens.size(); begin += kBatch) {
    const size_t end = std::min(tokens.size(), begin + kBatch);
    batch.n_tokens = 0;
    for (size_t i = begin; i < end; ++i) {
      append(&batch, tokens[i], position[0]++, 0, all || i + 1 == tokens.size());
    }
    submit();
    for (size_t i = begin; all && i < end; ++i) {
      const float* row = llama_get_logits_ith(context, static_cast<int32_t>(i - begin));
      logits->insert(logits->end(), row, row + vocab);
    }
  }
  if (!all) {
    const float* row = llama_get_logits_ith(context, -1);
    logits->assign(row, row + vocab);
  }
}

std::vector<float> LlamaPeer::prefill(std::span<const int32_t> tokens) {
  std::vector<float> logits;
  impl_->append_prompt(tokens, false, &logits);
  return logits;
}

std::vector<float> LlamaPeer::prefill_all(std::span<const int32_t> tokens) {
  std::vector<float> logits;
  impl_->append_prompt(tokens, true, &logits);
  return logits;
}

void LlamaPeer::share_prefix() {
  for (size_t s = 1; s < impl_->position.size(); ++s) {
    llama_memory_seq_cp(llama_get_memory(impl_->context), 0, static_cast<llama_seq_id>(s), -1, -1);
    impl_->position[s] = impl_->position[0];
  }
}

void LlamaPeer::decode(std::span<const int32_t> tokens, std::vector<float>* logits) {
  impl_->batch.n_tokens = 0;
  for (size_t s = 0; s < tokens.size(); ++s) {
    append(&impl_->batch, tokens[s], impl_->position[s]++, static_cast<int32_t>(s), true);
  }
  impl_->submit();
  const size_t n = static_cast<size_t>(vocab());
  logits->resize(tokens.size() * n);
  for (size_t s = 0; s < tokens.size(); ++s) {
    std::copy_n(llama_get_logits_ith(impl_->context, static_cast<int32_t>(s)), n,
                logits->data() + s * n);
  }
}

struct FlashPeer::Impl {
  ggml_context* context = nullptr;
  ggml_backend_t backend = nullptr;
  ggml_backend_buffer_t buffer = nullptr;
  ggml_tensor *q = nullptr, *out = nullptr;
  ggml_cgraph* graph = nullptr;
  ~Impl() {
    if (buffer != nullptr) ggml_backend_buffer_free(buffer);
    if (context != nullptr) ggml_free(context);
    if (backend != nullptr) ggml_backend_free(backend);
  }
};

FlashPeer::FlashPeer(int heads, int kv_heads, int head_dim, int n_tokens, int n_rows,
                     std::span<const f16> k, std::span<const f16> v, int n_threads)
    : impl_(std::make_unique<Impl>()) {
  Impl& s = *impl_;
  s.backend = ggml_backend_cpu_init();
  ggml_backend_cpu_set_n_threads(s.backend, n_threads);
  s.context = ggml_init({size_t{1} << 20, nullptr, true});
  s.q = ggml_new_tensor_3d(s.context, GGML_TYPE_F32, head_dim, n_rows, heads);
  ggml_tensor* keys = ggml_new_tensor_3d(s.context, GGML_TYPE_F16, head_dim, n_tokens, kv_heads);
  ggml_tensor* values = ggml_new_tensor_3d(s.context, GGML_TYPE_F16, head_dim, n_tokens, kv_heads);
  ggml_tensor* mask = ggml_new_tensor_2d(s.context, GGML_TYPE_F16, n_tokens, n_rows);
  s.out = ggml_flash_attn_ext(s.context, s.q, keys, values, mask,
                              1.0f / std::sqrt(static_cast<float>(head_dim)), 0, 0);
  s.graph = ggml_new_graph(s.context);
  ggml_build_forward_expand(s.graph, s.out);
  s.buffer = ggml_backend_alloc_ctx_tensors(s.context, s.backend);
  if (s.buffer == nullptr)
    throw Error(ErrorKind::exhausted, "ggml cannot allocate the attention it is timed on");
  std::memcpy(keys->data, k.data(), k.size_bytes());
  std::memcpy(values->data, v.data(), v.size_bytes());
  const f16 shut = to_f16(-INFINITY);
  auto* m = static_cast<f16*>(mask->data);
  for (int r = 0; r < n_rows; ++r) {
    for (int t = 0; t < n_tokens; ++t)
      m[int64_t{r} * n_tokens + t] = t <= n_tokens - n_rows + r ? f16{} : shut;
  }
}
FlashPeer::~FlashPeer() = default;

void FlashPeer::attend(std::span<const float> q, float logit_scale, std::span<float> out) {
  Impl& s = *impl_;
  std::memcpy(s.out->op_params, &logit_scale, sizeof logit_scale);
  const int64_t d = s.q->ne[0], rows = s.q->ne[1], heads = s.q->ne[2];
  auto* to = static_cast<float*>(s.q->data);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t h = 0; h < heads; ++h)
      std::copy_n(q.data() + (r * heads + h) * d, d, to + (h * rows + r) * d);
  }
  ggml_backend_graph_compute(s.backend, s.graph);
  std::memcpy(out.data(), s.out->data, out.size_bytes());
}

}  // namespace kvist
