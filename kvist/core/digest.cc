// SPDX-License-Identifier: MIT
// The library's streaming interface behind ours.
#include "kvist/core/digest.h"

#include <xxhash.h>

#include "kvist/core/error.h"

namespace kvist {

struct Digest::State {
  State() : hash(XXH64_createState()) { KVIST_ASSERT(hash != nullptr); }
  ~State() { XXH64_freeState(hash); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  XXH64_state_t* hash;
};

Digest::Digest() : state_(std::make_unique<State>()) { XXH64_reset(state_->hash, 0); }
Digest::~Digest() = default;

void Digest::add(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH64_update(state_->hash, bytes.data(), bytes.size());
}
uint64_t Digest::value() const { return XXH64_digest(state_->hash); }

}  // namespace kvist
