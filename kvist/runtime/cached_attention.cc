// SPDX-License-Identifier: MIT
// Appending to the stores and calling the readers.
#include "kvist/runtime/cached_attention.h"

#include <algorithm>

#include "kvist/core/error.h"

namespace kvist {

QueryWindow::QueryWindow(int n_layers, int heads, int head_dim, int n_tokens, int n_rows)
    : heads_(heads),
      head_dim_(head_dim),
      first_(std::max(0, n_tokens - n_rows)),
      n_rows_(std::min(n_rows, n_tokens)),
      q_(static_cast<size_t>(n_layers) * n_rows_ * heads * head_dim) {}

void QueryWindow::restart(int first, int n_rows) {
  KVIST_ASSERT(static_cast<size_t>(n_rows) * heads_ * head_dim_ <= q_.size());
  first_ = first;
  n_rows_ = n_rows;
}

void QueryWindow::record(int layer, int position, const float* q) noexcept {
  const int row = position - first_;
  if (row < 0 || row >= n_rows_) return;
  const size_t width = static_cast<size_t>(heads_) * head_dim_;
  std::copy_n(q, width, q_.data() + (static_cast<size_t>(layer) * n_rows_ + row) * width);
}

TensorView<const float, 3> QueryWindow::rows(int layer) const {
  const size_t size = static_cast<size_t>(n_rows_) * heads_ * head_dim_;
  return {q_.data() + layer * size, {n_rows_, heads_, head_dim_}};
}

CachedAttention::CachedAttention(const KvShape& shape, int n_layers, float logit_scale,
                                 kernels::Precision precision, int n_workers)
    : shape_(shape),
      n_layers_(n_layers),
      logit_scale_(logit_scale),
      precision_(precision),
      n_workers_(n_workers),
      no_prefix_(shape.kv_heads) {
  for (auto& run : no_prefix_) {
    run.type = shape.type;
    run.head_dim = shape.head_dim;
  }
}

void CachedAttention::begin_step(const PrefixCache* prefix, std::span<const SequenceRows> sequences,
                                 std::span<const int32_t> positions,
                                 std::span<QueryWindow* const> windows, ReadTrace* trace) {
  prefix_ = prefix;
  windows_.assign(windows.begin(), windows.end());
  trace_ = trace;
  sequences_.assign(sequences.begin(), sequences.end());
  positions_.assign(positions.begin(), positions.end());
  first_token_.clear();
  int longest = 0;
  for (const SequenceRows& s : sequences_) {
    first_token_.push_back(s.stores->front().size());
    longest = std::max(longest, first_token_.back() + s.n_rows);
  }
  try {
    for (size_t i = 0; i < sequences_.size(); ++i) {
      for (SuffixLayer& layer : *sequences_[i].stores) {
        layer.reserve(first_token_[i] + sequences_[i].n_rows);
        layer.resize(first_token_[i] + sequences_[i].n_rows);
      }
    }
    const int n_rows = static_cast<int>(positions.size());
    if (prefix != nullptr) {
      prefix->reserve(*workspace_, n_rows, longest, n_workers_);
    } else {
      workspace_->reserve(shape_, n_rows, longest, n_workers_);
    }
  } catch (...) {
    abandon_step();
    throw;
  }
  suffixes_.clear();
  not_finite_.clear();
  for (int layer = 0; layer < n_layers_; ++layer) {
    for (size_t i = 0; i < sequences_.size(); ++i) {
      const SequenceRows& s = sequences_[i];
      suffixes_.push_back(
          (*s.stores)[static_cast<size_t>(layer)].rows(s.row, s.n_rows, first_token_[i]));
    }
    not_finite_.push_back(not_finite(layer));
  }
}

void CachedAttention::abandon_step() {
  for (size_t i = 0; i < sequences_.size(); ++i) {
    for (SuffixLayer& layer : *sequences_[i].stores)
      layer.resize(std::min(layer.size(), first_token_[i]));
  }
  sequences_.clear();
}

int64_t CachedAttention::not_finite(int layer) const {
  int64_t sum = 0;
  for (const SequenceRows& s : sequences_)
    sum += (*s.stores)[static_cast<size_t>(layer)].not_finite();
  return sum;
}

void CachedAttention::check_finite() const {
  for (int layer = 0; layer < n_layers_; ++layer) {
    if (not_finite(layer) == not_finite_[static_cast<size_t>(layer)]) continue;
    throw Error(ErrorKind::corrupt,
                str("layer ", layer, ", positions ", positions_.front(), " to ", positions_.back(),
                    ": a key or value is not finite and cannot be coded"));
  }
}

void CachedAttention::append(int layer, const float* k, const float* v, Worker worker) noexcept {
  const size_t width = static_cast<size_t>(shape_.kv_heads) * shape_.head_dim;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const SequenceRows& s = sequences_[i];
    SuffixLayer& store = (*s.stores)[static_cast<size_t>(layer)];
    // Whole blocks of keys to one worker each: adjacent tokens share cache lines.
    const int step = s.n_rows >= kernels::kBlock ? kernels::kBlock : 1;
    for (int r = 0; r < s.n_rows; ++r) {
      if ((first_token_[i] + r) / step % worker.count != worker.index) continue;
      const size_t row = static_cast<size_t>(s.row + r) * width;
      store.write(first_token_[i] + r, k + row, v + row);
    }
  }
}

void CachedAttention::attend(int layer, const float* q, float* out, Worker worker) noexcept {
  const int n_rows = static_cast<int>(positions_.size());
  const size_t width = static_cast<size_t>(shape_.heads) * shape_.head_dim;
  for (QueryWindow* window : windows_) {
    for (int r = worker.index; r < n_rows; r += worker.count)
      window->record(layer, positions_[r], q + r * width);
  }
  AttendCall call;
  call.layer = layer;
  call.q = q;
  call.out = out;
  call.n_rows = n_rows;
  call.logit_scale = logit_scale_;
  call.suffixes = std::span(suffixes_).subspan(layer * sequences_.size(), sequences_.size());
  call.precision = precision_;
  call.trace = trace_;
  if (prefix_ != nullptr) {
    prefix_->attend(call, *workspace_, worker);
  } else {
    attend_runs(no_prefix_, shape_, call, *workspace_, worker);
  }
}

}  // namespace kvist
