// SPDX-License-Identifier: MIT
// The stages of a coded layer call. Each row goes through them in turn; inside a stage the workers
// draw jobs from a counter, and all meet before the next stage begins.
//
//   queries   q' = U_K q, their key weights and constants          job: query head
//   keys      the key schedule                                     worker 0
//   weights   what its channels multiply                           job: KV head
//   logits    logits and page exponentials                         job: KV head, 4 pages
//   totals    factor of each page                                  job: KV head
//   attention attention weights, value weights                     job: KV head, 4 pages
//   values    the value schedule                                   worker 0
//   sums      weighted values of a segment                         job: KV head, segment
//   output    segments in order, mu + sigma, U_V^T                 job: query head
#include "kvist/cache/coded_reader.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "kvist/cache/prefix.h"
#include "kvist/core/error.h"
#include "kvist/kernels/plane_keys.h"
#include "kvist/kernels/plane_values.h"
#include "kvist/kernels/read_softmax.h"
#include "kvist/methods/read/schedule.h"

namespace kvist {
namespace {

using kernels::kPageTokens;
constexpr int kBatch = 4;         // pages of a job
constexpr int kSegments = 16;     // of values, at most, of a prefix and of a suffix
constexpr int kMinSegment = 512;  // tokens

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }
int round_up(int n, int to) { return (n + to - 1) / to * to; }
int pages_of(int n_tokens) { return (n_tokens + kPageTokens - 1) / kPageTokens; }

int segment_tokens(int n_tokens) {
  return std::max(kMinSegment,
                  round_up((n_tokens + kSegments - 1) / kSegments, kernels::kValueChunk));
}

// All workers of a call meet here; the last to come puts the job counter back to 0.
class Meeting {
 public:
  void reset() {
    arrived_ = 0;
    next_ = 0;
  }
  int draw() { return next_.fetch_add(1, std::memory_order_relaxed); }
  void wait(int n_workers) {
    const uint32_t now = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == n_workers) {
      arrived_.store(0, std::memory_order_relaxed);
      next_.store(0, std::memory_order_relaxed);
      round_.store(now + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; round_.load(std::memory_order_acquire) == now; ++spins) {
      if (spins < 4096) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      } else {
        std::this_thread::yield();
      }
    }
  }

 private:
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> next_{0};
  alignas(64) std::atomic<uint32_t> round_{0};
};

}  // namespace

struct ReadWorkspace::State {
  Meeting meeting;
  int n_tokens = 0, n_workers = 0, heads = 0, head_dim = 0;
  int slots = 0;  // a token's place in `alpha`: prefix tokens, then suffix tokens from the next
                  // multiple of 64
  int pages = 0;
  size_t reader_bytes = 0, scratch_bytes = 0;
  Buffer<float> q;            // [heads][head_dim] transformed
  Buffer<float> key_terms;    // [heads][head_dim] q' sigma scale
  Buffer<float> key_base;     // [heads]
  Buffer<float> key_weights;  // [kv_heads][head_dim]
  Buffer<uint8_t> key_depths;
  std::vector<kernels::KeyReader> readers;  // [kv_heads]
  Buffer<std::byte> reader_memory;          // [kv_heads][reader_bytes]
  Buffer<float> alpha;                      // [heads][slots] logits, exponentials, then weights
  Buffer<kernels::PageSum> page_sums;       // [heads][pages]
  Buffer<float> factors;                    // [pages][heads]
  Buffer<float> value_weights;              // [kv_heads][n_tokens]
  Buffer<uint8_t> value_depths;
  Buffer<float> partials;     // [segments][heads][head_dim]
  Buffer<std::byte> scratch;  // [workers][scratch_bytes]
  ScheduleWorkspace schedule;
};

namespace {

// One row's view of the tokens.
struct RowView {
  const CodedLayer* prefix = nullptr;
  const CodedLayer* suffix = nullptr;
  int n_prefix = 0, n_suffix = 0;
  int row = 0;
  int first_value = 0, last_value = 0;  // tokens [first, last) are allocated; others are dense
  int n_tokens() const { return n_prefix + n_suffix; }
  int n_values() const { return last_value - first_value; }
  int suffix_slot() const { return round_up(n_prefix, 64); }
};

// Up to 512 tokens of one layer.
struct Piece {
  const CodedLayer* layer = nullptr;
  int page = 0;   // within the layer
  int n = 0;      // visible tokens
  int token = 0;  // of the row, the piece's first
  int slot = 0;
};

// Values [begin, end) of one layer.
struct Segment {
  const CodedLayer* layer = nullptr;
  int begin = 0, end = 0;
  int item = 0;  // index of `begin` among the row's allocated values
  int slot = 0;
};

class RowRead {
 public:
  RowRead(const KvShape& shape, const LayerCode& code, const ReadPlan& plan, const AttendCall& call,
          ReadWorkspace::State& state, Worker worker)
      : shape_(shape),
        code_(code),
        plan_(plan),
        call_(call),
        state_(state),
        worker_(worker),
        scratch_(state.scratch.data() + state.scratch_bytes * static_cast<size_t>(worker.index)) {}

  void run(const RowView& view) {
    view_ = view;
    n_pieces_ = pages_of(view.n_prefix) + pages_of(view.n_suffix);
    const int batches = (n_pieces_ + kBatch - 1) / kBatch;
    cut_segments();
    each(shape_.heads, [&](int head) { transform_query(head); });
    alone([&] { schedule_keys(); });
    each(shape_.kv_heads, [&](int head) { make_reader(head); });
    each(shape_.kv_heads * batches,
         [&](int job) { for_batch(job, batches, [&](int head, int i) { read_keys(head, i); }); });
    each(shape_.kv_heads, [&](int head) { total(head); });
    each(shape_.kv_heads * batches,
         [&](int job) { for_batch(job, batches, [&](int head, int i) { weigh(head, i); }); });
    alone([&] { schedule_values(); });
    each(shape_.kv_heads * n_segments_, [&](int job) { read_values(job); });
    each(shape_.heads, [&](int head) { finish(head); });
  }

 private:
  template <typename Fn>
  void each(int n, const Fn& job) {
    for (int i = state_.meeting.draw(); i < n; i = state_.meeting.draw()) job(i);
    state_.meeting.wait(worker_.count);
  }
  template <typename Fn>
  void alone(const Fn& fn) {
    if (worker_.index == 0) fn();
    state_.meeting.wait(worker_.count);
  }
  template <typename Fn>
  void for_batch(int job, int batches, const Fn& fn) {
    const int begin = job % batches * kBatch;
    for (int i = begin; i < std::min(n_pieces_, begin + kBatch); ++i) fn(job / batches, i);
  }

  int d() const { return shape_.head_dim; }
  int kv_head(int head) const { return head / shape_.group(); }
  float* q(int head) const { return state_.q.data() + int64_t{head} * d(); }
  float* alpha(int head, int slot) const {
    return state_.alpha.data() + int64_t{head} * state_.slots + slot;
  }

  Piece piece(int i) const {
    const int in_prefix = pages_of(view_.n_prefix);
    Piece p;
    const bool prefix = i < in_prefix;
    p.layer = prefix ? view_.prefix : view_.suffix;
    p.page = prefix ? i : i - in_prefix;
    const int first = p.page * kPageTokens;
    p.n = std::min(kPageTokens, (prefix ? view_.n_prefix : view_.n_suffix) - first);
    p.token = first + (prefix ? 0 : view_.n_prefix);
    p.slot = first + (prefix ? 0 : view_.suffix_slot());
    return p;
  }

  void transform_query(int head) {
    const int kv = kv_head(head);
    float* x = q(head);
    std::copy_n(call_.q + (int64_t{view_.row} * shape_.heads + head) * d(), d(), x);
    code_.u_k[static_cast<size_t>(kv)]->apply(x, 1);
    double base = 0;
    float* terms = state_.key_terms.data() + int64_t{head} * d();
    for (int c = 0; c < d(); ++c) {
      base += double{x[c]} * double{code_.mu_k[kv * d() + c]};
      terms[c] = x[c] * code_.sigma_k[kv * d() + c] * call_.logit_scale;
    }
    state_.key_base[static_cast<size_t>(head)] =
        static_cast<float>(base * double{call_.logit_scale});
  }

  // Equation 2: pooled over the query heads of a KV head, in double, rounded once.
  float key_weight(int kv, int c) const {
    const double sigma = double{code_.sigma_k[kv * d() + c]};
    double sum = 0;
    for (int head = kv * shape_.group(); head < (kv + 1) * shape_.group(); ++head) {
      if (plan_.calibrated_keys) {
        sum += double{code_.m2q[int64_t{head} * d() + c]} * sigma * sigma;
      } else {
        const double term = double{q(head)[c]} * sigma;
        sum += term * term;
      }
    }
    return static_cast<float>(sum);
  }

  void schedule_keys() {
    for (int kv = 0; kv < shape_.kv_heads; ++kv)
      for (int c = 0; c < d(); ++c)
        state_.key_weights[static_cast<size_t>(kv * d() + c)] = key_weight(kv, c);
    const size_t n = static_cast<size_t>(shape_.kv_heads * d());
    const Schedule made =
        kvist::schedule_keys(plan_, state_.key_weights.span().first(n), shape_.kv_heads,
                             state_.key_depths.span().first(n), state_.schedule);
    if (call_.trace == nullptr) return;
    call_.trace->key_bits += made.spent * view_.n_tokens();
    call_.trace->key_budget += made.budget * view_.n_tokens();
  }

  void make_reader(int kv) {
    const int head = kv * shape_.group();
    state_.readers[static_cast<size_t>(kv)] = kernels::make_key_reader(
        state_.key_depths.data() + kv * d(), state_.key_terms.data() + int64_t{head} * d(),
        state_.key_base.data() + head, shape_.group(), d(), plan_.width, call_.precision,
        state_.reader_memory.data() + state_.reader_bytes * static_cast<size_t>(kv));
  }

  // The planes of a page; open tokens' are made where the schedule reads them.
  const uint8_t* page_of(int kv, const Piece& p, uint8_t* made) const {
    const int open = p.page - p.layer->sealed_tokens() / kPageTokens;
    if (open < 0) return p.layer->key_page(kv, p.page);
    kernels::seal_keys(p.layer->open_keys(kv) + int64_t{open} * kPageTokens * d(), p.n, d(),
                       plan_.width, state_.key_depths.data() + kv * d(), made);
    return made;
  }

  void read_keys(int kv, int i) {
    const Piece p = piece(i);
    auto* made = reinterpret_cast<uint8_t*>(scratch_);
    const size_t page_bytes = kernels::key_page_bytes(d(), plan_.width);
    const uint8_t* page = page_of(kv, p, made);
    const bool next =
        (p.page + 1) * kPageTokens < p.layer->sealed_tokens() && (i + 1) % kBatch != 0;
    const int head = kv * shape_.group();
    kernels::key_logits(state_.readers[static_cast<size_t>(kv)], page, (p.n + 63) / 64,
                        next ? p.layer->key_page(kv, p.page + 1) : nullptr, alpha(head, p.slot),
                        state_.slots, scratch_ + aligned(page_bytes));
    for (int h = head; h < head + shape_.group(); ++h) {
      for_dense(p.token, p.n, [&](int j) { *(alpha(h, p.slot) + j) = dense_logit(h, p, j); });
      state_.page_sums[static_cast<size_t>(h * state_.pages + i)] =
          kernels::exp_page(alpha(h, p.slot), p.n);
    }
  }

  // fn(j) for the dense tokens among [token, token + n), j from 0.
  template <typename Fn>
  void for_dense(int token, int n, const Fn& fn) const {
    for (int j = 0; j < std::min(n, view_.first_value - token); ++j) fn(j);
    for (int j = std::max({0, view_.first_value - token, view_.last_value - token}); j < n; ++j)
      fn(j);
  }

  float dense_logit(int head, const Piece& p, int j) const {
    const f16* k = p.layer->dense_key(kv_head(head), p.page * kPageTokens + j);
    float sum = 0;
    for (int c = 0; c < d(); ++c) sum += q(head)[c] * to_float(k[c]);
    return sum * call_.logit_scale;
  }

  void total(int kv) {
    for (int head = kv * shape_.group(); head < (kv + 1) * shape_.group(); ++head) {
      const kernels::PageSum* sums = state_.page_sums.data() + head * state_.pages;
      float m = sums[0].m, l = 0;
      for (int i = 1; i < n_pieces_; ++i) m = std::max(m, sums[i].m);
      float* factor = state_.factors.data() + head;
      for (int i = 0; i < n_pieces_; ++i) {
        const float scale = std::exp(sums[i].m - m);
        factor[i * shape_.heads] = scale;
        l += sums[i].l * scale;
      }
      for (int i = 0; i < n_pieces_; ++i) factor[i * shape_.heads] /= l;
    }
  }

  // Equation 3, and the attention weights it is made of.
  void weigh(int kv, int i) {
    const Piece p = piece(i);
    double scale = 1;
    if (plan_.physical_values) {
      scale = 0;
      for (int c = 0; c < d(); ++c)
        scale += double{code_.sigma_v[kv * d() + c]} * double{code_.sigma_v[kv * d() + c]};
    }
    const int head = kv * shape_.group();
    auto* weights = reinterpret_cast<float*>(scratch_);
    kernels::weigh_page(alpha(head, p.slot), state_.slots,
                        state_.factors.data() + i * shape_.heads + head, shape_.group(), p.n, scale,
                        weights);
    const int begin = std::max(p.token, view_.first_value);
    const int end = std::min(p.token + p.n, view_.last_value);
    if (begin < end)
      std::copy(
          weights + begin - p.token, weights + end - p.token,
          state_.value_weights.data() + int64_t{kv} * view_.n_values() + begin - view_.first_value);
  }

  void schedule_values() {
    const size_t n = static_cast<size_t>(shape_.kv_heads) * static_cast<size_t>(view_.n_values());
    Schedule made;
    if (n > 0)
      made = kvist::schedule_values(plan_, state_.value_weights.span().first(n), shape_.kv_heads,
                                    state_.value_depths.span().first(n), state_.schedule);
    if (call_.trace != nullptr) note(made, *call_.trace);
  }

  void note(const Schedule& made, ReadTrace& trace) const {
    const int64_t item_bits = int64_t{d()} * (plan_.pairs ? 2 : 1);
    const int64_t dense = view_.n_tokens() - view_.n_values();
    ++trace.rows;
    trace.numbers += int64_t{2} * shape_.kv_heads * d() * view_.n_tokens();
    trace.value_bits += made.spent * item_bits;
    trace.value_budget += made.budget * item_bits;
    trace.dense_bytes += dense * 4 * shape_.kv_heads * d();
    for (int kv = 0; kv < shape_.kv_heads; ++kv) trace.lines += key_lines(kv) + value_lines(kv);
    if (!trace.observe) return;
    const size_t channels = static_cast<size_t>(shape_.kv_heads * d());
    const size_t n = static_cast<size_t>(shape_.kv_heads * view_.n_values());
    trace.observe({.layer = call_.layer,
                   .row = view_.row,
                   .n_tokens = view_.n_tokens(),
                   .first_value = view_.first_value,
                   .n_values = view_.n_values(),
                   .key_weights = state_.key_weights.span().first(channels),
                   .key_depths = state_.key_depths.span().first(channels),
                   .value_weights = state_.value_weights.span().first(n),
                   .value_depths = state_.value_depths.span().first(n)});
  }

  // A plane of a sealed page's channel is a line; a channel of an open block is one at any depth.
  int64_t key_lines(int kv) const {
    int64_t lines = 0;
    for (int i = 0; i < n_pieces_; ++i) {
      const Piece p = piece(i);
      const bool open = p.page * kPageTokens >= p.layer->sealed_tokens();
      for (int c = 0; c < d(); ++c) {
        const int depth = state_.key_depths[static_cast<size_t>(kv * d() + c)];
        lines += open ? (depth > 0 ? (p.n + 63) / 64 : 0) : depth;
      }
    }
    return lines;
  }

  // Distinct lines, by first and last byte of each run: packets hold whole planes.
  int64_t value_lines(int kv) const {
    int64_t lines = 0;
    for (const Segment* s = segments_; s < segments_ + n_segments_; ++s) {
      const kernels::ValueLayout& layout = s->layer->value_layout();
      int packet = -1, deepest = 0;
      const auto close = [&] { lines += int64_t{deepest} * ((layout.plane_bytes() + 63) / 64); };
      for (int j = s->begin; j < s->end; ++j) {
        if (j / layout.per_packet != packet) close(), packet = j / layout.per_packet, deepest = 0;
        deepest = std::max<int>(deepest, depths(kv, *s)[j - s->begin]);
      }
      close();
    }
    return lines;
  }

  const uint8_t* depths(int kv, const Segment& s) const {
    return state_.value_depths.data() + int64_t{kv} * view_.n_values() + s.item;
  }

  // The allocated values of prefix and suffix, each in up to kSegments segments.
  void cut_segments() {
    n_segments_ = 0;
    const auto cut = [&](const CodedLayer* layer, int first_token, int n, int first_slot) {
      const int begin = std::clamp(view_.first_value - first_token, 0, n);
      const int end = std::clamp(view_.last_value - first_token, 0, n);
      const int size = segment_tokens(end - begin);
      for (int at = begin; at < end; at += size)
        segments_[n_segments_++] = {.layer = layer,
                                    .begin = at,
                                    .end = std::min(end, at + size),
                                    .item = first_token + at - view_.first_value,
                                    .slot = first_slot + at};
    };
    cut(view_.prefix, 0, view_.n_prefix, 0);
    cut(view_.suffix, view_.n_prefix, view_.n_suffix, view_.suffix_slot());
  }

  float* partial(int segment, int head) const {
    return state_.partials.data() + (int64_t{segment} * shape_.heads + head) * d();
  }

  void read_values(int job) {
    const int kv = job / n_segments_, i = job % n_segments_;
    const Segment& s = segments_[i];
    const int head = kv * shape_.group();
    float* out = partial(i, head);
    std::fill_n(out, shape_.group() * d(), 0.0f);
    kernels::add_values(s.layer->value_layout(), s.layer->value_packets(kv), s.begin,
                        s.end - s.begin, depths(kv, s), alpha(head, s.slot), state_.slots,
                        shape_.group(), call_.precision, out, scratch_);
  }

  // o' = mu (weight of the coded tokens) + sigma sum + dense values.
  void finish(int head) {
    const int kv = kv_head(head);
    float* out = call_.out + (int64_t{view_.row} * shape_.heads + head) * d();
    std::fill_n(out, d(), 0.0f);
    for (int i = 0; i < n_segments_; ++i) {
      const float* from = partial(i, head);
      for (int c = 0; c < d(); ++c) out[c] += from[c];
    }
    float coded = 1;
    for_each_dense([&](const CodedLayer&, int, int slot) { coded -= *alpha(head, slot); });
    for (int c = 0; c < d(); ++c)
      out[c] = code_.mu_v[kv * d() + c] * coded + code_.sigma_v[kv * d() + c] * out[c];
    for_each_dense([&](const CodedLayer& layer, int token, int slot) {
      const f16* v = layer.dense_value(kv, token);
      for (int c = 0; c < d(); ++c) out[c] += *alpha(head, slot) * to_float(v[c]);
    });
    code_.u_v[static_cast<size_t>(kv)]->undo(out, 1);
  }

  // fn(layer, token of the layer, slot)
  template <typename Fn>
  void for_each_dense(const Fn& fn) const {
    for_dense(0, view_.n_tokens(), [&](int token) {
      if (token < view_.n_prefix)
        fn(*view_.prefix, token, token);
      else
        fn(*view_.suffix, token - view_.n_prefix, view_.suffix_slot() + token - view_.n_prefix);
    });
  }

  const KvShape& shape_;
  const LayerCode& code_;
  const ReadPlan& plan_;
  const AttendCall& call_;
  ReadWorkspace::State& state_;
  Worker worker_;
  std::byte* scratch_;
  RowView view_;
  int n_pieces_ = 0;
  int n_segments_ = 0;
  Segment segments_[2 * kSegments];
};

}  // namespace

ReadWorkspace::ReadWorkspace() : state_(std::make_unique<State>()) {}
ReadWorkspace::~ReadWorkspace() = default;

void ReadWorkspace::reserve(const KvShape& shape, int n_tokens, int n_workers) {
  State& s = *state_;
  begin();
  if (n_tokens <= s.n_tokens && n_workers <= s.n_workers && shape.heads == s.heads &&
      shape.head_dim == s.head_dim)
    return;
  n_tokens = std::max(n_tokens, s.n_tokens + s.n_tokens / 2);
  const size_t heads = static_cast<size_t>(shape.heads), d = static_cast<size_t>(shape.head_dim);
  const size_t kv_heads = static_cast<size_t>(shape.kv_heads), n = static_cast<size_t>(n_tokens);
  s.slots = round_up(n_tokens, 64) + 128;
  s.pages = n_tokens / kPageTokens + 2;
  const size_t pages = static_cast<size_t>(s.pages);
  s.q = Buffer<float>(heads * d);
  s.key_terms = Buffer<float>(heads * d);
  s.key_base = Buffer<float>(heads);
  s.key_weights = Buffer<float>(kv_heads * d);
  s.key_depths = Buffer<uint8_t>(kv_heads * d);
  s.readers.resize(kv_heads);
  s.reader_bytes = aligned(kernels::key_reader_bytes(shape.head_dim, shape.group()));
  s.reader_memory = Buffer<std::byte>(kv_heads * s.reader_bytes);
  s.alpha = Buffer<float>(heads * static_cast<size_t>(s.slots));
  s.page_sums = Buffer<kernels::PageSum>(heads * pages);
  s.factors = Buffer<float>(heads * pages);
  s.value_weights = Buffer<float>(kv_heads * n);
  s.value_depths = Buffer<uint8_t>(kv_heads * n);
  s.partials = Buffer<float>(2 * kSegments * heads * d);
  s.schedule.reserve(static_cast<int64_t>(kv_heads * std::max(n, d)));
  s.scratch_bytes = aligned(kernels::key_page_bytes(shape.head_dim, 8)) +
                    aligned(kernels::key_scratch_bytes(shape.head_dim)) +
                    aligned(kernels::value_scratch_bytes(shape.head_dim, shape.group()));
  s.n_workers = std::max(n_workers, s.n_workers);
  s.scratch = Buffer<std::byte>(s.scratch_bytes * static_cast<size_t>(s.n_workers));
  s.n_tokens = n_tokens, s.heads = shape.heads, s.head_dim = shape.head_dim;
}

void ReadWorkspace::begin() { state_->meeting.reset(); }

uint64_t ReadWorkspace::allocated_bytes() const {
  const State& s = *state_;
  uint64_t sum = 0;
  const auto add = [&](const auto&... buffer) {
    sum += (uint64_t{0} + ... + buffer.allocated_bytes());
  };
  add(s.q, s.key_terms, s.key_base, s.key_weights, s.key_depths, s.reader_memory, s.alpha,
      s.page_sums, s.factors, s.value_weights, s.value_depths, s.partials, s.scratch);
  add(s.schedule.depths.items, s.schedule.depths.keys, s.schedule.depths.counts,
      s.schedule.pair_weights, s.schedule.pair_depths);
  return sum;
}

void read_coded(const CodedLayer* prefix, const KvShape& shape, const LayerCode& code,
                const ReadPlan& plan, const AttendCall& call, ReadWorkspace& workspace,
                Worker worker) noexcept {
  ReadWorkspace::State& state = workspace.state();
  KVIST_ASSERT(worker.index < state.n_workers && shape.heads == state.heads);
  RowRead read(shape, code, plan, call, state, worker);
  for (const SuffixRows& rows : call.suffixes) {
    for (int i = 0; i < rows.n_rows; ++i) {
      RowView view{.prefix = prefix, .suffix = rows.coded, .row = rows.row + i};
      view.n_prefix = prefix == nullptr ? 0 : prefix->size();
      view.n_suffix = rows.coded == nullptr ? 0 : rows.first_token + i + 1;
      KVIST_ASSERT(view.n_tokens() > 0 && view.n_tokens() <= state.n_tokens);
      view.first_value = std::min(plan.sinks, view.n_tokens());
      view.last_value = std::max(view.first_value, view.n_tokens() - plan.recent);
      read.run(view);
    }
  }
}

}  // namespace kvist
