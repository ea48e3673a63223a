// SPDX-License-Identifier: MIT
// What the last queries of a prompt look at, and the small per-token passes beside it: max-pool,
// value energy, finiteness.
#pragma once

#include <cstdint>

#include "kvist/core/tensor.h"
#include "kvist/core/thread_pool.h"

namespace kvist::kernels {

// Mean causal attention of the last W queries of one KV head's group of G query heads (TwinKV,
// arXiv:2608.27128).
//
//   keys  [n][head_dim], finite
//   q     [W, G, head_dim], any strides but 1 inside; row t is position n - W + t; W <= n
//   abar  [n], out: sum over t and g of softmax(logit_scale * q . k) / (W * G)
//
// Row t sees positions <= n - W + t. Products and softmax (with the row's maximum taken out) in
// fp32; the mean in fp64, t outer and g inner, rounded once. Same bytes for any number of threads.
void window_attention(const float* keys, int n, int head_dim, TensorView<const float, 3> q,
                      float logit_scale, ThreadPool& pool, float* abar);

// What each attention weight is rounded to before it is summed.
enum class Weights { f32, bf16 };

// The same without the mean over the group: means [G][n], out, the mean over t alone, in fp64 and
// not rounded.
void window_attention_per_head(const float* keys, int n, int head_dim, TensorView<const float, 3> q,
                               float logit_scale, ThreadPool& pool, double* means,
                               Weights weights = Weights::f32);

// The largest in place of the mean, over t and g: most [n], out.
void window_attention_most(const float* keys, int n, int head_dim, TensorView<const float, 3> q,
                           float logit_scale, ThreadPool& pool, float* most);

// out[i] = max of in[j] over |i - j| <= radius, 0 <= j < n. `out` and `in` do not overlap.
void max_pool(const float* in, int n, int radius, float* out) noexcept;
void max_pool(const double* in, int n, int radius, double* out) noexcept;

// out[i] = |values[i]|^2, summed in fp64 in coordinate order, rounded once. values [n][head_dim].
void energies(const float* values, int n, int head_dim, float* out) noexcept;

// True where x[0 .. n) holds a NaN or an infinity; *where is then the index of the first.
bool find_nonfinite(const float* x, int64_t n, int64_t* where) noexcept;

}  // namespace kvist::kernels
