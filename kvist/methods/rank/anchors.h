// SPDX-License-Identifier: MIT
// Exact tokens, anchors and what is left of the others once the mean of their nearest anchors is
// taken away (VarRate, arXiv:2607.15498, Algorithm 1).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvist/core/buffer.h"
#include "kvist/methods/method.h"
#include "kvist/methods/rank/rotation_table.h"

namespace kvist {

// How the positions of a layer divide. A window token off the stride is exact without being an
// anchor.
struct AnchorSets {
  std::vector<int32_t> anchors;  // 0, stride, 2 stride ...
  std::vector<int32_t> exact;    // these and the last `window`
  std::vector<int32_t> coded;    // the rest
};
AnchorSets anchor_sets(int n_tokens, int stride, int window);
// Without anchors: the first token and the window are exact.
AnchorSets no_anchors(int n_tokens, int window);

// Size of `exact`: window + ceil((n - window) / stride), or n where the window covers all.
int64_t exact_count(int64_t n_tokens, int64_t stride, int64_t window);

// z [n_tokens][2 kv_heads head_dim]: keys of all heads turned back to before RoPE, then values
// times `value_scale`. Throws Error(corrupt) naming layer, head and position of a number that is
// not finite.
Buffer<float> joint_rows(const LayerInput& layer, const RotationTable& rotation,
                         double value_scale);
// The same into a buffer, which stays where it is if it has the size.
void joint_rows(const LayerInput& layer, const RotationTable& rotation, double value_scale,
                Buffer<float>* z);

// The `count` nearest anchors of each coded token by Euclidean distance over z, as indices into
// `anchors`, nearest first and among equals the earlier: [coded][count]. With `causal` only anchors
// before the token; where there are fewer than count, the rest is 0 (RankedCode::neighbours_of).
// `count` must not exceed the number of anchors. Throws Error(unsupported) above 65536 anchors.
std::vector<uint16_t> nearest_anchors(const float* z, int width, const AnchorSets& sets, int count,
                                      bool causal, ThreadPool& pool);

// Mean of the anchors' rows, 0 of none, summed in their order in fp32: times 1/n for n a power of
// two, divided else. mean [width].
void anchor_mean(const float* z, int width, const AnchorSets& sets,
                 std::span<const uint16_t> neighbours, float* mean);

}  // namespace kvist
