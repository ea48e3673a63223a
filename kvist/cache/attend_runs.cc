// SPDX-License-Identifier: MIT
// One attention shared by all workers: how it is cut into jobs, how jobs are handed out, and how
// their softmaxes are merged.
//
// A tile is one KV head and up to 192 / group query positions. Its keys are cut into parts: fixed
// segments of the prefix, then of each sequence's suffix. A job is one part (or a whole tile where
// tiles are many); the worker that finishes a tile's last part merges them in order. Everything
// depends on shapes and lengths only, never on who works.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kvist/cache/coded_reader.h"
#include "kvist/cache/prefix.h"
#include "kvist/cache/ranked_reader.h"
#include "kvist/core/error.h"

namespace kvist {
namespace {

constexpr int kTileRows = 192;  // query rows of a tile, at most, unless a group is larger
constexpr int kSegment = 512;   // tokens of a part, at least
constexpr int kManyRows =
    64;  // calls whose tiles have this many rows cut a run into kManyParts at most
constexpr int kManyParts = 8;
constexpr int kManyTiles = 16;  // with this many tiles of kManyRows each is one job

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

int tile_positions(const KvShape& shape) { return std::max(1, kTileRows / shape.group()); }

// `rows`: of the call's first tile, so that all tiles are cut alike.
int segment_tokens(int n_tokens, int rows) {
  if (rows < kManyRows) return kSegment;
  const int eighth = (n_tokens + kManyParts - 1) / kManyParts;
  return std::max(kSegment, (eighth + kernels::kBlock - 1) / kernels::kBlock * kernels::kBlock);
}

int n_segments(int n_tokens, int rows) {
  const int segment = segment_tokens(n_tokens, rows);
  return (n_tokens + segment - 1) / segment;
}

// Whether a tile is one job.
bool walks_whole_tiles(const KvShape& shape, int n_rows) {
  const int positions = tile_positions(shape);
  const int tiles = (n_rows + positions - 1) / positions * shape.kv_heads;
  return std::min(n_rows, positions) * shape.group() >= kManyRows && tiles >= kManyTiles;
}

// Tokens [begin, end) of a run for the query positions [first, first + n) of a tile.
struct Part {
  kernels::KvRun run;
  int begin = 0, end = 0;
  int first = 0, n = 0;
  int seen = -1;  // tokens of the run that the first position sees, each next one sees one more;
                  // -1: all see all
  int plane = 0;  // which plane of partial results it fills: prefix segments, then suffix segments
};

struct Tile {
  int kv_head = 0;
  int row = 0;  // first query position, in rows of the call
  int n = 0;    // query positions
};

struct Partials {
  float* m;
  float* l;
  float* o;
  kernels::SoftmaxState at(int row, int head_dim) const {
    return {m + row, l + row, o + static_cast<int64_t>(row) * head_dim};
  }
};

}  // namespace

struct AttendWorkspace::State {
  alignas(64) std::atomic<int> next{0};  // job to hand out
  alignas(64) std::atomic<int> left{0};  // workers that have left the call
  std::unique_ptr<std::atomic<int>[]>
      done;  // [rows * kv_heads] parts finished, by the tile's first row and head
  int n_done = 0;
  int n_workers = 0;
  size_t scratch_bytes = 0;   // of one worker
  Buffer<std::byte> scratch;  // [n_workers][scratch_bytes]
  Buffer<float> partials;     // planes of all tiles
};

namespace {

struct Scratch {
  float* q;          // [rows][head_dim] scaled
  int32_t* visible;  // [rows]
  Partials whole;    // [rows]
  std::byte* kernel;
};

int tile_rows(const KvShape& shape, int n_rows) {
  return std::min(n_rows, tile_positions(shape)) * shape.group();
}

size_t scratch_bytes(const KvShape& shape, int n_rows) {
  const size_t rows = static_cast<size_t>(tile_rows(shape, n_rows));
  const size_t d = static_cast<size_t>(shape.head_dim);
  return 2 * aligned(4 * rows * d) + 3 * aligned(4 * rows) +
         aligned(kernels::attend_scratch_bytes(static_cast<int>(rows), shape.head_dim));
}

Scratch carve(std::byte* memory, int rows, int head_dim) {
  const size_t line = aligned(4 * static_cast<size_t>(rows));
  const size_t plane = aligned(4 * static_cast<size_t>(rows) * static_cast<size_t>(head_dim));
  Scratch s;
  s.q = reinterpret_cast<float*>(memory);
  s.whole.o = reinterpret_cast<float*>(memory + plane);
  s.whole.m = reinterpret_cast<float*>(memory + 2 * plane);
  s.whole.l = reinterpret_cast<float*>(memory + 2 * plane + line);
  s.visible = reinterpret_cast<int32_t*>(memory + 2 * plane + 2 * line);
  s.kernel = memory + 2 * plane + 3 * line;
  return s;
}

// Planes of partial results that a row may need: segments of a prefix and a suffix of n_tokens
// together.
int max_planes(int n_tokens, int rows) {
  const int planes = n_tokens / kSegment + 2;
  return rows < kManyRows ? planes : std::min(planes, 2 * kManyParts);
}

size_t partial_floats(const KvShape& shape, int n_rows, int n_tokens) {
  size_t most = 0;
  for (int n = 1; n <= n_rows; ++n) {
    if (walks_whole_tiles(shape, n)) continue;
    const size_t planes = static_cast<size_t>(max_planes(n_tokens, tile_rows(shape, n)));
    const size_t rows = static_cast<size_t>(n * shape.heads);
    most = std::max(most, planes * rows * static_cast<size_t>(shape.head_dim + 2));
  }
  return most;
}

// The call as one worker goes through it: every job in a fixed order, of which it runs those it
// draws.
class Walk {
 public:
  Walk(std::span<const kernels::KvRun> prefix, const KvShape& shape, const AttendCall& call,
       AttendWorkspace::State& state, std::byte* memory)
      : prefix_(prefix),
        shape_(shape),
        call_(call),
        state_(state),
        positions_(tile_positions(shape)),
        rows_(tile_rows(shape, call.n_rows)),
        whole_tiles_(walks_whole_tiles(shape, call.n_rows)),
        planes_(count_planes()),
        scratch_(carve(memory, rows_, shape.head_dim)) {
    KVIST_ASSERT(whole_tiles_ || planes_ <= 1 ||
                 static_cast<size_t>(planes_ * call.n_rows * shape.heads) *
                         static_cast<size_t>(shape.head_dim + 2) <=
                     state.partials.size());
  }

  // Later positions see more tokens: their tiles are the longest jobs and go first.
  void run() {
    drawn_ = state_.next.fetch_add(1, std::memory_order_relaxed);
    const int n_tiles = (call_.n_rows + positions_ - 1) / positions_;
    for (int i = n_tiles - 1; i >= 0; --i) {
      for (int head = 0; head < shape_.kv_heads; ++head) {
        const int row = i * positions_;
        visit({.kv_head = head, .row = row, .n = std::min(positions_, call_.n_rows - row)});
      }
    }
  }

 private:
  // Is the next job in order this worker's?
  bool mine() {
    if (index_++ != drawn_) return false;
    drawn_ = state_.next.fetch_add(1, std::memory_order_relaxed);
    return true;
  }

  template <typename Fn>
  void cut(Part part, int n_tokens, int plane, const Fn& fn) const {
    const int segment = segment_tokens(n_tokens, rows_);
    for (int begin = 0; begin < n_tokens; begin += segment, ++plane) {
      part.begin = begin;
      part.end = std::min(n_tokens, begin + segment);
      part.plane = plane;
      fn(part);
    }
  }

  // fn(part) for the parts of a tile, in the order in which they are merged.
  template <typename Fn>
  void for_each_part(const Tile& tile, const Fn& fn) const {
    int plane = 0;
    if (!prefix_.empty()) {
      const auto& run = prefix_[static_cast<size_t>(tile.kv_head)];
      cut({.run = run, .first = 0, .n = tile.n}, run.n_tokens, 0, fn);
      plane = n_segments(run.n_tokens, rows_);
    }
    for (const SuffixRows& s : call_.suffixes) {
      const int first = std::max(s.row, tile.row);
      const int last = std::min(s.row + s.n_rows, tile.row + tile.n);
      if (first >= last || s.store == nullptr) continue;
      const int seen = s.first_token + first - s.row + 1;
      const Part part{.run = s.store->run(tile.kv_head),
                      .first = first - tile.row,
                      .n = last - first,
                      .seen = seen};
      cut(part, std::min(part.run.n_tokens, seen + part.n - 1), plane, fn);
    }
  }

  void visit(const Tile& tile) {
    int n_parts = 0;
    for_each_part(tile, [&](const Part&) { ++n_parts; });
    if (whole_tiles_ || n_parts <= 1) {
      if (mine()) attend_whole(tile);
      return;
    }
    const Partials base = partials(tile);
    for_each_part(tile, [&](const Part& part) {
      if (!mine()) return;
      const kernels::SoftmaxState to = plane(tile, base, part);
      pack(tile, part.first, part.n);
      kernels::reset(to, part.n * shape_.group(), shape_.head_dim);
      attend_part(part, scratch_.q, to);
      std::atomic<int>& done = state_.done[tile.row * shape_.kv_heads + tile.kv_head];
      if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < n_parts) return;
      done.store(0, std::memory_order_relaxed);
      merge_parts(tile, base);
    });
  }

  // Where a tile's planes lie: m and l of all planes, then o of all planes; tiles before it have as
  // many planes.
  Partials partials(const Tile& tile) const {
    const int64_t rows = static_cast<int64_t>(tile.n) * shape_.group();
    const int64_t rows_before = static_cast<int64_t>(tile.row) * shape_.heads + tile.kv_head * rows;
    float* at = state_.partials.data() + rows_before * planes_ * (shape_.head_dim + 2);
    return {at, at + rows * planes_, at + 2 * rows * planes_};
  }

  int count_planes() const {
    int longest = 0, suffix = 0;
    for (const auto& run : prefix_) longest = std::max(longest, run.n_tokens);
    for (const auto& s : call_.suffixes) suffix = std::max(suffix, s.first_token + s.n_rows);
    return n_segments(longest, rows_) + n_segments(suffix, rows_);
  }

  kernels::SoftmaxState plane(const Tile& tile, const Partials& base, const Part& part) const {
    return base.at((part.plane * tile.n + part.first) * shape_.group(), shape_.head_dim);
  }

  // Scaled queries of the positions [first, first + n) of a tile, [n][group][head_dim], into
  // scratch.
  void pack(const Tile& tile, int first, int n) {
    const int width = shape_.group() * shape_.head_dim;
    float* to = scratch_.q;
    for (int i = 0; i < n; ++i, to += width) {
      const float* q = call_.q + head_offset(tile, first + i);
      for (int c = 0; c < width; ++c) to[c] = q[c] * call_.logit_scale;
    }
  }

  int64_t head_offset(const Tile& tile, int position) const {
    return (static_cast<int64_t>(tile.row + position) * shape_.heads +
            tile.kv_head * shape_.group()) *
           shape_.head_dim;
  }

  // q: the packed queries of the part's positions.
  void attend_part(const Part& part, const float* q, kernels::SoftmaxState to) {
    const int group = shape_.group(), rows = part.n * group;
    const bool all_seen = part.seen < 0 || part.seen >= part.end;
    if (!all_seen)
      for (int r = 0; r < rows; ++r) scratch_.visible[r] = part.seen + r / group;
    kernels::attend(part.run, part.begin, part.end, q, rows, all_seen ? nullptr : scratch_.visible,
                    call_.precision, to, scratch_.kernel);
  }

  void attend_whole(const Tile& tile) {
    const int rows = tile.n * shape_.group(), d = shape_.head_dim;
    pack(tile, 0, tile.n);
    kernels::reset(scratch_.whole.at(0, d), rows, d);
    for_each_part(tile, [&](const Part& part) {
      const int row = part.first * shape_.group();
      attend_part(part, scratch_.q + static_cast<int64_t>(row) * d, scratch_.whole.at(row, d));
    });
    write(tile, scratch_.whole);
  }

  void merge_parts(const Tile& tile, const Partials& base) {
    for_each_part(tile, [&](const Part& part) {
      if (part.plane == 0) return;
      kernels::merge(base.at(part.first * shape_.group(), shape_.head_dim), plane(tile, base, part),
                     part.n * shape_.group(), shape_.head_dim);
    });
    write(tile, base);
  }

  void write(const Tile& tile, const Partials& from) {
    const int group = shape_.group(), d = shape_.head_dim;
    for (int i = 0; i < tile.n; ++i)
      kernels::finish(from.at(i * group, d), group, d, call_.out + head_offset(tile, i), d);
  }

  std::span<const kernels::KvRun> prefix_;
  const KvShape& shape_;
  const AttendCall& call_;
  AttendWorkspace::State& state_;
  int positions_;  // query positions of a tile
  int rows_;       // query rows of the first tile
  bool whole_tiles_;
  int planes_;
  Scratch scratch_;
  int index_ = 0, drawn_ = 0;
};

}  // namespace

AttendWorkspace::AttendWorkspace()
    : state_(std::make_unique<State>()),
      read_(std::make_unique<ReadWorkspace>()),
      ranked_(std::make_unique<RankedWorkspace>()) {}
AttendWorkspace::~AttendWorkspace() = default;

void AttendWorkspace::reserve(const KvShape& shape, int n_rows, int n_tokens, int n_workers) {
  State& s = *state_;
  const size_t bytes = aligned(std::max(s.scratch_bytes, scratch_bytes(shape, n_rows)));
  if (bytes > s.scratch_bytes || n_workers > s.n_workers) {
    s.scratch_bytes = bytes;
    s.n_workers = std::max(s.n_workers, n_workers);
    s.scratch = Buffer<std::byte>(s.scratch_bytes * static_cast<size_t>(s.n_workers));
  }
  const size_t floats = partial_floats(shape, n_rows, n_tokens);
  if (floats > s.partials.size()) s.partials = Buffer<float>(floats);
  const int n_done = n_rows * shape.kv_heads;
  if (n_done > s.n_done) {
    s.done = std::make_unique<std::atomic<int>[]>(static_cast<size_t>(n_done));
    s.n_done = n_done;
  }
  begin();
}

void AttendWorkspace::begin() {
  read_->begin();
  ranked_->begin();
  State& s = *state_;
  s.next = 0;
  s.left = 0;
  for (int i = 0; i < s.n_done; ++i)
    s.done[static_cast<size_t>(i)].store(0, std::memory_order_relaxed);
}

uint64_t AttendWorkspace::allocated_bytes() const {
  return state_->scratch.allocated_bytes() + state_->partials.allocated_bytes() +
         read_->allocated_bytes() + ranked_->allocated_bytes();
}

void attend_runs(std::span<const kernels::KvRun> prefix, const KvShape& shape,
                 const AttendCall& call, AttendWorkspace& workspace, Worker worker) noexcept {
  AttendWorkspace::State& state = workspace.state();
  KVIST_ASSERT(worker.index < state.n_workers && call.n_rows * shape.kv_heads <= state.n_done);
  std::byte* memory =
      state.scratch.data() + state.scratch_bytes * static_cast<size_t>(worker.index);
  Walk(prefix, shape, call, state, memory).run();
  // The last to leave makes the workspace ready for the next call.
  if (state.left.fetch_add(1, std::memory_order_acq_rel) + 1 == worker.count) {
    state.left.store(0, std::memory_order_relaxed);
    state.next.store(0, std::memory_order_release);
  }
}

}  // namespace kvist
