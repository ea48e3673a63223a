// SPDX-License-Identifier: MIT
// What the files of the attention kernel share: block sizes, the layout of scratch, and the bf16
// path's entry.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvist/kernels/attend.h"

namespace kvist::kernels::internal {

// Tokens whose logits of one row are turned into weights at once when rows are few: a multiple of
// kBlock.
inline constexpr int kSpan = 256;
// Rows whose logits are in flight at once when rows are many.
inline constexpr int kRowTile = 12;

// True where the CPU has AVX512-BF16 and this build has code for it.
bool cpu_has_bf16_dot() noexcept;
// Whether those dot products do more per cycle than fp32 FMA: twice as much on Zen, no more on
// Intel's cores.
bool bf16_dot_is_fast() noexcept;
size_t bf16_scratch_bytes(int rows, int head_dim) noexcept;
// attend() for many rows with bf16 products; only where cpu_has_bf16_dot().
void attend_bf16(const KvRun& run, int begin, int end, const float* q, int rows,
                 const int32_t* visible, SoftmaxState state, std::byte* scratch) noexcept;

// The same with AMX tiles. The first question asks the kernel to let this process use them.
bool cpu_has_amx() noexcept;
// Has them, and no target without AVX-512 is pinned: asked again for each call, as tests pin some.
bool amx_allowed() noexcept;
size_t amx_scratch_bytes(int rows, int head_dim) noexcept;
void attend_amx(const KvRun& run, int begin, int end, const float* q, int rows,
                const int32_t* visible, SoftmaxState state, std::byte* scratch) noexcept;

}  // namespace kvist::kernels::internal
