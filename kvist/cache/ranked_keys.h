// SPDX-License-Identifier: MIT
// Keys of coded tokens (VarRate, arXiv:2607.15498), 64 at a time, from anchors, coefficients and
// rotations.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kvist/cache/ranked_layer.h"
#include "kvist/core/thread_pool.h"
#include "kvist/kernels/ranked_tiles.h"
#include "kvist/methods/rank/basis.h"
#include "kvist/methods/rank/rotation_table.h"

namespace kvist {

// Keys of the first blocks of a layer as attention reads them, kept while a prefix is in use.
struct ExpandedKeys {
  int n_blocks = 0;
  Buffer<std::byte> k;  // [n_blocks][kv_heads][head_dim][64] of the layer's type
  static uint64_t block_bytes(const KvShape& shape) {
    return static_cast<uint64_t>(shape.kv_heads * shape.head_dim * RankedLayer::kBlock *
                                 size_of(shape.type));
  }
  const std::byte* block(const KvShape& shape, int block, int head) const {
    return k.data() + block_bytes(shape) * static_cast<uint64_t>(block) +
           block_bytes(shape) / static_cast<uint64_t>(shape.kv_heads) * static_cast<uint64_t>(head);
  }
};

// A coded layer with all that reading it takes; everything outlives the call.
struct RankedView {
  const RankedLayer* layer = nullptr;
  const RankBasisLayer* basis = nullptr;
  const float* sigma = nullptr;  // [basis rows]
  const RotationTable* rotations = nullptr;
  // The key columns of the basis by kernels::make_basis_tiles(), or null: products are fp32 then.
  const std::byte* key_tiles = nullptr;
  double value_scale = 1;
  const ExpandedKeys* expanded = nullptr;
  bool is_expanded(int block) const { return expanded != nullptr && block < expanded->n_blocks; }
  // Leaves out a head of a block where no logit can come within 25 of the largest: at most
  // 64 * e^-25 of a row's softmax each. The layer has key norms.
  bool skip = false;
  // Bits of a coefficient that a query reads on average; the layer has tree codes and row weights.
  std::optional<Ratio> read = {};
  // Of the query that reads now, as RankedLayer::read_block takes them; null: all that is stored.
  const uint8_t* row_depths = nullptr;

  int key_width() const { return layer->shape().kv_heads * layer->shape().head_dim; }
};

// The sizes that decide how much memory reading needs: the largest of any layer.
struct RankedSizes {
  KvShape shape;
  int n_exact = 0;
  int n_anchors = 0;
  int n_blocks = 0;
  int basis_rows = 0;
  int neighbours = 0;
  void cover(const RankedView& view);
  int chunks() const { return (basis_rows + kRankChunk - 1) / kRankChunk; }
  int key_width() const { return shape.kv_heads * shape.head_dim; }
  bool holds(const RankedSizes& other) const;  // what is sized for this suffices for the other
};

// What one worker needs to read blocks.
struct BlockScratch {
  BlockScratch() = default;
  explicit BlockScratch(const RankedSizes& sizes);
  uint64_t allocated_bytes() const;

  // Of the block read last, in its order.
  std::vector<RankedLayer::Chunk> chunks;
  int n_chunks = 0;
  std::vector<uint16_t> index;      // [64][neighbours] anchors
  std::vector<uint8_t> count;       // [64] of them
  std::vector<const float*> turns;  // [64] rotations
  Buffer<float> rows;               // [64][head_dim] keys of a head
  Buffer<float> block;              // [head_dim][64] keys of a head
  Buffer<float> x;                  // [chunks][64][32] coefficients
  RankedLayer::Page page;           // of tree codes; forgotten between layers
  std::vector<uint8_t> depth;       // [chunks][64]
  Buffer<std::byte> tiles;          // of the coefficients
};

// Keys of the exact tokens [begin, end) of `head`, turned back to before RoPE, those that are
// anchors into keys [anchors][kv_heads * head_dim]; scratch [end - begin][head_dim].
void unturn_anchors(const RankedView& view, int head, int begin, int end, float* scratch,
                    float* keys) noexcept;
inline kernels::AnchorLists anchors_of(const RankedView& view, const BlockScratch& scratch) {
  return {scratch.index.data(), scratch.count.data(), view.layer->neighbours()};
}
// Tiles of a layer's key columns; empty where this CPU has no use for them.
Buffer<std::byte> key_tiles_of(const RankBasisLayer& basis, const KvShape& shape);
// Coefficients and neighbours of a block, and rotations unless its keys are expanded. Coefficients
// stay as stored where tiles make the keys or nothing does.
void read_block(const RankedView& view, int block, BlockScratch& scratch) noexcept;
// After read_block(): what its coefficients add to the keys of a head, before RoPE, and its keys as
// attention reads them, or only the means of their anchors; each into scratch.rows. anchors
// [anchors][kv_heads * head_dim] as from unturn_anchors(). Where the view has tiles they are
// configured meanwhile.
void make_residuals(const RankedView& view, int head, BlockScratch& scratch) noexcept;
void turn_residuals(const RankedView& view, BlockScratch& scratch) noexcept;  // after the former
void make_keys(const RankedView& view, const float* anchors, int head,
               BlockScratch& scratch) noexcept;
void make_means(const RankedView& view, const float* anchors, int head,
                BlockScratch& scratch) noexcept;
// [coded][kv_heads] lengths of what coefficients add to a key, not less than they are.
std::vector<float> measure_residuals(const RankedView& view, ThreadPool& pool);

// Expands the keys of the first blocks of a layer, as many as `most_bytes` hold.
ExpandedKeys expand_keys(const RankedView& view, uint64_t most_bytes, ThreadPool& pool);

// Keys and values of a head as they are read, [tokens][head_dim], without any shortcut: plain
// sums in float32 in the order of anchors and coefficients.
void reconstruct_ranked(const RankedView& view, int head, std::vector<float>* k,
                        std::vector<float>* v);

}  // namespace kvist
