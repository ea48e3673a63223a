// SPDX-License-Identifier: MIT
// A short hash of many bytes, to see whether they changed. Not for names that must be the same
// everywhere: those are SHA-256.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kvist/core/buffer.h"

namespace kvist {

// XXH64 of what was added, in order.
class Digest {
 public:
  Digest();
  ~Digest();
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;

  void add(std::span<const std::byte> bytes);
  template <typename T>
  void add(std::span<const T> values) {
    add(std::as_bytes(values));
  }
  template <typename T>
  void add(const Buffer<T>& buffer) {
    add(std::as_bytes(buffer.span()));
  }
  uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvist
