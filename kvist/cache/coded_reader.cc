// SPDX-License-Identifier: MIT
// The stages of a coded layer call. Each row goes through them in turn; inside a stage the workers
// draw jobs from a counter, and all meet before the next stage begins. What one worker does between
// two stages is done by the last to come.
//
//   queries   q' = U_K q, their key weights and constants          job: query head
//             the key schedule                                     last
//   weights   what its channels multiply                           job: KV head
//   logits    logits and page exponentials                         job: KV head, 4 pages
//   totals    factor of each page                                  job: KV head
//   attention attention weights, value weights, their histogram    job: KV head, 4 pages
//             the cut of the value schedule, or all of it          last
//   depths    of values                                            job: 2048 values
//             those at the cut                                     last
//   sums      weighted values of a segment                         job: KV head, segment
//   output    segments in order, mu + sigma, U_V^T                 job: query head
//
// With SparQ's choices in the place of the schedules:
//
//   queries   as above; the channels                               last
//   weights   what they multiply                                   job: KV head
//   logits    as above, and their sums over siblings               job: KV head, 4 pages
//   tokens    factor of each page, the tokens                      job: KV head
//   output    chosen tokens whole, the mean of all values, U_V^T   job: KV head
#include "kvist/cache/coded_reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "kvist/cache/prefix.h"
#include "kvist/core/error.h"
#include "kvist/core/meeting.h"
#include "kvist/kernels/plane_keys.h"
#include "kvist/kernels/plane_values.h"
#include "kvist/kernels/read_softmax.h"
#include "kvist/methods/read/schedule.h"
#include "kvist/methods/read/sparq.h"

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

struct HeadView;

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
  Buffer<float> factors;                    // [kv_heads][pages][group]
  Buffer<float> value_weights;              // [kv_heads][n_tokens]
  Buffer<uint8_t> value_depths;
  Buffer<float> partials;     // [segments][heads][head_dim]
  Buffer<std::byte> scratch;  // [workers][scratch_bytes]
  ScheduleWorkspace schedule;
  SharedDepths shared;
  std::vector<HeadView> views;       // [workers][kv_heads], each worker makes its own
  std::vector<RowHead> row_heads;    // [kv_heads], for the observer
  std::vector<int64_t> counts;       // [kv_heads] values of each head
  std::vector<int64_t> value_lines;  // [kv_heads][2 kSegments]
  int64_t chosen_stride = 0;
  Buffer<uint32_t> chosen;  // [kv_heads][n_tokens] of SparQ, those of each head first
};

namespace {

// One row of a call and what lies before it.
struct RowView {
  std::span<const CodedLayer> prefix;
  const CodedLayer* suffix = nullptr;
  int row = 0;
  int n_suffix = 0;
};

// Up to 512 tokens of one layer.
struct Piece {
  const CodedLayer* layer = nullptr;
  int head = 0;   // within the layer
  int page = 0;   // within the layer
  int n = 0;      // visible tokens
  int token = 0;  // of the row and head, the piece's first
  int slot = 0;
};

// Values [begin, end) of one head of one layer.
struct Segment {
  const CodedLayer* layer = nullptr;
  int head = 0;  // within the layer
  int begin = 0, end = 0;
  int item = 0;  // index of `begin` among the row's allocated values
  int slot = 0;
};

// The tokens of one head that the row sees: those of the prefix, then those of the suffix.
struct HeadView {
  const CodedLayer* prefix = nullptr;
  const CodedLayer* suffix = nullptr;
  int prefix_head = 0, suffix_head = 0;  // within those layers
  int n_prefix = 0, n_suffix = 0;
  int first_value = 0, last_value = 0;  // tokens [first, last) are allocated; others are dense
  int item = 0;                         // of first_value among the row's allocated values
  int n_segments = 0;
  Segment segments[2 * kSegments];

  int n_tokens() const { return n_prefix + n_suffix; }
  int n_values() const { return last_value - first_value; }
  int n_pieces() const { return pages_of(n_prefix) + pages_of(n_suffix); }
  int suffix_slot() const { return round_up(n_prefix, 64); }

  Piece piece(int i) const {
    const int in_prefix = pages_of(n_prefix);
    const bool before = i < in_prefix;
    Piece p;
    p.layer = before ? prefix : suffix;
    p.head = before ? prefix_head : suffix_head;
    p.page = before ? i : i - in_prefix;
    const int first = p.page * kPageTokens;
    p.n = std::min(kPageTokens, (before ? n_prefix : n_suffix) - first);
    p.token = first + (before ? 0 : n_prefix);
    p.slot = first + (before ? 0 : suffix_slot());
    return p;
  }

  // The allocated values of prefix and suffix, each in up to kSegments segments.
  void cut_segments() {
    n_segments = 0;
    const auto cut = [&](const CodedLayer* layer, int head, int first_token, int n,
                         int first_slot) {
      const int begin = std::clamp(first_value - first_token, 0, n);
      const int end = std::clamp(last_value - first_token, 0, n);
      const int size = segment_tokens(end - begin);
      for (int at = begin; at < end; at += size)
        segments[n_segments++] = {.layer = layer,
                                  .head = head,
                                  .begin = at,
                                  .end = std::min(end, at + size),
                                  .item = item + first_token + at - first_value,
                                  .slot = first_slot + at};
    };
    cut(prefix, prefix_head, 0, n_prefix, 0);
    cut(suffix, suffix_head, n_prefix, n_suffix, suffix_slot());
  }
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
        scratch_(state.scratch.data() + state.scratch_bytes * static_cast<size_t>(worker.index)),
        views_(state.views.data() + int64_t{worker.index} * shape.kv_heads) {}

  void run(const RowView& view) {
    row_ = view.row;
    view_heads(view);
    if (plan_.sparq()) return run_sparq();
    const int batches = (n_pieces_ + kBatch - 1) / kBatch;
    each(
        shape_.heads, [&](int head) { transform_query(head); }, [&] { schedule_keys(); });
    each(shape_.kv_heads, [&](int head) { make_reader(head); });
    each(shape_.kv_heads * batches,
         [&](int job) { for_batch(job, batches, [&](int head, int i) { read_keys(head, i); }); });
    each(shape_.kv_heads, [&](int head) { total(head); });
    each(
        shape_.kv_heads * batches,
        [&](int job) { for_batch(job, batches, [&](int head, int i) { weigh(head, i); }); },
        [&] { shares_values_ ? cut_values() : schedule_values(); });
    if (shares_values_)
      each(
          SharedDepths::n_pieces(static_cast<size_t>(n_items_)),
          [&](int piece) { state_.shared.split(piece, value_weights(), value_depths()); },
          [&] { settle_values(); });
    each(
        shape_.kv_heads * n_segments_, [&](int job) { read_values(job); },
        [&] { count_value_lines(); });
    each(shape_.heads, [&](int head) { finish(head); });
  }

 private:
  void run_sparq() {
    const int batches = (n_pieces_ + kBatch - 1) / kBatch;
    each(
        shape_.heads, [&](int head) { transform_query(head); }, [&] { choose_channels(); });
    each(shape_.kv_heads, [&](int head) { make_reader(head); });
    each(shape_.kv_heads * batches,
         [&](int job) { for_batch(job, batches, [&](int head, int i) { read_keys(head, i); }); });
    each(
        shape_.kv_heads,
        [&](int head) {
          total(head);
          choose_tokens(head);
        },
        [&] {
          if (call_.trace != nullptr) note_sparq(*call_.trace);
        });
    each(shape_.kv_heads, [&](int head) { attend_chosen(head); });
  }

  template <typename Fn, typename Last>
  void each(int n, const Fn& job, const Last& last) {
    state_.meeting.each(n, worker_, job, last);
  }
  template <typename Fn>
  void each(int n, const Fn& job) {
    each(n, job, [] {});
  }
  template <typename Fn>
  void for_batch(int job, int batches, const Fn& fn) {
    const int begin = job % batches * kBatch;
    const int head = job / batches;
    for (int i = begin; i < std::min(views_[head].n_pieces(), begin + kBatch); ++i) fn(head, i);
  }

  int d() const { return shape_.head_dim; }
  int kv_head(int head) const { return head / shape_.group(); }
  float* q(int head) const { return state_.q.data() + int64_t{head} * d(); }
  float* alpha(int head, int slot) const {
    return state_.alpha.data() + int64_t{head} * state_.slots + slot;
  }

  float* factor(int head, int piece) const {
    return state_.factors.data() +
           (int64_t{kv_head(head)} * state_.pages + piece) * shape_.group() + head % shape_.group();
  }

  void view_heads(const RowView& row) {
    ragged_ = row.prefix.size() > 1;
    n_pieces_ = n_segments_ = n_items_ = 0;
    n_tokens_ = 0;
    for (int kv = 0; kv < shape_.kv_heads; ++kv) {
      HeadView& view = views_[kv];
      view.prefix =
          row.prefix.empty() ? nullptr : &row.prefix[ragged_ ? static_cast<size_t>(kv) : 0];
      view.prefix_head = ragged_ ? 0 : kv;
      view.n_prefix = view.prefix == nullptr ? 0 : view.prefix->size();
      view.suffix = row.suffix;
      view.suffix_head = kv;
      view.n_suffix = row.n_suffix;
      KVIST_ASSERT(view.n_tokens() > 0 && view.n_tokens() <= state_.n_tokens);
      view.first_value = std::min(plan_.sinks, view.n_tokens());
      view.last_value = std::max(view.first_value, view.n_tokens() - plan_.recent);
      view.item = n_items_;
      view.cut_segments();
      n_pieces_ = std::max(n_pieces_, view.n_pieces());
      n_segments_ = std::max(n_segments_, view.n_segments);
      n_items_ += view.n_values();
      n_tokens_ += view.n_tokens();
    }
    shares_values_ = n_items_ > 0 && shares_values(plan_);
  }

  void transform_query(int head) {
    const int kv = kv_head(head);
    float* x = q(head);
    std::copy_n(call_.q + (int64_t{row_} * shape_.heads + head) * d(), d(), x);
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
    ReadPlan plan = plan_;
    plan.per_head |= ragged_;
    const Schedule made =
        kvist::schedule_keys(plan, state_.key_weights.span().first(n), shape_.kv_heads,
                             state_.key_depths.span().first(n), state_.schedule);
    if (call_.trace == nullptr) return;
    for (int kv = 0; kv < shape_.kv_heads; ++kv) {
      const uint8_t* depths = state_.key_depths.data() + kv * d();
      call_.trace->key_bits +=
          std::accumulate(depths, depths + d(), int64_t{0}) * views_[kv].n_tokens();
    }
    // Heads have equal budgets, or equally many tokens.
    call_.trace->key_budget += made.budget * n_tokens_ / shape_.kv_heads;
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
    if (open < 0) return p.layer->key_page(p.head, p.page);
    kernels::seal_keys(p.layer->open_keys(p.head) + int64_t{open} * kPageTokens * d(), p.n, d(),
                       plan_.width, state_.key_depths.data() + kv * d(), made);
    return made;
  }

  void read_keys(int kv, int i) {
    const HeadView& view = views_[kv];
    const Piece p = view.piece(i);
    auto* made = reinterpret_cast<uint8_t*>(scratch_);
    const size_t page_bytes = kernels::key_page_bytes(d(), plan_.width);
    const uint8_t* page = page_of(kv, p, made);
    const bool next = (p.page + 1) * kPageTokens < p.layer->sealed_tokens();
    const int head = kv * shape_.group();
    kernels::key_logits(state_.readers[static_cast<size_t>(kv)], page, (p.n + 63) / 64,
                        next ? p.layer->key_page(p.head, p.page + 1) : nullptr, alpha(head, p.slot),
                        state_.slots, scratch_ + aligned(page_bytes));
    if (plan_.sparq()) sum_siblings(view, p, head);
    for (int h = head; h < head + shape_.group(); ++h) {
      for_dense(view, p.token, p.n, [&](int j) { *(alpha(h, p.slot) + j) = dense_logit(h, p, j); });
      state_.page_sums[static_cast<size_t>(h * state_.pages + i)] =
          kernels::exp_page(alpha(h, p.slot), p.n);
    }
  }

  // fn(j) for the dense tokens among [token, token + n), j from 0.
  template <typename Fn>
  static void for_dense(const HeadView& view, int token, int n, const Fn& fn) {
    for (int j = 0; j < std::min(n, view.first_value - token); ++j) fn(j);
    for (int j = std::max({0, view.first_value - token, view.last_value - token}); j < n; ++j)
      fn(j);
  }

  float dense_logit(int head, const Piece& p, int j) const {
    const f16* k = p.layer->dense_key(p.head, p.page * kPageTokens + j);
    float sum = 0;
    for (int c = 0; c < d(); ++c) sum += q(head)[c] * to_float(k[c]);
    return sum * call_.logit_scale;
  }

  void total(int kv) {
    const int n_pieces = views_[kv].n_pieces();
    for (int head = kv * shape_.group(); head < (kv + 1) * shape_.group(); ++head) {
      const kernels::PageSum* sums = state_.page_sums.data() + head * state_.pages;
      float m = sums[0].m, l = 0;
      for (int i = 1; i < n_pieces; ++i) m = std::max(m, sums[i].m);
      for (int i = 0; i < n_pieces; ++i) {
        const float scale = std::exp(sums[i].m - m);
        *factor(head, i) = scale;
        l += sums[i].l * scale;
      }
      for (int i = 0; i < n_pieces; ++i) *factor(head, i) /= l;
    }
  }

  // Equation 3, and the attention weights it is made of.
  void weigh(int kv, int i) {
    const HeadView& view = views_[kv];
    const Piece p = view.piece(i);
    double scale = 1;
    if (plan_.physical_values) {
      scale = 0;
      for (int c = 0; c < d(); ++c)
        scale += double{code_.sigma_v[kv * d() + c]} * double{code_.sigma_v[kv * d() + c]};
    }
    const int head = kv * shape_.group();
    auto* weights = reinterpret_cast<float*>(scratch_);
    kernels::weigh_page(alpha(head, p.slot), state_.slots, factor(head, i), shape_.group(), p.n,
                        scale, weights);
    const int begin = std::max(p.token, view.first_value);
    const int end = std::min(p.token + p.n, view.last_value);
    if (begin >= end) return;
    float* to = state_.value_weights.data() + view.item + begin - view.first_value;
    std::copy(weights + begin - p.token, weights + end - p.token, to);
    if (shares_values_) state_.shared.count(worker_.index, {to, static_cast<size_t>(end - begin)});
  }

  std::span<const float> value_weights() const {
    return state_.value_weights.span().first(static_cast<size_t>(n_items_));
  }
  std::span<uint8_t> value_depths() const {
    return state_.value_depths.span().first(static_cast<size_t>(n_items_));
  }

  void cut_values() {
    state_.shared.cut(value_weights(), plan_.width, plan_.min_depth, value_budget(plan_, n_items_));
  }

  void settle_values() {
    const Schedule made{.budget = value_budget(plan_, n_items_),
                        .spent = state_.shared.settle(value_weights(), value_depths())};
    KVIST_ASSERT(made.spent >= 0);
    if (call_.trace != nullptr) note(made, *call_.trace);
  }

  void schedule_values() {
    for (int kv = 0; kv < shape_.kv_heads; ++kv)
      state_.counts[static_cast<size_t>(kv)] = views_[kv].n_values();
    Schedule made;
    if (n_items_ > 0)
      made = schedule_ragged_values(
          plan_, value_weights(),
          std::span(state_.counts).first(static_cast<size_t>(shape_.kv_heads)), value_depths(),
          state_.schedule);
    if (call_.trace != nullptr) note(made, *call_.trace);
  }

  void note(const Schedule& made, ReadTrace& trace) const {
    const int64_t item_bits = int64_t{d()} * (plan_.pairs ? 2 : 1);
    ++trace.rows;
    trace.numbers += 2 * d() * n_tokens_;
    trace.value_bits += made.spent * item_bits;
    trace.value_budget += made.budget * item_bits;
    trace.dense_bytes += (n_tokens_ - n_items_) * 4 * d();
    for (int kv = 0; kv < shape_.kv_heads; ++kv) {
      const int64_t keys = key_lines(kv);
      trace.key_lines += keys;
      trace.lines += keys;
    }
    show(trace);
  }

  void show(const ReadTrace& trace) const {
    if (!trace.observe) return;
    const size_t channels = static_cast<size_t>(shape_.kv_heads * d());
    for (int kv = 0; kv < shape_.kv_heads; ++kv) {
      const HeadView& view = views_[kv];
      state_.row_heads[static_cast<size_t>(kv)] = {.n_tokens = view.n_tokens(),
                                                   .first_value = view.first_value,
                                                   .n_values = view.n_values(),
                                                   .item = view.item};
    }
    trace.observe({.layer = call_.layer,
                   .row = row_,
                   .heads = std::span(state_.row_heads).first(static_cast<size_t>(shape_.kv_heads)),
                   .key_weights = state_.key_weights.span().first(channels),
                   .key_depths = state_.key_depths.span().first(channels),
                   .value_weights = value_weights(),
                   .value_depths = value_depths()});
  }

  // A plane of a sealed page's channel is a line; a channel of an open block is one at any depth.
  int64_t key_lines(int kv) const {
    const uint8_t* depths = state_.key_depths.data() + kv * d();
    const int64_t planes = std::accumulate(depths, depths + d(), int64_t{0});
    const int64_t channels = d() - std::count(depths, depths + d(), uint8_t{0});
    int64_t lines = 0;
    for (int i = 0; i < views_[kv].n_pieces(); ++i) {
      const Piece p = views_[kv].piece(i);
      const bool open = p.page * kPageTokens >= p.layer->sealed_tokens();
      lines += open ? (p.n + 63) / 64 * channels : planes;
    }
    return lines;
  }

  // Packets hold whole planes, as deep as the deepest of their tokens is read.
  int64_t value_lines(const Segment& s) const {
    const kernels::ValueLayout& layout = s.layer->value_layout();
    return kernels::packet_depths(layout, s.begin, s.end - s.begin, depths(s)) *
           ((layout.plane_bytes() + 63) / 64);
  }

  const uint8_t* depths(const Segment& s) const { return state_.value_depths.data() + s.item; }
  std::span<const Segment> segments(int kv) const {
    return {views_[kv].segments, static_cast<size_t>(views_[kv].n_segments)};
  }

  float* partial(int segment, int head) const {
    return state_.partials.data() + (int64_t{segment} * shape_.heads + head) * d();
  }

  void read_values(int job) {
    const int kv = job / n_segments_, i = job % n_segments_;
    if (i >= views_[kv].n_segments) return;  // a head shorter than the longest
    const Segment& s = views_[kv].segments[i];
    const int head = kv * shape_.group();
    float* out = partial(i, head);
    std::fill_n(out, shape_.group() * d(), 0.0f);
    kernels::add_values(s.layer->value_layout(), s.layer->value_packets(s.head), s.begin,
                        s.end - s.begin, depths(s), alpha(head, s.slot), state_.slots,
                        shape_.group(), call_.precision, out, scratch_);
    if (call_.trace != nullptr)
      state_.value_lines[static_cast<size_t>(kv * 2 * kSegments + i)] = value_lines(s);
  }

  void count_value_lines() {
    if (call_.trace == nullptr) return;
    for (int kv = 0; kv < shape_.kv_heads; ++kv)
      for (int i = 0; i < views_[kv].n_segments; ++i)
        call_.trace->lines += state_.value_lines[static_cast<size_t>(kv * 2 * kSegments + i)];
  }

  // By the sum of |q'| over siblings; logits of the chosen alone get SparQ's temperature.
  void choose_channels() {
    const auto channels = static_cast<size_t>(d());
    for (int kv = 0; kv < shape_.kv_heads; ++kv) {
      const auto sums =
          state_.key_weights.span().subspan(static_cast<size_t>(kv) * channels, channels);
      const auto depths =
          state_.key_depths.span().subspan(static_cast<size_t>(kv) * channels, channels);
      const int first = kv * shape_.group(), last = first + shape_.group();
      std::fill(sums.begin(), sums.end(), 0.0f);
      for (int head = first; head < last; ++head)
        for (int c = 0; c < d(); ++c) sums[static_cast<size_t>(c)] += std::abs(q(head)[c]);
      kvist::choose_channels(sums, plan_.sparq_channels, depths,
                             state_.chosen.span().first(channels));
      for (int head = first; head < last; ++head) {
        const double share = chosen_share({q(head), channels}, depths);
        float* terms = state_.key_terms.data() + int64_t{head} * d();
        for (int c = 0; c < d(); ++c)
          terms[c] = static_cast<float>(double{terms[c]} / std::sqrt(std::max(share, 1e-30)));
      }
      for (uint8_t& depth : depths)
        depth = static_cast<uint8_t>(depth != 0 ? ReadPlan::kSparqDepth : 0);
    }
  }

  float* scores(const HeadView& view) const { return state_.value_weights.data() + view.item; }
  std::span<uint32_t> chosen(int kv) const {
    return {state_.chosen.data() + int64_t{kv} * state_.chosen_stride,
            static_cast<size_t>(views_[kv].n_tokens())};
  }

  void sum_siblings(const HeadView& view, const Piece& p, int first) {
    float* sum = scores(view) + p.token;
    std::copy_n(alpha(first, p.slot), p.n, sum);
    for (int head = first + 1; head < first + shape_.group(); ++head)
      for (int j = 0; j < p.n; ++j) sum[j] += alpha(head, p.slot)[j];
  }

  void choose_tokens(int kv) {
    const HeadView& view = views_[kv];
    const auto n = static_cast<size_t>(view.n_tokens());
    state_.counts[static_cast<size_t>(kv)] =
        kvist::choose_tokens({scores(view), n}, plan_.sparq_tokens, chosen(kv));
    std::fill_n(state_.value_depths.data() + view.item, n, uint8_t{0});
    for (const uint32_t token : taken(kv))
      state_.value_depths[static_cast<size_t>(view.item) + token] =
          static_cast<uint8_t>(plan_.width);
  }
  std::span<const uint32_t> taken(int kv) const {
    return chosen(kv).first(static_cast<size_t>(state_.counts[static_cast<size_t>(kv)]));
  }

  // Where a token of a head lies.
  struct Place {
    const CodedLayer* layer;
    int head, token;  // within the layer
    int slot, piece;
  };
  static Place place(const HeadView& view, int token) {
    if (token < view.n_prefix)
      return {view.prefix, view.prefix_head, token, token, token / kPageTokens};
    const int at = token - view.n_prefix;
    return {view.suffix, view.suffix_head, at, view.suffix_slot() + at,
            pages_of(view.n_prefix) + at / kPageTokens};
  }

  // Softmax over the chosen tokens as they are stored; the rest of the approximate attention goes
  // to the mean of all values.
  void attend_chosen(int kv) {
    const HeadView& view = views_[kv];
    const int first = kv * shape_.group(), group = shape_.group();
    float row[HeadTransform::kMaxHeadDim], mean[HeadTransform::kMaxHeadDim];
    for (int head = first; head < first + group; ++head) {
      std::fill_n(partial(0, head), d(), 0.0f);
      std::fill_n(partial(1, head), 1, 0.0f);
    }
    for (const uint32_t token : taken(kv)) {
      const Place at = place(view, static_cast<int>(token));
      at.layer->decode_key(at.head, at.token, row);
      for (int head = first; head < first + group; ++head) {
        float* weight = alpha(head, at.slot);
        partial(1, head)[0] += *weight * *factor(head, at.piece);
        float sum = 0;
        for (int c = 0; c < d(); ++c) sum += q(head)[c] * row[c];
        *weight = sum * call_.logit_scale;
      }
    }
    for (int head = first; head < first + group; ++head) softmax_chosen(kv, head);
    for (const uint32_t token : taken(kv)) {
      const Place at = place(view, static_cast<int>(token));
      at.layer->decode_value(at.head, at.token, row);
      for (int head = first; head < first + group; ++head)
        for (int c = 0; c < d(); ++c) partial(0, head)[c] += *alpha(head, at.slot) * row[c];
    }
    mean_of_values(view, mean);
    for (int head = first; head < first + group; ++head) {
      const float share = std::min(partial(1, head)[0], 1.0f);
      float* out = call_.out + (int64_t{row_} * shape_.heads + head) * d();
      for (int c = 0; c < d(); ++c) out[c] = share * partial(0, head)[c] + (1 - share) * mean[c];
      code_.u_v[static_cast<size_t>(kv)]->undo(out, 1);
    }
  }

  void softmax_chosen(int kv, int head) {
    const HeadView& view = views_[kv];
    const auto weight = [&](uint32_t token) {
      return alpha(head, place(view, static_cast<int>(token)).slot);
    };
    float most = -INFINITY, sum = 0;
    for (const uint32_t token : taken(kv)) most = std::max(most, *weight(token));
    for (const uint32_t token : taken(kv)) sum += *weight(token) = std::exp(*weight(token) - most);
    for (const uint32_t token : taken(kv)) *weight(token) /= sum;
  }

  void mean_of_values(const HeadView& view, float* mean) const {
    double sum[HeadTransform::kMaxHeadDim] = {};
    float row[HeadTransform::kMaxHeadDim];
    const auto add = [&](const CodedLayer& layer, int head, int n) {
      const int known = layer.summed_tokens() <= n ? layer.summed_tokens() : 0;
      for (int c = 0; c < d() && known > 0; ++c) sum[c] += layer.value_sum(head)[c];
      for (int t = known; t < n; ++t) {
        layer.decode_value(head, t, row);
        for (int c = 0; c < d(); ++c) sum[c] += double{row[c]};
      }
    };
    if (view.n_prefix > 0) add(*view.prefix, view.prefix_head, view.n_prefix);
    if (view.n_suffix > 0) add(*view.suffix, view.suffix_head, view.n_suffix);
    for (int c = 0; c < d(); ++c)
      mean[c] = to_float(to_f16(static_cast<float>(sum[c] / view.n_tokens())));
  }

  void note_sparq(ReadTrace& trace) const {
    ++trace.rows;
    trace.numbers += 2 * d() * n_tokens_;
    const int channels = std::min(plan_.sparq_channels, d());
    int64_t keys = 0, values = 0;
    for (int kv = 0; kv < shape_.kv_heads; ++kv) {
      const int64_t whole = std::ssize(taken(kv)) * d() * plan_.width;
      // The newest token is read whole at once, not tried first.
      keys += int64_t{views_[kv].n_tokens() - 1} * channels * ReadPlan::kSparqDepth + whole;
      values += whole + 16 * d();
      const int64_t tried = key_lines(kv);
      const int64_t again = whole_key_lines(kv);
      trace.key_lines += tried + again;
      trace.lines += tried + again;
      for (const Segment& s : segments(kv)) trace.lines += value_lines(s);
    }
    trace.key_bits += keys, trace.key_budget += keys;
    trace.value_bits += values, trace.value_budget += values;
    show(trace);
  }

  // Lines of the chosen tokens' keys that the choice had not touched.
  int64_t whole_key_lines(int kv) const {
    const HeadView& view = views_[kv];
    const int channels = std::min(plan_.sparq_channels, d());
    int64_t lines = 0;
    int last = -1;  // page, or open block
    for (const uint32_t token : taken(kv)) {
      const Place at = place(view, static_cast<int>(token));
      const bool open = at.token >= at.layer->sealed_tokens();
      const int unit = at.slot / (open ? kernels::kBlock : kPageTokens) * 2 + (open ? 1 : 0);
      if (unit == last) continue;
      last = unit;
      lines +=
          open ? d() - channels : int64_t{d()} * plan_.width - channels * ReadPlan::kSparqDepth;
    }
    return lines;
  }

  // o' = mu (weight of the coded tokens) + sigma sum + dense values.
  void finish(int head) {
    const int kv = kv_head(head);
    float* out = call_.out + (int64_t{row_} * shape_.heads + head) * d();
    std::fill_n(out, d(), 0.0f);
    for (int i = 0; i < views_[kv].n_segments; ++i) {
      const float* from = partial(i, head);
      for (int c = 0; c < d(); ++c) out[c] += from[c];
    }
    float coded = 1;
    for_each_dense(views_[kv],
                   [&](const CodedLayer&, int, int, int slot) { coded -= *alpha(head, slot); });
    for (int c = 0; c < d(); ++c)
      out[c] = code_.mu_v[kv * d() + c] * coded + code_.sigma_v[kv * d() + c] * out[c];
    for_each_dense(views_[kv], [&](const CodedLayer& layer, int at, int token, int slot) {
      const f16* v = layer.dense_value(at, token);
      for (int c = 0; c < d(); ++c) out[c] += *alpha(head, slot) * to_float(v[c]);
    });
    code_.u_v[static_cast<size_t>(kv)]->undo(out, 1);
  }

  // fn(layer, head of the layer, token of the layer, slot)
  template <typename Fn>
  static void for_each_dense(const HeadView& view, const Fn& fn) {
    for_dense(view, 0, view.n_tokens(), [&](int token) {
      if (token < view.n_prefix)
        fn(*view.prefix, view.prefix_head, token, token);
      else
        fn(*view.suffix, view.suffix_head, token - view.n_prefix,
           view.suffix_slot() + token - view.n_prefix);
    });
  }

  const KvShape& shape_;
  const LayerCode& code_;
  const ReadPlan& plan_;
  const AttendCall& call_;
  ReadWorkspace::State& state_;
  Worker worker_;
  std::byte* scratch_;
  HeadView* views_;  // [kv_heads]
  int row_ = 0;
  bool ragged_ = false;
  bool shares_values_ = false;
  int n_pieces_ = 0, n_segments_ = 0;  // of the longest head
  int n_items_ = 0;                    // allocated values of all heads
  int64_t n_tokens_ = 0;               // of all heads
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
  s.shared.reserve(static_cast<int64_t>(kv_heads * n), std::max(n_workers, s.n_workers));
  s.scratch_bytes = aligned(kernels::key_page_bytes(shape.head_dim, 8)) +
                    aligned(kernels::key_scratch_bytes(shape.head_dim)) +
                    aligned(kernels::value_scratch_bytes(shape.head_dim, shape.group()));
  s.n_workers = std::max(n_workers, s.n_workers);
  s.scratch = Buffer<std::byte>(s.scratch_bytes * static_cast<size_t>(s.n_workers));
  s.views.resize(kv_heads * static_cast<size_t>(s.n_workers));
  s.row_heads.resize(kv_heads);
  s.counts.resize(kv_heads);
  s.value_lines.resize(kv_heads * 2 * kSegments);
  s.chosen_stride = static_cast<int64_t>(std::max(n, d));
  s.chosen = Buffer<uint32_t>(kv_heads * std::max(n, d));
  s.n_tokens = n_tokens, s.heads = shape.heads, s.head_dim = shape.head_dim;
}

void ReadWorkspace::begin() {
  state_->meeting.reset();
  state_->shared.forget();
}

uint64_t ReadWorkspace::allocated_bytes() const {
  const State& s = *state_;
  uint64_t sum = 0;
  const auto add = [&](const auto&... buffer) {
    sum += (uint64_t{0} + ... + buffer.allocated_bytes());
  };
  add(s.q, s.key_terms, s.key_base, s.key_weights, s.key_depths, s.reader_memory, s.alpha,
      s.page_sums, s.factors, s.value_weights, s.value_depths, s.partials, s.scratch, s.chosen);
  add(s.schedule.depths.items, s.schedule.depths.keys, s.schedule.depths.counts,
      s.schedule.pair_weights, s.schedule.pair_depths);
  return sum + s.shared.allocated_bytes();
}

void read_coded(std::span<const CodedLayer> prefix, const KvShape& shape, const LayerCode& code,
                const ReadPlan& plan, const AttendCall& call, ReadWorkspace& workspace,
                Worker worker) noexcept {
  ReadWorkspace::State& state = workspace.state();
  KVIST_ASSERT(worker.index < state.n_workers && shape.heads == state.heads);
  KVIST_ASSERT(prefix.size() <= 1 || std::ssize(prefix) == shape.kv_heads);
  RowRead read(shape, code, plan, call, state, worker);
  for (const SuffixRows& rows : call.suffixes) {
    for (int i = 0; i < rows.n_rows; ++i) {
      const int n_suffix = rows.coded == nullptr ? 0 : rows.first_token + i + 1;
      read.run({.prefix = prefix, .suffix = rows.coded, .row = rows.row + i, .n_suffix = n_suffix});
    }
  }
}

}  // namespace kvist
