// SPDX-License-Identifier: MIT
// Allocation and counting behind Buffer.
#include "kvist/core/buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "kvist/core/error.h"

namespace kvist {
namespace {

constexpr size_t kAlign = 64;
constexpr size_t kMapFrom = 64 * 1024;
constexpr size_t kHuge = 2 * 1024 * 1024;  // a page that the system may map whole
constexpr size_t kMost = size_t{1} << 46;

std::atomic<uint64_t> live{0};
std::atomic<uint64_t> peak{0};

void count(size_t bytes) {
  const uint64_t now = live.fetch_add(bytes) + bytes;
  uint64_t seen = peak.load();
  while (now > seen && !peak.compare_exchange_weak(seen, now)) {
  }
}

// Zeroed pages; where a huge one fits, from the beginning of one on, so that no part of it is lost.
void* map_pages(size_t size) {
  const size_t extra = size >= kHuge ? kHuge : 0;
  void* mapped =
      mmap(nullptr, size + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (extra == 0) return mapped;
  auto* const begin = static_cast<std::byte*>(mapped);
  const size_t before = (kHuge - reinterpret_cast<uintptr_t>(begin) % kHuge) % kHuge;
  if (before > 0) munmap(begin, before);
  munmap(begin + before + size, extra - before);
  madvise(begin + before, size, MADV_HUGEPAGE);  // a hint: failure costs speed only
  return begin + before;
}

}  // namespace

BufferTotals buffer_totals() noexcept { return {live.load(), peak.load()}; }
void reset_buffer_peak() noexcept { peak.store(live.load()); }

namespace internal {

Block allocate_block(size_t size) {
  if (size == 0) return {};
  Block block;
  if (size <= kMost) {
    // What free_block sees is the rounded size, so that decides here too.
    const size_t rounded = (size + kAlign - 1) / kAlign * kAlign;
    if (rounded < kMapFrom) {
      block.allocated = rounded;
      block.data = std::aligned_alloc(kAlign, block.allocated);
      if (block.data != nullptr) std::memset(block.data, 0, block.allocated);
    } else {
      const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
      block.allocated = (size + page - 1) / page * page;
      block.data = map_pages(block.allocated);
    }
  }
  if (block.data == nullptr) {
    throw Error(ErrorKind::exhausted, str("cannot allocate ", size, " bytes"));
  }
  count(block.allocated);
  return block;
}

void free_block(Block block) noexcept {
  if (block.data == nullptr) return;
  live.fetch_sub(block.allocated);
  if (block.allocated < kMapFrom) {
    std::free(block.data);
  } else {
    munmap(block.data, block.allocated);
  }
}

}  // namespace internal
}  // namespace kvist
