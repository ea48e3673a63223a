// SPDX-License-Identifier: MIT
// The queries beside a dump's keys and values that `kvist apply` reads a coded cache with.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvist/cli/dump.h"
#include "kvist/core/buffer.h"
#include "kvist/core/npy.h"

namespace kvist {

// q.npy [layers, heads, n, head_dim], float32, after RoPE; the layer axis is there where k.npy has
// it. q_pos.npy int32 [n], optional: the position of each, which sees the tokens 0 to q_pos;
// without it all are at the last token.
class DecodeQueries {
 public:
  // Checks everything but the numbers of q. Throws naming file, found and expected. Positions are
  // those of q.npy; queries in another file of this layout are all at the last token.
  explicit DecodeQueries(const Dump& dump, const std::string& file = "q.npy");

  int heads() const { return heads_; }
  int n() const { return static_cast<int>(positions_.size()); }
  const std::vector<int32_t>& positions() const { return positions_; }
  // [n][heads][head_dim]. Throws naming the place of a number that is not finite.
  std::vector<float> load(int layer);

 private:
  std::unique_ptr<NpyFile> file_;
  int heads_ = 0, head_dim_ = 0;
  std::vector<int32_t> positions_;  // [n]
};

}  // namespace kvist
