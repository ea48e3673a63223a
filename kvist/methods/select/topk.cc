// SPDX-License-Identifier: MIT
// Ranking by packed 128-bit keys: all ties are inside the key, so any selection algorithm gives the
// same set.
#include "kvist/methods/select/topk.h"

#include <algorithm>
#include <compare>

#include "kvist/core/buffer.h"
#include "kvist/core/error.h"

namespace kvist {
namespace {

// The smaller key is the better candidate.
struct Key {
  uint64_t score;  // complement of the ordered score
  uint64_t rest;   // complement of the ordered tiebreak, then the position
  friend auto operator<=>(const Key&, const Key&) = default;
  int32_t position() const { return static_cast<int32_t>(rest & 0xFFFFFFFFu); }
};

Buffer<Key> packed(const Ranking& ranking) {
  const size_t n = ranking.scores.size();
  KVIST_ASSERT(ranking.tiebreak.empty() || ranking.tiebreak.size() == n);
  Buffer<Key> keys(n);
  for (size_t i = 0; i < n; ++i) {
    const uint32_t tie = ranking.tiebreak.empty() ? 0 : ~ordered(ranking.tiebreak[i]);
    keys[i] = {~ordered(ranking.scores[i]),
               uint64_t{tie} << 32 | static_cast<uint32_t>(ranking.first + static_cast<int>(i))};
  }
  return keys;
}

std::vector<int32_t> positions(const Key* begin, const Key* end) {
  std::vector<int32_t> out;
  out.reserve(static_cast<size_t>(end - begin));
  for (const Key* key = begin; key != end; ++key) out.push_back(key->position());
  return out;
}

}  // namespace

std::vector<int32_t> top_positions(const Ranking& ranking, int k) {
  Buffer<Key> keys = packed(ranking);
  KVIST_ASSERT(k >= 0 && static_cast<size_t>(k) <= keys.size());
  Key* cut = keys.begin() + k;
  if (cut != keys.end()) std::nth_element(keys.begin(), cut, keys.end());
  std::vector<int32_t> out = positions(keys.begin(), cut);
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<int32_t> ranked_positions(const Ranking& ranking) {
  Buffer<Key> keys = packed(ranking);
  std::sort(keys.begin(), keys.end());
  return positions(keys.begin(), keys.end());
}

std::vector<int32_t> survivors(std::span<const double> scores, int64_t n_pruned) {
  KVIST_ASSERT(n_pruned >= 0 && static_cast<size_t>(n_pruned) <= scores.size());
  Buffer<Key> keys(scores.size());
  for (size_t i = 0; i < scores.size(); ++i) keys[i] = {ordered(scores[i]), i};
  Key* cut = keys.begin() + n_pruned;
  if (cut != keys.end()) std::nth_element(keys.begin(), cut, keys.end());
  std::vector<int32_t> kept = positions(cut, keys.end());
  std::sort(kept.begin(), kept.end());
  return kept;
}

}  // namespace kvist
