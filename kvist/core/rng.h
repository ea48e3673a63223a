// SPDX-License-Identifier: MIT
// The one source of random numbers: splitmix64, streams named by (seed, layer, head, stream), the
// same on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

namespace kvist {

constexpr uint64_t splitmix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(splitmix(seed)) {}
  // The generator of one head of one layer (model indices); `stream` keeps independent uses apart.
  Rng(uint64_t seed, uint32_t layer, uint32_t head, uint64_t stream)
      : state_(splitmix(splitmix(splitmix(seed) ^ (uint64_t{layer} << 32 | head)) ^ stream)) {}

  uint64_t next() {
    const uint64_t out = splitmix(state_);
    state_ += 0x9E3779B97F4A7C15ull;
    return out;
  }
  // Uniform in [0, n), n > 0: draws at or above the largest multiple of n are rejected.
  uint64_t below(uint64_t n) {
    const uint64_t excess = (UINT64_MAX % n + 1) % n;  // 2^64 mod n
    uint64_t x = next();
    while (excess != 0 && x >= UINT64_MAX - excess + 1) x = next();
    return x % n;
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // [0, 1)
  double gaussian();  // mean 0, variance 1; Box-Muller

 private:
  uint64_t state_;
  double spare_ = 0;
  bool has_spare_ = false;
};

// Fisher-Yates from the last index down.
template <typename T>
void shuffle(std::span<T> items, Rng& rng) {
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[rng.below(i)]);
}

}  // namespace kvist
