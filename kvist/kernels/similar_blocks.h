// SPDX-License-Identifier: MIT
// How counting similar keys is cut into blocks of pairs and shared among threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "kvist/core/buffer.h"
#include "kvist/core/thread_pool.h"
#include "kvist/kernels/similar_internal.h"

namespace kvist::kernels::internal {

// What one thread counts.
struct Tally {
  Buffer<int32_t> counts;  // [n_panels * 32]
  CountStats stats;
};

// Keys i in [row_begin, row_end), multiples of 32, by keys j of panels [panel_begin, panel_end).
struct Block {
  int row_begin, row_end;
  int panel_begin, panel_end;
};

// L1 holds a block of panels beside the rows that stream past it.
inline constexpr int kPanelBytes = 16 * 1024;
inline constexpr int kBlockRows = 256;

inline std::vector<Block> blocks_of(int n_panels, int pairs, int ell) {
  const int step = std::max(1, kPanelBytes / (kPanel * pairs * 4));
  std::vector<Block> blocks;
  for (int b = 0; b < n_panels; b += step) {
    const int b_end = std::min(b + step, n_panels);
    for (int r = 0; r < b_end * kPanel && r + ell < b_end * kPanel - 1; r += kBlockRows) {
      blocks.push_back({r, std::min(r + kBlockRows, b_end * kPanel), b, b_end});
    }
  }
  return blocks;
}

inline constexpr int kPackStep = 8;  // panels packed at a time

// Calls pack(begin, end) over all panels, then prepare(), then count(block, tally) over all blocks,
// and adds the tallies up.
template <typename Pack, typename Prepare, typename Count>
void pack_and_count(int n, int pairs, int ell, ThreadPool& pool, const Pack& pack,
                    const Prepare& prepare, const Count& count, int32_t* counts,
                    CountStats* stats) {
  const int n_panels = (n + kPanel - 1) / kPanel;
  pool.parallel_for((n_panels + kPackStep - 1) / kPackStep, [&](int64_t item) {
    const int begin = static_cast<int>(item) * kPackStep;
    pack(begin, std::min(begin + kPackStep, n_panels));
  });
  prepare();
  const std::vector<Block> blocks = blocks_of(n_panels, pairs, ell);
  std::vector<Tally> tallies(static_cast<size_t>(pool.n_threads()));
  std::atomic<size_t> next{0};
  pool.run([&](Worker worker) {
    Tally& tally = tallies[static_cast<size_t>(worker.index)];
    tally.counts = Buffer<int32_t>(static_cast<size_t>(n_panels) * kPanel);
    for (size_t b = next++; b < blocks.size(); b = next++) count(blocks[b], tally);
  });
  CountStats total;
  std::fill_n(counts, n, 0);
  for (const Tally& tally : tallies) {
    for (int i = 0; i < n; ++i) counts[i] += tally.counts[static_cast<size_t>(i)];
    total.tiles += tally.stats.tiles;
    total.rejected += tally.stats.rejected;
    total.borderline += tally.stats.borderline;
  }
  if (stats != nullptr) *stats = total;
}

// False where no pair is far enough apart; counts and stats are then final.
inline bool has_pairs(int n, int ell, int32_t* counts, CountStats* stats) {
  if (n > 0 && ell < n - 1) return true;
  std::fill_n(counts, n, 0);
  if (stats != nullptr) *stats = CountStats();
  return false;
}

}  // namespace kvist::kernels::internal
