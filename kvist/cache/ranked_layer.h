// SPDX-License-Identifier: MIT
// One layer under VarRate (arXiv:2607.15498) as bytes: exact tokens, and for every other one its
// nearest anchors and as many coefficients as its rank.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvist/cache/bytes.h"
#include "kvist/cache/dense.h"
#include "kvist/core/buffer.h"
#include "kvist/kernels/ranked.h"
#include "kvist/kernels/row_planes.h"
#include "kvist/methods/rank/coefficients.h"
#include "kvist/methods/rank/layer_code.h"

namespace kvist {

// How the tokens of a prefix are divided; all layers that divide them alike share one. Immutable.
struct RankedTokens {
  explicit RankedTokens(const RankedCode& code);
  bool divides(const RankedCode& code) const;  // as this does
  Bytes bytes() const;
  void add_to(Digest& digest) const;

  int n_tokens = 0;
  std::vector<int32_t> exact, anchors, coded;  // positions, ascending
  std::vector<int32_t> exact_of_anchor;        // [anchors] index into `exact`
  std::vector<int32_t> anchor_of_exact;        // [exact] index into `anchors`, or -1
};

// Exact tokens as a frozen run of each head. Coded ones in blocks of 64, by falling rank inside a
// block, so that those whose rank exceeds 32 k are its first. The coefficients of a block lie chunk
// by chunk, chunk k the rows 32 k to 32 k + 31 of the basis, token by token, without padding:
//
//   f16     the numbers times 2^-shift, little endian; f32 as they are
//   groups  least value and step of every token of the chunk, f16 each, then their codes, each
//           token's from a byte of its own, lowest bits first
//   tree    by pages of 16 blocks instead: row by row of the basis its planes, most significant bit
//           first, of the tokens of the page whose rank reaches it, bit after bit, so that a row is
//           read as deep as it deserves; a token's gain, f16, lies apart
//
// Indices of anchors are packed with as many bits as their number asks for, token after token.
class RankedLayer {
 public:
  // runs [kv_heads]: the layer's plain keys after RoPE and values, whose bits exact tokens keep.
  // `code` is as require_codable() wants it. sigma [basis rows], for tree codes.
  RankedLayer(const KvShape& shape, std::shared_ptr<const RankedTokens> tokens,
              std::span<const kernels::KvRun> runs, const RankedCode& code,
              const CoefficientFormat& format, const float* sigma, ThreadPool& pool);
  // [coded][kv_heads] bounds of the length of what coefficients add to a key, for skipping; kept
  // rounded up to f16.
  void keep_key_norms(std::span<const float> key_norms);
  // What choosing depths by rows needs; of tree codes.
  void keep_row_weights(const float* sigma);

  const KvShape& shape() const { return shape_; }
  const RankedTokens& tokens() const { return *tokens_; }
  const CoefficientFormat& format() const { return format_; }
  int neighbours() const { return n_neighbours_; }
  int64_t rank_sum() const { return rank_sum_; }
  int shift() const { return shift_; }

  kernels::KvRun exact(int head) const;  // tokens().exact, in order

  static constexpr int kBlock = 64;
  int n_coded() const { return static_cast<int>(tokens_->coded.size()); }
  int n_blocks() const { return (n_coded() + kBlock - 1) / kBlock; }
  int block_tokens(int block) const { return std::min(kBlock, n_coded() - block * kBlock); }
  // Of the tokens of a block, by falling rank.
  const uint16_t* ranks(int block) const { return ranks_.data() + block * kBlock; }
  const uint8_t* order(int block) const { return order_.data() + block * kBlock; }
  int position(int block, int i) const {
    return tokens_->coded[static_cast<size_t>(block * kBlock + order(block)[i])];
  }
  // index [block_tokens][neighbours()], count [block_tokens] how many of them a token has.
  void read_neighbours(int block, uint16_t* index, uint8_t* count) const noexcept;
  bool has_key_norms() const { return !key_norms_.empty(); }
  const f16* key_norms(int block) const {  // [block_tokens][kv_heads]
    return key_norms_.data() + int64_t{block} * kBlock * shape_.kv_heads;
  }
  // Rows of the basis that any token reaches: how many do, and the mean square of their units, gain
  // times sigma. Empty unless kept.
  std::span<const uint32_t> row_tokens() const { return row_tokens_.span(); }
  std::span<const float> row_energies() const { return row_energies_.span(); }
  // Where tree codes of a page lie: what reading its blocks takes.
  struct Page {
    explicit Page(int basis_rows = 0);
    void forget() { index = -1; }

    int index = -1;
    std::vector<int64_t> bit;      // [rows] where a row begins
    std::vector<int32_t> tokens;   // [rows] of the page that reach it
    std::vector<int32_t> before;   // [kPageBlocks][rows] those of earlier blocks
    std::vector<uint8_t> reached;  // [kPageBlocks][rows] those of a block
  };
  static constexpr int kPageBlocks = 16;
  // Coefficients of all chunks of a block, one after the other as [tokens whose rank reaches
  // it][32], ending in zeros. depth: how many of them are given, [tokens] beside each row. sigma as
  // in the constructor. Of tree codes the first row_depths[j] <= bits of row j, [rows that any
  // token reaches], or all; chunks behind the last row that is read are left out. `page` is that of
  // the last call on this layer, or forgotten. Returns the number of chunks.
  //
  // With `as_stored` coefficients of f16 stay where they lie, one token's after the other's, to be
  // multiplied by unit(); x is not written then.
  using Chunk = kernels::CoefficientRows;
  int read_block(int block, const float* sigma, const uint8_t* row_depths, Page* page, float* x,
                 uint8_t* depth, Chunk* chunks, bool as_stored = false) const noexcept;
  float unit() const;
  // Bytes of lines of 64 that the blocks of page.index ask something of, at these depths.
  int64_t touched_bytes(const Page& page, const uint8_t* row_depths) const noexcept;
  // Where the coefficients of a block, or of its page, begin and end, in bytes.
  std::span<const uint8_t> block_bytes(int block) const;
  uint32_t block_offset(int block) const { return offsets_[static_cast<size_t>(unit_of(block))]; }

  // Coefficients of all coded tokens as they are read, in the order of tokens().coded. For oracles.
  RankedCode decode(const float* sigma) const;

  Bytes bytes() const;                // without tokens()
  void add_to(Digest& digest) const;  // likewise

 private:
  int n_pages() const { return (n_blocks() + kPageBlocks - 1) / kPageBlocks; }
  int page_end(int page) const { return std::min(n_blocks(), (page + 1) * kPageBlocks); }
  int unit_of(int block) const { return format_.tree() ? block / kPageBlocks : block; }
  void store_exact(std::span<const kernels::KvRun> runs);
  void store_tokens(const RankedCode& code, int block, const float* sigma);
  void store_block(const RankedCode& code, int block, std::vector<uint8_t>* payload);
  void store_chunk(const RankedCode& code, int block, int chunk, std::vector<uint8_t>* payload);
  void store_page(const RankedCode& code, int page, const float* sigma,
                  std::vector<uint8_t>* payload);
  void find(int page, Page* out) const noexcept;
  kernels::PlaneRow plane_row(const Page& page, int block, int row) const;
  const uint8_t* read_chunk(int block, int chunk, int n, const uint8_t* at,
                            float* x) const noexcept;
  // fn(row, tokens that reach it) for the rows of a block.
  template <typename Fn>
  void each_row(int block, const Fn& fn) const {
    const uint16_t* rank = ranks(block);
    int n = block_tokens(block);
    for (int row = 0; row < rank[0]; ++row) {
      while (rank[n - 1] <= row) --n;
      fn(row, n);
    }
  }

  KvShape shape_;
  std::shared_ptr<const RankedTokens> tokens_;
  CoefficientFormat format_;
  int n_neighbours_ = 0;
  int index_bits_ = 0;
  int shift_ = 0;
  int64_t rank_sum_ = 0;
  Buffer<std::byte> exact_k_, exact_v_;  // [kv_heads] runs
  Buffer<uint16_t> ranks_;               // [coded]
  Buffer<uint8_t> order_;                // [coded] place in its block, by falling rank
  Buffer<uint8_t> neighbours_;           // packed, with room to be read eight bytes at a time
  Buffer<uint8_t> counts_;               // [coded] of neighbours, or none: all have as many
  Buffer<f16> key_norms_;                // [coded][kv_heads], or none
  Buffer<f16> gains_;                    // [coded], of tree codes
  Buffer<uint32_t> row_tokens_;          // [rows reached], or none
  Buffer<float> row_energies_;           // [rows reached], or none
  Buffer<uint32_t> offsets_;  // [blocks] or pages: where coefficients begin, in units of the format
  Buffer<uint8_t> payload_;   // of tree codes with room to be read eight bytes at a time
};

}  // namespace kvist
