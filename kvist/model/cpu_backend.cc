// SPDX-License-Identifier: MIT
// ggml's CPU backend, reached through its registry so that linked and dynamically loaded builds
// work alike.
#include "kvist/model/cpu_backend.h"

#include <dlfcn.h>
#include <llama.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "kvist/core/error.h"

namespace kvist {
namespace {

thread_local std::string g_errors;

void keep_error(ggml_log_level level, const char* text, void*) {
  if (level != GGML_LOG_LEVEL_ERROR || text == nullptr) return;
  if (g_errors.size() > 400) return;
  if (!g_errors.empty()) g_errors += "; ";
  g_errors += text;
  while (!g_errors.empty() && g_errors.back() == '\n') g_errors.pop_back();
}

template <typename F>
F entry(ggml_backend_dev_t device, const char* name) {
  return reinterpret_cast<F>(
      ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), name));
}

template <typename F>
F required_entry(ggml_backend_dev_t device, const char* name) {
  F f = entry<F>(device, name);
  if (f == nullptr) {
    throw Error(ErrorKind::unsupported,
                str("ggml ", ggml_version(), ": its CPU backend has no ", name));
  }
  return f;
}

// One product of several rows on `weights` packed for `type`, on one thread. True when it could be
// set up and ran.
bool try_product(ggml_backend_dev_t device, ggml_backend_buffer_type_t type,
                 ggml_type weights_type) {
  constexpr int64_t kIn = 256, kOut = 64, kRows = 40;
  ggml_backend_t backend = ggml_backend_dev_init(device, nullptr);
  entry<ggml_backend_set_n_threads_t>(device, "ggml_backend_set_n_threads")(backend, 1);
  ContextPtr weights = header_context(1), work = header_context(16);
  ggml_tensor* w = ggml_new_tensor_2d(weights.get(), weights_type, kIn, kOut);
  BackendBufferPtr packed(ggml_backend_alloc_ctx_tensors_from_buft(weights.get(), type));
  if (!packed) return false;
  const std::vector<char> zeros(ggml_nbytes(w));
  ggml_backend_tensor_set(w, zeros.data(), 0, zeros.size());
  ggml_tensor* x = ggml_new_tensor_2d(work.get(), GGML_TYPE_F32, kIn, kRows);
  ggml_cgraph* graph = ggml_new_graph_custom(work.get(), 8, false);
  ggml_build_forward_expand(graph, ggml_mul_mat(work.get(), w, x));
  BackendBufferPtr memory(ggml_backend_alloc_ctx_tensors(work.get(), backend));
  std::memset(x->data, 0, ggml_nbytes(x));
  return ggml_backend_graph_compute(backend, graph) == GGML_STATUS_SUCCESS;
}

bool child_survives(ggml_backend_dev_t device, ggml_backend_buffer_type_t type, ggml_type weights) {
  // A team of OpenMP threads does not survive a fork, and a child that asks for one hangs: it must
  // be alone.
  const auto set_omp_threads =
      reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  const pid_t child = fork();
  if (child < 0) return false;
  if (child == 0) {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);
    for (const int s : {SIGILL, SIGSEGV, SIGABRT, SIGBUS, SIGFPE}) signal(s, SIG_DFL);
    alarm(5);
    if (set_omp_threads != nullptr) set_omp_threads(1);
    _exit(try_product(device, type, weights) ? 0 : 1);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

void silence_backend_log() {
  static std::once_flag once;
  std::call_once(once, [] { llama_log_set(keep_error, nullptr); });  // sets ggml's as well
}

std::string take_backend_errors() { return std::exchange(g_errors, {}); }

ContextPtr header_context(size_t n) {
  const size_t size =
      n * ggml_tensor_overhead() + ggml_graph_overhead_custom(n < 16 ? 16 : n, false);
  ContextPtr context(ggml_init({size, nullptr, true}));
  if (!context) throw Error(ErrorKind::exhausted, str("no memory for ", n, " tensor headers"));
  return context;
}

CpuBackend::CpuBackend(int n_threads) : n_threads_(n_threads) {
  silence_backend_log();
  if (n_threads < 1 || n_threads > GGML_MAX_N_THREADS) {
    throw Error(ErrorKind::invalid_argument,
                str(n_threads, " threads, expected 1 to ", GGML_MAX_N_THREADS));
  }
  if (ggml_backend_reg_count() == 0) ggml_backend_load_all();
  device_ = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  if (device_ == nullptr)
    throw Error(ErrorKind::unsupported, str("ggml ", ggml_version(), " has no CPU backend"));
  if (const auto list =
          entry<ggml_backend_dev_get_extra_bufts_t>(device_, "ggml_backend_dev_get_extra_bufts")) {
    for (auto* type = list(device_); type != nullptr && *type != nullptr; ++type)
      extra_.push_back(*type);
  }
  const auto new_pool =
      required_entry<decltype(&ggml_threadpool_new)>(device_, "ggml_threadpool_new");
  const auto use_pool = required_entry<decltype(&ggml_backend_cpu_set_threadpool)>(
      device_, "ggml_backend_cpu_set_threadpool");
  const auto use_threads =
      required_entry<ggml_backend_set_n_threads_t>(device_, "ggml_backend_set_n_threads");
  backend_ = ggml_backend_dev_init(device_, nullptr);
  ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
  params.poll =
      1;  // spin for about a millisecond between steps, then sleep: other pools need the cores
  pool_ = backend_ == nullptr ? nullptr : new_pool(&params);
  if (pool_ == nullptr) {
    if (backend_ != nullptr) ggml_backend_free(backend_);
    throw Error(ErrorKind::exhausted, str("ggml could not start ", n_threads, " threads"));
  }
  use_threads(backend_, n_threads);
  use_pool(backend_, pool_);
}

CpuBackend::~CpuBackend() {
  ggml_backend_free(backend_);
  entry<decltype(&ggml_threadpool_free)>(device_, "ggml_threadpool_free")(pool_);
}

bool CpuBackend::has_feature(const char* name) const {
  const auto list = entry<ggml_backend_get_features_t>(device_, "ggml_backend_get_features");
  if (list == nullptr) return false;
  for (auto* f = list(ggml_backend_dev_backend_reg(device_)); f != nullptr && f->name != nullptr;
       ++f) {
    if (std::strcmp(f->name, name) == 0) return std::strcmp(f->value, "0") != 0;
  }
  return false;
}

ggml_backend_buffer_type_t CpuBackend::packed_type(ggml_type type, int64_t columns,
                                                   int64_t rows) const {
  for (ggml_backend_buffer_type_t candidate : extra_) {
    ContextPtr context = header_context(4);
    ggml_tensor* w = ggml_new_tensor_2d(context.get(), type, columns, rows);
    ggml_tensor* x = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, columns, 1);
    BackendBufferPtr buffer(ggml_backend_buft_alloc_buffer(candidate, 0));
    if (!buffer) continue;
    w->buffer = buffer.get();
    if (ggml_backend_dev_supports_op(device_, ggml_mul_mat(context.get(), w, x))) return candidate;
  }
  return nullptr;
}

bool CpuBackend::packed_batches_run(ggml_backend_buffer_type_t type, ggml_type weights) const {
  static std::mutex mutex;
  static std::map<std::pair<ggml_backend_buffer_type_t, ggml_type>, bool> known;
  const std::lock_guard lock(mutex);
  const auto [it, is_new] = known.emplace(std::pair(type, weights), false);
  if (is_new) it->second = child_survives(device_, type, weights);
  return it->second;
}

}  // namespace kvist
