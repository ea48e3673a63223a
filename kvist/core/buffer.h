// SPDX-License-Identifier: MIT
// Owning, 64-byte aligned, zero-filled memory whose true size is counted: what a cache says it
// holds, it holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace kvist {

// All Buffers of the process together, in bytes as mapped or allocated. Safe to call from any
// thread.
struct BufferTotals {
  uint64_t live_bytes = 0;
  uint64_t peak_bytes = 0;
};
BufferTotals buffer_totals() noexcept;
void reset_buffer_peak() noexcept;  // peak becomes what is live now

namespace internal {
// A block of at least `size` bytes. From 64 KiB up it is a mapping of its own, so freeing it
// returns the pages at once and untouched pages cost nothing. Throws Error(exhausted) naming the
// size.
struct Block {
  void* data = nullptr;
  size_t allocated = 0;  // bytes really taken
};
Block allocate_block(size_t size);
void free_block(Block block) noexcept;
}  // namespace internal

template <typename T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t n) : block_(internal::allocate_block(n * sizeof(T))), n_(n) {}
  Buffer(Buffer&& other) noexcept
      : block_(std::exchange(other.block_, {})), n_(std::exchange(other.n_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    if (this != &other) {
      internal::free_block(block_);
      block_ = std::exchange(other.block_, {});
      n_ = std::exchange(other.n_, 0);
    }
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { internal::free_block(block_); }

  T* data() noexcept { return static_cast<T*>(block_.data); }
  const T* data() const noexcept { return static_cast<const T*>(block_.data); }
  size_t size() const noexcept { return n_; }
  bool empty() const noexcept { return n_ == 0; }
  T& operator[](size_t i) noexcept { return data()[i]; }
  const T& operator[](size_t i) const noexcept { return data()[i]; }
  T* begin() noexcept { return data(); }
  T* end() noexcept { return data() + n_; }
  const T* begin() const noexcept { return data(); }
  const T* end() const noexcept { return data() + n_; }
  std::span<T> span() noexcept { return {data(), n_}; }
  std::span<const T> span() const noexcept { return {data(), n_}; }
  uint64_t size_bytes() const noexcept { return n_ * sizeof(T); }
  uint64_t allocated_bytes() const noexcept { return block_.allocated; }

 private:
  internal::Block block_;
  size_t n_ = 0;
};

}  // namespace kvist
