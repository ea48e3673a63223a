// SPDX-License-Identifier: MIT
// Attention of many query rows over one head's run of cached tokens: block by block, online
// softmax, each K and V row read once for all query rows.
#pragma once

#include <cstdint>
#include <span>

#include "kvist/core/half.h"

namespace kvist::kernels {

// Tokens in a block of keys.
inline constexpr int kBlock = 64;

// One head's tokens as they lie in memory. Token t is in block t / 64.
//
//   k  blocks one after the other; a block of width w is [head_dim][w] (channel-major, tokens in
//   lanes). Every block has
//      width 64 but the last, whose width is `last_width` (64 for a store that still grows, the
//      exact remainder for one that is frozen: no padding)
//   v  [tokens][head_dim]
struct KvRun {
  const void* k = nullptr;
  const void* v = nullptr;
  Scalar type = Scalar::f16;
  int head_dim = 0;
  int n_tokens = 0;
  int last_width = kBlock;
};

// The running softmax of `rows` query rows: out = o / l once all tokens were seen.
struct SoftmaxState {
  float* m = nullptr;  // [rows] largest logit so far; -infinity before the first token
  float* l = nullptr;  // [rows] sum of exp(logit - m)
  float* o = nullptr;  // [rows][head_dim] sum of exp(logit - m) * v
};
void reset(SoftmaxState state, int rows, int head_dim) noexcept;

// Where the products are formed. exact: fp32. fast: bf16 dot products with fp32 sums where they are
// faster on this CPU (AMX tiles, or AVX512-BF16 on Zen) and there are enough rows to pay for
// unpacking, else fp32.
enum class Precision { exact, fast };
bool has_bf16_dot() noexcept;

// Bytes of scratch that one worker needs for up to `max_rows` rows.
size_t attend_scratch_bytes(int max_rows, int head_dim) noexcept;

// Adds tokens [begin, end) of `run` to `state`; begin is a multiple of 64.
//
//   q        [rows][head_dim] f32, already multiplied by the logit scale
//   visible  [rows] or null: row r sees only tokens of the run with index < visible[r] (it may be
//   0) scratch  attend_scratch_bytes(rows, head_dim), 64-byte aligned
//
// A row's result does not depend on which other rows share the call, as long as `precision`
// resolves to the same path: rows >= kFastRows in both calls or fewer in both.
inline constexpr int kFastRows = 12;
void attend(const KvRun& run, int begin, int end, const float* q, int rows, const int32_t* visible,
            Precision precision, SoftmaxState state, std::byte* scratch) noexcept;

// state += other, both over the same rows (associative only up to rounding: merge in a fixed
// order).
void merge(SoftmaxState state, SoftmaxState other, int rows, int head_dim) noexcept;

// out[r][c] = o[r][c] / l[r] (0 where no token was seen); row r of out starts at out + r *
// out_stride.
void finish(SoftmaxState state, int rows, int head_dim, float* out, int64_t out_stride) noexcept;

// Writes one token's key and value (f32 [head_dim], rounded to nearest even) at index `token` of a
// growing run.
void store_token(void* k, void* v, Scalar type, int head_dim, int token, const float* key,
                 const float* value) noexcept;

// Keys or values [begin, end) of a run, widened exactly: out [end - begin][head_dim].
void load_keys(const KvRun& run, int begin, int end, float* out) noexcept;
void load_values(const KvRun& run, int begin, int end, float* out) noexcept;

// The first n <= 64 columns of a block [head_dim][64] from rows [n][head_dim].
void transpose_into_block(const float* rows, int n, int head_dim, float* block) noexcept;

// Copies the bits of tokens `kept` (ascending indices into `from`) into frozen storage: k blocks
// with an exact last block, v rows. `k_out` and `v_out` hold kept.size() * head_dim numbers of
// from.type each.
void gather(const KvRun& from, std::span<const int32_t> kept, void* k_out, void* v_out) noexcept;

// The tokens `kept` (ascending) of a growing run, whose blocks are all whole, become its first
// ones: in place, bit for bit.
void keep_tokens(void* k, void* v, Scalar type, int head_dim,
                 std::span<const int32_t> kept) noexcept;

}  // namespace kvist::kernels
