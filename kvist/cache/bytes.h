// SPDX-License-Identifier: MIT
// The one byte ledger: what a cache stores, what it needs beside it, and what the allocator really
// gave.
#pragma once

#include <cstdint>

namespace kvist {

struct Bytes {
  uint64_t payload = 0;  // keys and values, or their codes
  uint64_t metadata =
      0;  // positions, lengths, scales, indices: what this prefix alone needs beside the payload
  uint64_t shared = 0;     // tables and bases that all prefixes of a model share
  uint64_t allocated = 0;  // what the allocator holds for payload and metadata

  Bytes& operator+=(const Bytes& b) {
    payload += b.payload;
    metadata += b.metadata;
    shared += b.shared;
    allocated += b.allocated;
    return *this;
  }
  uint64_t stored() const { return payload + metadata; }
};

}  // namespace kvist
