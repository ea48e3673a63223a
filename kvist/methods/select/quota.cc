// SPDX-License-Identifier: MIT
// The competition on packed keys, and the exact rounding of the mixture.
#include "kvist/methods/select/quota.h"

#include <algorithm>
#include <numeric>

#include "kvist/core/buffer.h"
#include "kvist/core/error.h"
#include "kvist/methods/select/topk.h"

namespace kvist {

std::vector<int> global_counts(TensorView<const float, 2> z, int slots) {
  const int64_t heads = z.dim(0), n = z.dim(1), total = heads * slots;
  KVIST_ASSERT(slots >= 0 && slots <= n && heads * n <= int64_t{UINT32_MAX});
  Buffer<uint64_t> keys(static_cast<size_t>(heads * n));
  bool all_zero = true;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < n; ++i) {
      const float raw = z(h, i), value = raw != raw ? 0.0f : raw;
      all_zero &= value == 0.0f;
      const int64_t at = h * n + i;  // orders by head, then position
      keys[static_cast<size_t>(at)] = uint64_t{~ordered(value)} << 32 | static_cast<uint64_t>(at);
    }
  }
  if (all_zero) return std::vector<int>(static_cast<size_t>(heads), slots);
  uint64_t* cut = keys.begin() + total;
  if (cut != keys.end()) std::nth_element(keys.begin(), cut, keys.end());
  std::vector<int> g(static_cast<size_t>(heads), 0);
  for (const uint64_t* key = keys.begin(); key != cut; ++key) {
    ++g[static_cast<size_t>(static_cast<int64_t>(*key & 0xFFFFFFFFu) / n)];
  }
  return g;
}

std::vector<int> mixed_quotas(std::span<const int> g, int slots) {
  std::vector<int> u;
  for (int won : g) u.push_back((won + slots) / 2);
  int left = static_cast<int>(g.size()) * slots - std::accumulate(u.begin(), u.end(), 0);
  for (size_t h = 0; h < g.size() && left > 0; ++h) {
    if ((g[h] + slots) % 2 == 0) continue;
    ++u[h];
    --left;
  }
  return u;
}

}  // namespace kvist
