// SPDX-License-Identifier: MIT
// ggml's CPU backend, reached through its registry so that linked and dynamically loaded builds
// work alike.
#pragma once

#include <ggml-backend.h>
#include <ggml-cpu.h>

#include <memory>
#include <string>
#include <vector>

namespace kvist {

// Sends the log lines of ggml and libllama nowhere but into take_backend_errors(). Process-wide,
// idempotent.
void silence_backend_log();
// The error lines of this thread since the last call, joined by "; "; may be empty.
std::string take_backend_errors();

// Owns the backend and its threads. One graph at a time.
class CpuBackend {
 public:
  explicit CpuBackend(int n_threads);
  ~CpuBackend();
  CpuBackend(const CpuBackend&) = delete;
  CpuBackend& operator=(const CpuBackend&) = delete;

  ggml_backend_t backend() const { return backend_; }
  int n_threads() const { return n_threads_; }
  ggml_backend_buffer_type_t buffer_type() const { return ggml_backend_cpu_buffer_type(); }
  bool has_feature(const char* name) const;  // as ggml names it: "AVX512_BF16"

  // The first extra buffer type whose packed form can multiply [rows, columns] weights of this
  // type; null where none can.
  ggml_backend_buffer_type_t packed_type(ggml_type type, int64_t columns, int64_t rows) const;
  // Whether products of more than one row on `weights` packed for `type` can be run: a ggml built
  // by gcc 12 raises an illegal instruction there on CPUs with AMX. Found out in a forked child,
  // once per process and pair.
  bool packed_batches_run(ggml_backend_buffer_type_t type, ggml_type weights) const;

 private:
  int n_threads_;
  ggml_backend_dev_t device_ = nullptr;
  ggml_backend_t backend_ = nullptr;
  ggml_threadpool* pool_ = nullptr;
  std::vector<ggml_backend_buffer_type_t> extra_;
};

struct ContextDeleter {
  void operator()(ggml_context* context) const { ggml_free(context); }
};
using ContextPtr = std::unique_ptr<ggml_context, ContextDeleter>;
struct BufferDeleter {
  void operator()(ggml_backend_buffer* buffer) const { ggml_backend_buffer_free(buffer); }
};
using BackendBufferPtr = std::unique_ptr<ggml_backend_buffer, BufferDeleter>;

// A context for the headers of `n` tensors, without their data.
ContextPtr header_context(size_t n);

}  // namespace kvist
