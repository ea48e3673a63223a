// SPDX-License-Identifier: MIT
// Making keys of coded tokens, block by block, and once for all as the oracle.
#include "kvist/cache/ranked_keys.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "kvist/kernels/attend.h"
#include "kvist/kernels/ranked.h"

namespace kvist {
namespace {

constexpr int kBlock = RankedLayer::kBlock;

kernels::Turn turning(const RotationTable& rotations, bool back) {
  return {rotations.n_frequencies(), rotations.adjacent(), back};
}

}  // namespace

void RankedSizes::cover(const RankedView& view) {
  shape = view.layer->shape();
  n_exact = std::max(n_exact, static_cast<int>(view.layer->tokens().exact.size()));
  n_anchors = std::max(n_anchors, static_cast<int>(view.layer->tokens().anchors.size()));
  n_blocks = std::max(n_blocks, view.layer->n_blocks());
  basis_rows = std::max(basis_rows, view.basis->n_rows);
  neighbours = std::max(neighbours, view.layer->neighbours());
}

bool RankedSizes::holds(const RankedSizes& o) const {
  return shape.kv_heads == o.shape.kv_heads && shape.heads == o.shape.heads &&
         shape.head_dim == o.shape.head_dim && n_exact >= o.n_exact && n_anchors >= o.n_anchors &&
         n_blocks >= o.n_blocks && basis_rows >= o.basis_rows && neighbours >= o.neighbours;
}

BlockScratch::BlockScratch(const RankedSizes& sizes)
    : chunks(static_cast<size_t>(sizes.chunks())),
      index(static_cast<size_t>(kBlock * sizes.neighbours)),
      count(kBlock),
      turns(kBlock),
      rows(static_cast<size_t>(kBlock * sizes.shape.head_dim)),
      block(static_cast<size_t>(kBlock * sizes.shape.head_dim)),
      x(static_cast<size_t>(sizes.chunks() * kBlock * kRankChunk)),
      page(sizes.basis_rows),
      depth(static_cast<size_t>(sizes.chunks() * kBlock)),
      tiles(kernels::has_basis_tiles() ? kernels::coefficient_tiles_bytes(sizes.chunks()) : 0) {}

uint64_t BlockScratch::allocated_bytes() const {
  return rows.allocated_bytes() + block.allocated_bytes() + x.allocated_bytes() +
         tiles.allocated_bytes();
}

Buffer<std::byte> key_tiles_of(const RankBasisLayer& basis, const KvShape& shape) {
  constexpr int kTile = 16;
  const int width = shape.kv_heads * shape.head_dim;
  if (!kernels::has_basis_tiles() || shape.head_dim % kTile != 0) return {};
  Buffer<std::byte> tiles(kernels::basis_tiles_bytes(basis.n_rows, width));
  kernels::make_basis_tiles({basis.rows.data(), basis.width, width}, basis.n_rows, tiles.data());
  return tiles;
}

void unturn_anchors(const RankedView& view, int head, int begin, int end, float* scratch,
                    float* keys) noexcept {
  const RankedTokens& tokens = view.layer->tokens();
  const int d = view.layer->shape().head_dim;
  kernels::load_keys(view.layer->exact(head), begin, end, scratch);
  for (int i = begin; i < end; ++i) {
    const int anchor = tokens.anchor_of_exact[static_cast<size_t>(i)];
    if (anchor < 0) continue;
    float* key = keys + int64_t{anchor} * view.key_width() + head * d;
    std::copy_n(scratch + (i - begin) * d, d, key);
    const float* turn = view.rotations->row(tokens.exact[static_cast<size_t>(i)]);
    kernels::turn_rows(key, 0, 1, 1, d, &turn, turning(*view.rotations, true));
  }
}

namespace {

// What a block needs and the hardware does not see coming: coefficients begin where it stops to
// look ahead, rotations lie apart.
void fetch(const RankedView& view, int block) {
  constexpr int64_t kLine = 64;
  if (!view.layer->format().tree()) {
    const auto bytes = view.layer->block_bytes(block);
    for (int64_t at = 0; at < std::ssize(bytes); at += kLine)
      __builtin_prefetch(bytes.data() + at, 0, 2);
  }
  if (view.is_expanded(block)) return;
  const int64_t row = int64_t{view.rotations->n_frequencies()} * 2 * int64_t{sizeof(float)};
  for (int i = 0; i < view.layer->block_tokens(block); ++i) {
    const auto* turn =
        reinterpret_cast<const char*>(view.rotations->row(view.layer->position(block, i)));
    for (int64_t at = 0; at < row; at += kLine) __builtin_prefetch(turn + at, 0, 2);
  }
}

}  // namespace

void read_block(const RankedView& view, int block, BlockScratch& scratch) noexcept {
  const RankedLayer& layer = *view.layer;
  if (block + 1 < layer.n_blocks()) fetch(view, block + 1);
  layer.read_neighbours(block, scratch.index.data(), scratch.count.data());
  scratch.n_chunks = layer.read_block(block, view.sigma, view.row_depths, &scratch.page,
                                      scratch.x.data(), scratch.depth.data(), scratch.chunks.data(),
                                      view.key_tiles != nullptr || view.is_expanded(block));
  if (view.is_expanded(block)) return;
  if (view.key_tiles != nullptr)
    kernels::make_coefficient_tiles(scratch.chunks.data(), scratch.n_chunks, layer.unit(),
                                    scratch.tiles.data());
  scratch.turns.resize(static_cast<size_t>(layer.block_tokens(block)));
  for (int i = 0; i < layer.block_tokens(block); ++i)
    scratch.turns[static_cast<size_t>(i)] = view.rotations->row(layer.position(block, i));
}

void make_residuals(const RankedView& view, int head, BlockScratch& scratch) noexcept {
  const int d = view.layer->shape().head_dim, n = static_cast<int>(scratch.turns.size());
  if (view.key_tiles != nullptr)
    return kernels::multiply_basis_tiles(view.key_tiles, view.key_width(), head * d, (head + 1) * d,
                                         scratch.chunks.data(), scratch.n_chunks,
                                         scratch.tiles.data(), n, scratch.rows.data(), d);
  std::fill_n(scratch.rows.data(), n * d, 0.0f);
  for (int k = 0; k < scratch.n_chunks; ++k) {
    const RankedLayer::Chunk& chunk = scratch.chunks[static_cast<size_t>(k)];
    kernels::add_basis_rows(chunk.x, chunk.depth, chunk.n_tokens,
                            {view.basis->row(k * kRankChunk) + head * d, view.basis->width, d},
                            scratch.rows.data(), d);
  }
}

void turn_residuals(const RankedView& view, BlockScratch& scratch) noexcept {
  const int d = view.layer->shape().head_dim;
  kernels::turn_rows(scratch.rows.data(), d, static_cast<int>(scratch.turns.size()), 1, d,
                     scratch.turns.data(), turning(*view.rotations, false));
}

namespace {

void turn_means(const RankedView& view, const float* anchors, int head, bool onto,
                BlockScratch& scratch) {
  const int d = view.layer->shape().head_dim;
  kernels::turn_with_means(anchors + head * d, view.key_width(), anchors_of(view, scratch), onto,
                           scratch.rows.data(), d, static_cast<int>(scratch.turns.size()), d,
                           scratch.turns.data(), turning(*view.rotations, false));
}

}  // namespace

void make_keys(const RankedView& view, const float* anchors, int head,
               BlockScratch& scratch) noexcept {
  make_residuals(view, head, scratch);
  turn_means(view, anchors, head, true, scratch);
}

void make_means(const RankedView& view, const float* anchors, int head,
                BlockScratch& scratch) noexcept {
  turn_means(view, anchors, head, false, scratch);
}

std::vector<float> measure_residuals(const RankedView& of, ThreadPool& pool) {
  RankedView view = of;
  view.key_tiles = nullptr;  // bounds: bf16 might fall short of them
  const RankedLayer& layer = *view.layer;
  const int heads = layer.shape().kv_heads, d = layer.shape().head_dim;
  std::vector<float> norms(static_cast<size_t>(layer.n_coded() * heads));
  RankedSizes sizes;
  sizes.cover(view);
  std::atomic<int> next{0};
  pool.run([&](Worker) {
    BlockScratch scratch(sizes);
    for (int block = next++; block < layer.n_blocks(); block = next++) {
      read_block(view, block, scratch);
      for (int head = 0; head < heads; ++head) {
        make_residuals(view, head, scratch);
        for (int i = 0; i < layer.block_tokens(block); ++i) {
          const float* x = scratch.rows.data() + i * d;
          double sum = 0;
          for (int c = 0; c < d; ++c) sum += double{x[c]} * double{x[c]};
          norms[static_cast<size_t>((block * kBlock + layer.order(block)[i]) * heads + head)] =
              static_cast<float>(std::sqrt(sum) * (1 + 1e-5));
        }
      }
    }
  });
  return norms;
}

namespace {

// A block's keys of a head from rows, in the type of the cache.
void store_keys(const KvShape& shape, const BlockScratch& scratch, std::byte* out) {
  const int d = shape.head_dim;
  const std::vector<float> no_value(static_cast<size_t>(d));
  std::vector<float> no_values(static_cast<size_t>(d * kBlock));
  for (int i = 0; i < static_cast<int>(scratch.turns.size()); ++i)
    kernels::store_token(out, no_values.data(), shape.type, d, i, scratch.rows.data() + i * d,
                         no_value.data());
}

}  // namespace

ExpandedKeys expand_keys(const RankedView& of, uint64_t most_bytes, ThreadPool& pool) {
  RankedView view = of;
  view.key_tiles = nullptr;  // these are kept: in full precision
  const KvShape& shape = view.layer->shape();
  const uint64_t each = ExpandedKeys::block_bytes(shape);
  ExpandedKeys made;
  made.n_blocks = static_cast<int>(
      std::min<uint64_t>(static_cast<uint64_t>(view.layer->n_blocks()), most_bytes / each));
  if (made.n_blocks == 0) return made;
  made.k = Buffer<std::byte>(each * static_cast<uint64_t>(made.n_blocks));
  const int n_exact = static_cast<int>(view.layer->tokens().exact.size());
  Buffer<float> anchors(view.layer->tokens().anchors.size() *
                        static_cast<size_t>(view.key_width()));
  pool.parallel_for(shape.kv_heads, [&](int64_t head) {
    Buffer<float> scratch(static_cast<size_t>(n_exact * shape.head_dim));
    unturn_anchors(view, static_cast<int>(head), 0, n_exact, scratch.data(), anchors.data());
  });
  RankedSizes sizes;
  sizes.cover(view);
  std::atomic<int> next{0};
  pool.run([&](Worker) {
    BlockScratch scratch(sizes);
    for (int block = next++; block < made.n_blocks; block = next++) {
      read_block(view, block, scratch);
      for (int head = 0; head < shape.kv_heads; ++head) {
        make_keys(view, anchors.data(), head, scratch);
        store_keys(shape, scratch,
                   made.k.data() + each * static_cast<uint64_t>(block) +
                       each / static_cast<uint64_t>(shape.kv_heads) * static_cast<uint64_t>(head));
      }
    }
  });
  return made;
}

void reconstruct_ranked(const RankedView& view, int head, std::vector<float>* k,
                        std::vector<float>* v) {
  const RankedTokens& tokens = view.layer->tokens();
  const size_t d = static_cast<size_t>(view.layer->shape().head_dim);
  const size_t n_exact = tokens.exact.size();
  std::vector<float> exact_k(n_exact * d), exact_v(n_exact * d);
  kernels::load_keys(view.layer->exact(head), 0, static_cast<int>(n_exact), exact_k.data());
  kernels::load_values(view.layer->exact(head), 0, static_cast<int>(n_exact), exact_v.data());
  k->assign(static_cast<size_t>(tokens.n_tokens) * d, 0);
  v->assign(k->size(), 0);
  for (size_t i = 0; i < n_exact; ++i) {
    const size_t to = static_cast<size_t>(tokens.exact[i]) * d;
    std::copy_n(&exact_k[i * d], d, k->data() + to);
    std::copy_n(&exact_v[i * d], d, v->data() + to);
    if (tokens.anchor_of_exact[i] >= 0)  // read below as references
      view.rotations->turn_back(tokens.exact[i], &exact_k[i * d]);
  }
  const RankedCode code = view.layer->decode(view.sigma);
  const auto mean = [&](const std::vector<float>& rows, size_t i, size_t channel) {
    const auto anchors = code.neighbours_of(i);
    const size_t c = anchors.size();
    if (c == 0) return 0.0f;
    float sum = 0;
    for (size_t n = 0; n < c; ++n) {
      const size_t row = static_cast<size_t>(tokens.exact_of_anchor[anchors[n]]);
      sum = n == 0 ? rows[row * d + channel] : sum + rows[row * d + channel];
    }
    return (c & (c - 1)) == 0 ? sum * (1.0f / static_cast<float>(c)) : sum / static_cast<float>(c);
  };
  const size_t half = static_cast<size_t>(view.key_width());
  const float unscaled = static_cast<float>(1 / view.value_scale);
  std::vector<float> residual(2 * d);
  for (size_t i = 0; i < code.coded.size(); ++i) {
    std::fill(residual.begin(), residual.end(), 0.0f);
    const auto x = code.coefficients_of(i);
    for (size_t j = 0; j < x.size(); ++j) {
      const float* row = view.basis->row(static_cast<int>(j)) + static_cast<size_t>(head) * d;
      for (size_t ch = 0; ch < d; ++ch) {
        residual[ch] += x[j] * row[ch];
        residual[d + ch] += x[j] * row[half + ch];
      }
    }
    float* key = k->data() + static_cast<size_t>(code.coded[i]) * d;
    float* value = v->data() + static_cast<size_t>(code.coded[i]) * d;
    for (size_t ch = 0; ch < d; ++ch) {
      key[ch] = mean(exact_k, i, ch) + residual[ch];
      value[ch] = mean(exact_v, i, ch) + residual[d + ch] * unscaled;
    }
    view.rotations->turn(code.coded[i], key);
  }
}

}  // namespace kvist
