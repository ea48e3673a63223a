// SPDX-License-Identifier: MIT
// The stages of a pass over one coded layer; inside a stage the workers draw jobs, and all meet
// before the next begins.
//
//   queries   scaled rows by KV head; anchors before RoPE          job: KV head, 64 exact tokens
//   depths    of rows of the basis, where a query chooses them     job: one
//   exact     logits of exact tokens; dense suffixes               job: KV head, 64 exact tokens
//   coded     keys block by block, online softmax, sums            job: segment of blocks
//   weights   of exact tokens, with anchors' shares                job: 64 exact tokens
//   output    values of exact tokens, sums through the basis       job: KV head
//
// A score row is (KV head, query row, head of its group). Segments begin with the largest exact
// logit as their maximum, which the sink nearly always holds: sums are seldom rescaled.
#include "kvist/cache/ranked_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "kvist/cache/coded_reader.h"
#include "kvist/cache/prefix.h"
#include "kvist/core/amx_state.h"
#include "kvist/core/error.h"
#include "kvist/core/meeting.h"
#include "kvist/methods/rank/row_depths.h"

namespace kvist {
namespace {

constexpr int kBlock = RankedLayer::kBlock;
constexpr int kPassRows = 16;    // query rows of a pass
constexpr int kSegments = 8;     // of the coded blocks, at most
constexpr int kLeastBlocks = 4;  // of a segment
constexpr float kNegligible = 25;
constexpr float kUnseen = -std::numeric_limits<float>::infinity();

int round_up(int n, int to) { return (n + to - 1) / to * to; }
int blocks_of(int n) { return (n + kBlock - 1) / kBlock; }
int segment_blocks(int n_blocks) {
  return std::max(kLeastBlocks, (n_blocks + kSegments - 1) / kSegments);
}

// What one segment of the coded tokens adds up to.
struct Segment {
  Buffer<float> m, l;       // [score rows]
  Buffer<float> sums;       // [chunks][score rows][32] weighted coefficients
  Buffer<float> shares;     // [anchors][padded rows] weights that anchors have through others
  int64_t coded_bytes = 0;  // read
  int64_t blocks = 0, skipped = 0;  // of a KV head each
};

// Whether trying to skip a head's next block is worth it: each failure in a row after the first
// doubles the blocks that are read without trying.
struct SkipHope {
  int failures = 0, wait = 0;
  bool due() {
    if (wait == 0) return true;
    --wait;
    return false;
  }
  void tried(bool skipped) {
    failures = skipped ? 0 : std::min(failures + 1, 4);
    wait = failures == 0 ? 0 : (1 << (failures - 1)) - 1;
  }
};

struct Scratch {
  BlockScratch block;
  std::vector<SkipHope> hopes;   // [kv_heads] of the segment that is read
  Buffer<float> s;               // [score rows][64]
  Buffer<float> more;            // the same, of what coefficients add
  Buffer<float> factor;          // [padded rows]
  Buffer<float> norms;           // [score rows] of queries
  Buffer<float> largest;         // [score rows] logits
  Buffer<float> keys;            // [64][head_dim] exact keys
  std::vector<int32_t> visible;  // [rows of a KV head]
  std::vector<uint8_t> depth;    // [rows of a KV head]
  Buffer<std::byte> attend;
};

}  // namespace

struct RankedWorkspace::State {
  Meeting meeting;
  RankedSizes sizes;
  int rows = 0;  // query rows of a pass
  int n_workers = 0;
  Buffer<float> anchors;             // [anchors][kv_heads * head_dim] before RoPE
  Buffer<float> q;                   // [score rows][head_dim] scaled
  Buffer<float> alpha;               // [score rows][exact slots] logits, then weights
  Buffer<float> exact_m, exact_l;    // [exact blocks][score rows]
  Buffer<float> suffix_m, suffix_l;  // [score rows]
  Buffer<float> suffix_o;            // [score rows][head_dim]
  Buffer<float> sums;                // [chunks][score rows][32]
  std::vector<Segment> segments;
  std::vector<Scratch> scratch;  // [workers]
  // Of a query that chooses what it reads.
  Buffer<float> channels;     // [kv_heads * head_dim]
  Buffer<float> row_weights;  // [basis rows]
  Buffer<uint8_t> row_depths;
  DepthWorkspace depths;
  int64_t asked_bits = 0;

  int score_rows() const { return rows * sizes.shape.heads; }
  int exact_slots() const { return round_up(std::max(sizes.n_exact, 1), kBlock); }
};

namespace {

class Pass {
 public:
  Pass(const RankedView& view, const AttendCall& call, RankedWorkspace::State& state, Worker worker)
      : view_(view_for(view, call, state)),
        layer_(*view.layer),
        shape_(view.layer->shape()),
        call_(call),
        state_(state),
        worker_(worker),
        scratch_(state.scratch[static_cast<size_t>(worker.index)]),
        slots_(state.exact_slots()),
        n_exact_(static_cast<int>(layer_.tokens().exact.size())),
        n_anchors_(static_cast<int>(layer_.tokens().anchors.size())),
        n_chunks_((view.basis->n_rows + kRankChunk - 1) / kRankChunk),
        per_segment_(segment_blocks(layer_.n_blocks())),
        n_segments_((layer_.n_blocks() + per_segment_ - 1) / per_segment_) {}

  void run(int row, int n_rows) {
    row_ = row, n_ = n_rows;
    group_rows_ = n_ * shape_.group();
    rows_ = n_ * shape_.heads;
    padded_ = round_up(rows_, 16);
    const int exact_jobs = blocks_of(n_exact_) * shape_.kv_heads;
    const bool makes_keys = !view_.is_expanded(layer_.n_blocks() - 1);
    const int unturned = row == 0 && makes_keys ? exact_jobs : 0;
    each(shape_.kv_heads + unturned, [&](int job) {
      job < shape_.kv_heads ? take_queries(job) : unturn(job - shape_.kv_heads);
    });
    if (view_.read) each(1, [&](int) { choose_depths(); });
    const int suffix_jobs = static_cast<int>(call_.suffixes.size()) * shape_.kv_heads;
    each(suffix_jobs + exact_jobs,
         [&](int job) { job < suffix_jobs ? attend_suffix(job) : score_exact(job - suffix_jobs); });
    each(n_segments_, [&](int segment) { read_segment(segment); });
    find_largest();
    each(blocks_of(n_exact_), [&](int block) { weigh_exact(block); });
    each(shape_.kv_heads, [&](int head) { finish(head); });
    if (worker_.index == 0 && call_.trace != nullptr) note(call_.trace->ranked);
  }

 private:
  template <typename Fn>
  void each(int n, const Fn& job) {
    state_.meeting.each(n, worker_, job);
  }

  int d() const { return shape_.head_dim; }
  float* q(int row) const { return state_.q.data() + int64_t{row} * d(); }
  float* alpha(int row) const { return state_.alpha.data() + int64_t{row} * slots_; }
  int exact_tokens(int block) const { return std::min(kBlock, n_exact_ - block * kBlock); }

  void take_queries(int head) {
    float* to = q(head * group_rows_);
    const int width = shape_.group() * d();
    for (int i = 0; i < n_; ++i) {
      const float* from =
          call_.q + (int64_t{row_ + i} * shape_.heads + head * shape_.group()) * d();
      for (int c = 0; c < width; ++c) *to++ = from[c] * call_.logit_scale;
    }
    const int first = head * group_rows_;
    std::fill_n(state_.suffix_m.data() + first, group_rows_, kUnseen);
    std::fill_n(state_.suffix_l.data() + first, group_rows_, 0.0f);
    std::fill_n(state_.suffix_o.data() + int64_t{first} * d(), group_rows_ * d(), 0.0f);
  }

  void unturn(int job) {
    const int block = job / shape_.kv_heads, head = job % shape_.kv_heads;
    unturn_anchors(view_, head, block * kBlock, block * kBlock + exact_tokens(block),
                   scratch_.keys.data(), state_.anchors.data());
  }

  void choose_depths() {
    const auto tokens = layer_.row_tokens();
    const std::span<float> weights = state_.row_weights.span().first(tokens.size());
    row_importance(*view_.basis,
                   {q(0), shape_.kv_heads, shape_.group(), d(), view_.rotations->n_frequencies(),
                    view_.rotations->adjacent()},
                   state_.channels.span(), weights);
    for (size_t j = 0; j < weights.size(); ++j) weights[j] *= layer_.row_energies()[j];
    state_.asked_bits =
        choose_row_depths(weights, tokens, layer_.format().bits, read_budget(),
                          state_.row_depths.span().first(tokens.size()), state_.depths);
  }
  int64_t read_budget() const { return floor_mul(layer_.rank_sum(), *view_.read); }

  void attend_suffix(int job) {
    const SuffixRows& s = call_.suffixes[static_cast<size_t>(job / shape_.kv_heads)];
    const int head = job % shape_.kv_heads;
    const int first = std::max(s.row, row_), last = std::min(s.row + s.n_rows, row_ + n_);
    if (first >= last || s.store == nullptr) return;
    const int rows = (last - first) * shape_.group();
    const int at = head * group_rows_ + (first - row_) * shape_.group();
    for (int r = 0; r < rows; ++r)
      scratch_.visible[static_cast<size_t>(r)] =
          s.first_token + first - s.row + 1 + r / shape_.group();
    const kernels::KvRun run = s.store->run(head);
    kernels::attend(run, 0, run.n_tokens, q(at), rows, scratch_.visible.data(), call_.precision,
                    {state_.suffix_m.data() + at, state_.suffix_l.data() + at,
                     state_.suffix_o.data() + int64_t{at} * d()},
                    scratch_.attend.data());
  }

  void score_exact(int job) {
    const int block = job / shape_.kv_heads, head = job % shape_.kv_heads;
    const int n = exact_tokens(block), at = head * group_rows_;
    const kernels::KvRun run = layer_.exact(head);
    const void* k =
        static_cast<const std::byte*>(run.k) + int64_t{block} * kBlock * d() * size_of(shape_.type);
    Scalar type = shape_.type;
    if (n < kBlock) {  // the last block has no room for lanes behind its tokens
      kernels::load_keys(run, block * kBlock, block * kBlock + n, scratch_.keys.data());
      kernels::columns_from_rows(scratch_.keys.data(), d(), n, d(), scratch_.block.block.data());
      k = scratch_.block.block.data();
      type = Scalar::f32;
    }
    kernels::score_block(k, type, d(), q(at), group_rows_, alpha(at) + block * kBlock, slots_);
    for (int r = at; r < at + group_rows_; ++r) {
      const float* s = alpha(r) + block * kBlock;
      state_.exact_m[static_cast<size_t>(block * rows_ + r)] = *std::max_element(s, s + n);
    }
  }

  float largest_exact(int row) const {
    float m = kUnseen;
    for (int block = 0; block < blocks_of(n_exact_); ++block)
      m = std::max(m, state_.exact_m[static_cast<size_t>(block * rows_ + row)]);
    return m;
  }

  void read_segment(int index) {
    Segment& to = state_.segments[static_cast<size_t>(index)];
    for (int r = 0; r < rows_; ++r) {
      to.m[static_cast<size_t>(r)] = largest_exact(r);
      to.l[static_cast<size_t>(r)] = 0;
    }
    std::fill_n(to.sums.data(), int64_t{n_chunks_} * rows_ * kRankChunk, 0.0f);
    std::fill_n(to.shares.data(), int64_t{n_anchors_} * padded_, 0.0f);
    to.coded_bytes = to.blocks = to.skipped = 0;
    if (view_.skip) measure_queries();
    std::fill(scratch_.hopes.begin(), scratch_.hopes.end(), SkipHope());
    scratch_.block.page.forget();
    std::optional<KeepAmxState> tiles;
    if (view_.key_tiles != nullptr) {
      tiles.emplace();
      kernels::configure_basis_tiles();
    }
    const int end = std::min(layer_.n_blocks(), (index + 1) * per_segment_);
    for (int block = index * per_segment_; block < end; ++block) read(block, to);
  }

  void read(int block, Segment& to) {
    const int n = layer_.block_tokens(block);
    read_block(view_, block, scratch_.block);
    score(block, to);
    float* factor = scratch_.factor.data();
    if (kernels::weigh_block(scratch_.s.data(), kBlock, rows_, n, to.m.data(), to.l.data(), factor))
      rescale(to);
    const float unit = layer_.unit();
    for (int k = 0; k < scratch_.block.n_chunks; ++k)
      kernels::add_coefficients(scratch_.s.data(), kBlock, rows_,
                                scratch_.block.chunks[static_cast<size_t>(k)], unit,
                                to.sums.data() + int64_t{k} * rows_ * kRankChunk);
    kernels::add_shares(scratch_.s.data(), kBlock, rows_, anchors_of(view_, scratch_.block), n,
                        to.shares.data(), padded_);
    to.coded_bytes += coded_bytes(block);
    to.blocks += shape_.kv_heads;
  }

  // What reading a block touches; the first of a page of tree codes answers for the page.
  int64_t coded_bytes(int block) const {
    if (layer_.format().tree() && block % RankedLayer::kPageBlocks != 0) return 0;
    return view_.row_depths == nullptr
               ? std::ssize(layer_.block_bytes(block))
               : layer_.touched_bytes(scratch_.block.page, view_.row_depths);
  }

  // Logits of a block into scratch_.s.
  void score(int block, Segment& to) {
    if (view_.is_expanded(block)) {
      for (int head = 0; head < shape_.kv_heads; ++head)
        score_head(head, view_.expanded->block(shape_, block, head), shape_.type, scratch_.s);
      return;
    }
    BlockScratch& b = scratch_.block;
    for (int head = 0; head < shape_.kv_heads; ++head) {
      if (!view_.skip || !scratch_.hopes[static_cast<size_t>(head)].due()) {
        make_keys(view_, state_.anchors.data(), head, b);
        score_rows(head, scratch_.s);
        continue;
      }
      // Logits of the anchors' means; what coefficients add only where it can matter.
      make_means(view_, state_.anchors.data(), head, b);
      score_rows(head, scratch_.s);
      const int64_t at = int64_t{head} * group_rows_ * kBlock;
      const bool skipped = negligible(block, head, to);
      scratch_.hopes[static_cast<size_t>(head)].tried(skipped);
      if (skipped) {
        std::fill_n(scratch_.s.data() + at, group_rows_ * kBlock, kUnseen);
        ++to.skipped;
        continue;
      }
      make_residuals(view_, head, b);
      turn_residuals(view_, b);
      score_rows(head, scratch_.more);
      kernels::add_scaled(scratch_.more.data() + at, int64_t{group_rows_} * kBlock, 1,
                          scratch_.s.data() + at);
    }
  }

  void score_head(int head, const void* k, Scalar type, Buffer<float>& s) {
    const int at = head * group_rows_;
    kernels::score_block(k, type, d(), q(at), group_rows_, s.data() + int64_t{at} * kBlock, kBlock);
  }

  // Of the block's rows.
  void score_rows(int head, Buffer<float>& s) {
    BlockScratch& b = scratch_.block;
    kernels::columns_from_rows(b.rows.data(), d(), static_cast<int>(b.turns.size()), d(),
                               b.block.data());
    score_head(head, b.block.data(), Scalar::f32, s);
  }

  // Rotations keep lengths: a logit is within |q| |residual| of its anchors' own.
  bool negligible(int block, int head, const Segment& to) const {
    const f16* norm = layer_.key_norms(block) + head;
    float longest[kBlock];
    const int n = layer_.block_tokens(block);
    for (int t = 0; t < n; ++t) longest[t] = to_float(norm[t * shape_.kv_heads]);
    for (int r = head * group_rows_; r < (head + 1) * group_rows_; ++r) {
      const float* s = scratch_.s.data() + int64_t{r} * kBlock;
      const float length = scratch_.norms[static_cast<size_t>(r)];
      const float least = to.m[static_cast<size_t>(r)] - kNegligible;
      for (int t = 0; t < n; ++t)
        if (s[t] + length * longest[t] >= least) return false;
    }
    return true;
  }

  void measure_queries() {
    for (int r = 0; r < rows_; ++r) {
      double sum = 0;
      for (int c = 0; c < d(); ++c) sum += double{q(r)[c]} * double{q(r)[c]};
      scratch_.norms[static_cast<size_t>(r)] = static_cast<float>(std::sqrt(sum) * (1 + 1e-6));
    }
  }

  void rescale(Segment& to) {
    float* factor = scratch_.factor.data();
    std::fill(factor + rows_, factor + padded_, 1.0f);
    kernels::scale_columns(to.shares.data(), n_anchors_, padded_, factor);
    for (int r = 0; r < rows_; ++r) {
      if (factor[r] == 1) continue;
      for (int k = 0; k < n_chunks_; ++k)
        kernels::scale(to.sums.data() + (int64_t{k} * rows_ + r) * kRankChunk, kRankChunk,
                       factor[r]);
    }
  }

  // The largest logits of all rows anywhere, each worker for itself.
  void find_largest() {
    for (int row = 0; row < rows_; ++row) {
      const size_t r = static_cast<size_t>(row);
      float m = std::max(largest_exact(row), state_.suffix_m[r]);
      for (int i = 0; i < n_segments_; ++i)
        m = std::max(m, state_.segments[static_cast<size_t>(i)].m[r]);
      scratch_.largest[r] = m;
    }
  }
  float largest(int row) const { return scratch_.largest[static_cast<size_t>(row)]; }

  // Weights of 64 exact tokens: their own, and what reaches anchors through coded ones.
  void weigh_exact(int block) {
    const int first = block * kBlock, n = exact_tokens(block);
    for (int r = 0; r < rows_; ++r)
      state_.exact_l[static_cast<size_t>(block * rows_ + r)] =
          kernels::exponentials_below(alpha(r) + first, n, largest(r));
    // Anchors among them follow each other: their shares are rows side by side.
    const auto& anchor_of = layer_.tokens().anchor_of_exact;
    int first_anchor = 0, n_anchors = 0;
    for (int i = 0; i < n; ++i) {
      const int anchor = anchor_of[static_cast<size_t>(first + i)];
      if (anchor < 0) continue;
      if (n_anchors++ == 0) first_anchor = anchor;
    }
    float* factor = scratch_.factor.data();
    float* sum = scratch_.s.data();  // [n_anchors][padded rows]
    std::fill_n(sum, int64_t{n_anchors} * padded_, 0.0f);
    for (int s = 0; s < n_segments_ && n_anchors > 0; ++s) {
      const Segment& from = state_.segments[static_cast<size_t>(s)];
      std::fill(factor + rows_, factor + padded_, 0.0f);
      for (int r = 0; r < rows_; ++r)
        factor[r] = std::exp(from.m[static_cast<size_t>(r)] - largest(r));
      kernels::add_scaled_columns(from.shares.data() + int64_t{first_anchor} * padded_, n_anchors,
                                  padded_, factor, sum);
    }
    for (int i = 0; i < n; ++i) {
      if (anchor_of[static_cast<size_t>(first + i)] < 0) continue;
      for (int r = 0; r < rows_; ++r) alpha(r)[first + i] += sum[r];
      sum += padded_;
    }
  }

  void finish(int head) {
    const int at = head * group_rows_;
    float* o = state_.suffix_o.data() + int64_t{at} * d();
    for (int r = at; r < at + group_rows_; ++r) {
      const float m = largest(r);
      const size_t row = static_cast<size_t>(r);
      const float old = std::exp(state_.suffix_m[row] - m);
      float& l = state_.suffix_l[row];
      l *= old;
      kernels::scale(o + int64_t{r - at} * d(), d(), old);
      for (int block = 0; block < blocks_of(n_exact_); ++block)
        l += state_.exact_l[static_cast<size_t>(block * rows_ + r)];
      for (int k = 0; k < n_chunks_; ++k) std::fill_n(sums(k, r), kRankChunk, 0.0f);
      for (int s = 0; s < n_segments_; ++s) {
        const Segment& from = state_.segments[static_cast<size_t>(s)];
        const float factor = std::exp(from.m[row] - m);
        l += from.l[row] * factor;
        for (int k = 0; k < n_chunks_; ++k)
          kernels::add_scaled(from.sums.data() + (int64_t{k} * rows_ + r) * kRankChunk, kRankChunk,
                              factor * unscaled(), sums(k, r));
      }
    }
    kernels::add_value_rows(layer_.exact(head).v, shape_.type, d(), n_exact_, alpha(at), slots_,
                            group_rows_, o);
    project(head, o);
    for (int r = at; r < at + group_rows_; ++r) {
      const float l = state_.suffix_l[static_cast<size_t>(r)];
      float* out = call_.out + place(head, r - at);
      for (int c = 0; c < d(); ++c) out[c] = o[int64_t{r - at} * d() + c] / l;
    }
  }

  float unscaled() const { return static_cast<float>(1 / view_.value_scale); }
  float* sums(int chunk, int row) const {
    return state_.sums.data() + (int64_t{chunk} * rows_ + row) * kRankChunk;
  }
  // Of score row `i` of a KV head, in call_.out.
  int64_t place(int head, int i) const {
    const int group = shape_.group();
    return (int64_t{row_ + i / group} * shape_.heads + head * group + i % group) * d();
  }

  // o += sums times the value columns of the basis.
  void project(int head, float* o) {
    const int64_t column = view_.key_width() + int64_t{head} * d();
    for (int k = 0; k < n_chunks_; ++k) {
      const int depth = std::min(kRankChunk, view_.basis->n_rows - k * kRankChunk);
      std::fill_n(scratch_.depth.data(), group_rows_, static_cast<uint8_t>(depth));
      kernels::add_basis_rows(sums(k, head * group_rows_), scratch_.depth.data(), group_rows_,
                              {view_.basis->row(k * kRankChunk) + column, view_.basis->width, d()},
                              o, d());
    }
  }

  void note(RankedCounts& trace) const {
    const Bytes bytes = layer_.bytes();
    const int expanded = view_.expanded == nullptr ? 0 : view_.expanded->n_blocks;
    trace.rows += n_;
    ++trace.passes;
    trace.exact_bytes +=
        static_cast<int64_t>(n_exact_) * static_cast<int64_t>(shape_.token_bytes());
    trace.metadata_bytes += static_cast<int64_t>(bytes.metadata);
    const int64_t stored_bits = layer_.rank_sum() * layer_.format().bits;
    trace.coefficients += layer_.rank_sum();
    trace.asked_bits += view_.read ? state_.asked_bits : stored_bits;
    trace.budget_bits += view_.read ? read_budget() : stored_bits;
    const int64_t columns =
        expanded < layer_.n_blocks() ? view_.basis->width : view_.basis->width - view_.key_width();
    trace.basis_bytes += int64_t{view_.basis->n_rows} * columns * int64_t{sizeof(float)};
    trace.expanded_bytes += static_cast<int64_t>(ExpandedKeys::block_bytes(shape_)) *
                            std::min(expanded, layer_.n_blocks());
    for (int s = 0; s < n_segments_; ++s) {
      const Segment& from = state_.segments[static_cast<size_t>(s)];
      trace.coded_bytes += from.coded_bytes;
      trace.blocks += from.blocks;
      trace.skipped += from.skipped;
    }
  }

  static RankedView view_for(RankedView view, const AttendCall& call,
                             const RankedWorkspace::State& state) {
    if (view.read) view.row_depths = state.row_depths.data();
    if (call.precision == kernels::Precision::exact || !kernels::has_basis_tiles())
      view.key_tiles = nullptr;
    return view;
  }

  const RankedView view_;
  const RankedLayer& layer_;
  const KvShape& shape_;
  const AttendCall& call_;
  RankedWorkspace::State& state_;
  Worker worker_;
  Scratch& scratch_;
  int slots_, n_exact_, n_anchors_, n_chunks_, per_segment_, n_segments_;
  int row_ = 0, n_ = 0;                         // query rows of this pass
  int group_rows_ = 0, rows_ = 0, padded_ = 0;  // score rows of a KV head, of all, in lanes
};

}  // namespace

RankedWorkspace::RankedWorkspace() : state_(std::make_unique<State>()) {}
RankedWorkspace::~RankedWorkspace() = default;

void RankedWorkspace::reserve(const RankedSizes& sizes, int n_rows, int n_workers) {
  State& s = *state_;
  begin();
  n_rows = std::clamp(n_rows, 1, kPassRows);
  if (s.sizes.holds(sizes) && n_rows <= s.rows && n_workers <= s.n_workers) return;
  s.sizes = sizes;
  s.rows = std::max(n_rows, s.rows);
  s.n_workers = std::max(n_workers, s.n_workers);
  const KvShape& shape = sizes.shape;
  const size_t d = static_cast<size_t>(shape.head_dim);
  const size_t rows = static_cast<size_t>(s.score_rows());
  const size_t padded = static_cast<size_t>(round_up(s.score_rows(), 16));
  const size_t exact_blocks = static_cast<size_t>(blocks_of(sizes.n_exact));
  const size_t sums = static_cast<size_t>(sizes.chunks()) * rows * kRankChunk;
  s.anchors = Buffer<float>(static_cast<size_t>(sizes.n_anchors * sizes.key_width()));
  s.q = Buffer<float>(rows * d);
  s.alpha = Buffer<float>(rows * static_cast<size_t>(s.exact_slots()));
  s.exact_m = Buffer<float>(exact_blocks * rows);
  s.exact_l = Buffer<float>(exact_blocks * rows);
  s.suffix_m = Buffer<float>(rows);
  s.suffix_l = Buffer<float>(rows);
  s.suffix_o = Buffer<float>(rows * d);
  s.sums = Buffer<float>(sums);
  s.channels = Buffer<float>(static_cast<size_t>(sizes.key_width()));
  s.row_weights = Buffer<float>(static_cast<size_t>(sizes.basis_rows));
  s.row_depths = Buffer<uint8_t>(static_cast<size_t>(sizes.basis_rows));
  s.depths.reserve(sizes.basis_rows);
  s.segments.clear();
  const int each = segment_blocks(sizes.n_blocks);
  // A layer with fewer blocks may be cut into as many segments as one with the most.
  const int n_segments = std::min(kSegments, (sizes.n_blocks + kLeastBlocks - 1) / kLeastBlocks);
  KVIST_ASSERT(n_segments * each >= sizes.n_blocks);
  for (int i = 0; i < n_segments; ++i) {
    Segment& segment = s.segments.emplace_back();
    segment.m = Buffer<float>(rows);
    segment.l = Buffer<float>(rows);
    segment.sums = Buffer<float>(sums);
    segment.shares = Buffer<float>(static_cast<size_t>(sizes.n_anchors) * padded);
  }
  s.scratch.clear();
  const int group_rows = s.rows * shape.group();
  for (int i = 0; i < s.n_workers; ++i) {
    Scratch& scratch = s.scratch.emplace_back();
    scratch.block = BlockScratch(sizes);
    scratch.hopes.resize(static_cast<size_t>(shape.kv_heads));
    scratch.s = Buffer<float>(padded * kBlock);
    scratch.more = Buffer<float>(padded * kBlock);
    scratch.factor = Buffer<float>(padded);
    scratch.norms = Buffer<float>(rows);
    scratch.largest = Buffer<float>(rows);
    scratch.keys = Buffer<float>(d * kBlock);
    scratch.visible.resize(static_cast<size_t>(group_rows));
    scratch.depth.resize(static_cast<size_t>(group_rows));
    scratch.attend = Buffer<std::byte>(kernels::attend_scratch_bytes(group_rows, shape.head_dim));
  }
}

void RankedWorkspace::begin() { state_->meeting.reset(); }

uint64_t RankedWorkspace::allocated_bytes() const {
  const State& s = *state_;
  uint64_t sum = 0;
  const auto add = [&](const auto&... buffer) {
    sum += (uint64_t{0} + ... + buffer.allocated_bytes());
  };
  add(s.anchors, s.q, s.alpha, s.exact_m, s.exact_l, s.suffix_m, s.suffix_l, s.suffix_o, s.sums,
      s.channels, s.row_weights, s.row_depths, s.depths.items, s.depths.keys, s.depths.counts);
  for (const Segment& segment : s.segments) add(segment.m, segment.l, segment.sums, segment.shares);
  for (const Scratch& scratch : s.scratch)
    add(scratch.block, scratch.s, scratch.more, scratch.factor, scratch.norms, scratch.largest,
        scratch.keys, scratch.attend);
  return sum;
}

void read_ranked(const RankedView& view, const AttendCall& call, RankedWorkspace& workspace,
                 Worker worker) noexcept {
  RankedWorkspace::State& state = workspace.state();
  KVIST_ASSERT(worker.index < state.n_workers);
  Pass pass(view, call, state, worker);
  const int rows = view.read ? 1 : kPassRows;
  for (int row = 0; row < call.n_rows; row += rows)
    pass.run(row, std::min(rows, call.n_rows - row));
}

}  // namespace kvist
