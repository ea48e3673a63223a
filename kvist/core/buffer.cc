// SPDX-License-Identifier: MIT
// Allocation and counting behind Buffer.
#include "kvist/core/buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "kvist/core/error.h"

namespace kvist {
namespace {

constexpr size_t kAlign = 64;
constexpr size_t kMapFrom = 64 * 1024;
constexpr size_t kHugeFrom = 4 * 1024 * 1024;
constexpr size_t kMost = size_t{1} << 46;

std::atomic<uint64_t> live{0};
std::atomic<uint64_t> peak{0};

void count(size_t bytes) {
  const uint64_t now = live.fetch_add(bytes) + bytes;
  uint64_t seen = peak.load();
  while (now > seen && !peak.compare_exchange_weak(seen, now)) {
  }
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
      void* mapped = mmap(nullptr, block.allocated, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      block.data = mapped == MAP_FAILED ? nullptr : mapped;
      if (block.data != nullptr && size >= kHugeFrom) {
        madvise(block.data, block.allocated, MADV_HUGEPAGE);  // a hint: failure costs speed only
      }
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
