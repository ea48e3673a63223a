// SPDX-License-Identifier: MIT
// Drives prefill, compression and decoding: which rows run in a step, and which stores they write.
#include "kvist/runtime/session.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>

#include "kvist/cache/coded_prefix.h"
#include "kvist/cache/ragged.h"
#include "kvist/runtime/cached_attention.h"

namespace kvist {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One head of a dense layer as a selector reads it.
class DenseRows final : public HeadRows {
 public:
  DenseRows(const DenseLayer& layer, bool keys) : layer_(layer), keys_(keys) {}
  void read(int head, int begin, int end, float* out) const override {
    const kernels::KvRun run = layer_.run(head);
    keys_ ? kernels::load_keys(run, begin, end, out) : kernels::load_values(run, begin, end, out);
  }

 private:
  const DenseLayer& layer_;
  bool keys_;
};

KvShape shape_of(const ModelInfo& info, Scalar type) {
  return {info.kv_heads, info.heads, info.head_dim, type};
}

}  // namespace

struct Session::Impl {
  Impl(Model& m, ThreadPool& p, const SessionOptions& o)
      : model(m),
        pool(p),
        options(o),
        shape(shape_of(m.info(), o.cache_type)),
        attention(shape, m.info().n_layers, m.info().logit_scale, o.precision, p.n_threads()) {}

  const PrefixCache& require_prefix() const;
  PlainPrefix& require_plain();
  void hold(LayerStores document, int n_tokens);
  LayerStores& stores_of(int sequence);
  void forget() {  // prefix and questions
    plain.reset();
    coded.reset();
    sequences.clear();
    n_prompt = 0;
    window = {};
    trace = {};
  }
  void run(const PrefixCache* over, std::span<const SequenceRows> rows,
           std::span<const int32_t> tokens, std::span<const int32_t> positions,
           std::span<const uint8_t> want, QueryWindow* record, std::vector<float>* logits);
  void extend(int sequence, std::span<const int32_t> tokens, bool all, std::vector<float>* logits);

  Model& model;
  ThreadPool& pool;
  SessionOptions options;
  KvShape shape;
  CachedAttention attention;
  std::unique_ptr<PlainPrefix> plain;  // one of the two
  std::unique_ptr<CodedPrefix> coded;
  ReadTrace trace;
  QueryWindow window;
  int n_prompt = 0;
  int next_sequence = 1;
  std::map<int, LayerStores> sequences;
};

const PrefixCache& Session::Impl::require_prefix() const {
  if (coded) return *coded;
  if (!plain) throw Error(ErrorKind::invalid_argument, "no document was prefilled yet");
  return *plain;
}

// The prefix as something that may still be compressed.
PlainPrefix& Session::Impl::require_plain() {
  require_prefix();
  if (coded) throw Error(ErrorKind::invalid_argument, "the prefix is coded already");
  if (!sequences.empty()) {
    throw Error(ErrorKind::invalid_argument,
                "questions are open: close them before the prefix is compressed");
  }
  return *plain;
}

void Session::Impl::hold(LayerStores document, int n_tokens) {
  std::vector<DenseLayer> layers;
  for (SuffixLayer& layer : document) layers.push_back(layer.take_dense());
  plain = std::make_unique<PlainPrefix>(shape, std::move(layers), n_tokens);
  n_prompt = n_tokens;
}

LayerStores& Session::Impl::stores_of(int sequence) {
  const auto found = sequences.find(sequence);
  if (found == sequences.end()) {
    throw Error(ErrorKind::invalid_argument, str("sequence ", sequence, " is not open"));
  }
  return found->second;
}

// One step of the model over `rows`, all or nothing.
void Session::Impl::run(const PrefixCache* over, std::span<const SequenceRows> rows,
                        std::span<const int32_t> tokens, std::span<const int32_t> positions,
                        std::span<const uint8_t> want, QueryWindow* record,
                        std::vector<float>* logits) {
  std::vector<int32_t> sequence_of_row;
  for (size_t i = 0; i < rows.size(); ++i) {
    sequence_of_row.insert(sequence_of_row.end(), rows[i].n_rows, static_cast<int32_t>(i));
  }
  attention.begin_step(over, rows, positions, record, coded ? &trace : nullptr);
  try {
    model.step({tokens, positions, sequence_of_row, want}, attention, logits);
    attention.check_finite();
  } catch (...) {
    attention.abandon_step();
    throw;
  }
}

Session::Session(Model& model, ThreadPool& pool, const SessionOptions& options)
    : impl_(std::make_unique<Impl>(model, pool, options)) {
  if (options.chunk < 1)
    throw Error(ErrorKind::invalid_argument, str("chunk must be at least 1, got ", options.chunk));
}
Session::~Session() = default;

std::vector<float> Session::prefill(std::span<const int32_t> tokens, Selector::Needs needs,
                                    const std::function<void(const Progress&)>& on_progress,
                                    const std::atomic<bool>* stop) {
  Impl& s = *impl_;
  const ModelInfo& info = s.model.info();
  const int n = static_cast<int>(tokens.size());
  if (n == 0) throw Error(ErrorKind::invalid_argument, "the prompt has no tokens");
  if (n > info.context) {
    throw Error(
        ErrorKind::invalid_argument,
        str("the prompt has ", n, " tokens, but ", info.path, " has a context of ", info.context,
            "; shorten it, or stretch the context with --rope-scaling (linear:F or yarn:F)"));
  }
  s.forget();
  const int window = needs.window_queries;
  if (window > 0) s.window = QueryWindow(info.n_layers, info.heads, info.head_dim, n, window);

  LayerStores document;
  for (int layer = 0; layer < info.n_layers; ++layer) document.emplace_back(DenseLayer(s.shape));
  for (SuffixLayer& layer : document) layer.reserve(n);
  std::vector<float> logits;
  const auto start = Clock::now();
  for (int begin = 0; begin < n; begin += s.options.chunk) {
    if (stop != nullptr && stop->load()) {
      throw Error(ErrorKind::interrupted,
                  str("stopped after ", begin, " of ", n, " prompt tokens; nothing was kept"));
    }
    const int count = std::min(s.options.chunk, n - begin);
    std::vector<int32_t> positions(count);
    std::vector<uint8_t> want(count, 0);
    for (int i = 0; i < count; ++i) positions[i] = begin + i;
    want.back() = begin + count == n;
    const SequenceRows rows{&document, 0, count};
    s.run(nullptr, {&rows, 1}, tokens.subspan(begin, count), positions, want,
          window > 0 ? &s.window : nullptr, &logits);
    if (on_progress) on_progress({begin + count, n, seconds_since(start)});
  }
  s.hold(std::move(document), n);
  return logits;
}

void Session::each_layer(const std::function<void(const LayerInput&)>& look,
                         const std::function<void(const Progress&)>& on_progress) {
  Impl& s = *impl_;
  const PlainPrefix& plain = s.require_plain();
  const ModelInfo& info = s.model.info();
  const auto start = Clock::now();
  for (int layer = 0; layer < info.n_layers; ++layer) {
    const DenseLayer* dense = plain.dense(layer);
    if (dense == nullptr)
      throw Error(ErrorKind::invalid_argument, "the prefix is compressed already");
    const DenseRows keys(*dense, true), values(*dense, false);
    LayerInput input;
    input.layer = layer;
    input.n_layers = info.n_layers;
    input.n_tokens = s.n_prompt;
    input.kv_heads = info.kv_heads;
    input.heads = info.heads;
    input.head_dim = info.head_dim;
    input.keys = &keys;
    input.values = &values;
    if (s.window.size() > 0) input.q = s.window.rows(layer);
    input.logit_scale = info.logit_scale;
    input.pool = &s.pool;
    look(input);
    if (on_progress) on_progress({layer + 1, info.n_layers, seconds_since(start)});
  }
}

void Session::compress(Selector& selector, Explanation* explain,
                       const std::function<void(const Progress&)>& on_progress) {
  Impl& s = *impl_;
  std::vector<std::vector<std::vector<int32_t>>> kept;
  each_layer(
      [&](const LayerInput& input) {
        Selection selection = selector.select(input, explain != nullptr);
        kept.push_back(selection.kept);
        if (explain != nullptr) explain->layers.push_back(std::move(selection));
      },
      on_progress);
  // Nothing was changed so far; from here on only memory can fail, and each layer's dense form goes
  // before the next is gathered.
  for (size_t layer = 0; layer < kept.size(); ++layer)
    s.plain->select(static_cast<int>(layer), kept[layer], &s.pool);
  s.window = {};
}

void Session::encode(const ReadPlan& plan, std::shared_ptr<const CodedModel> code,
                     const std::function<void(const Progress&)>& on_progress) {
  Impl& s = *impl_;
  s.require_plain();
  const int n_layers = s.model.info().n_layers;
  check_fits(s.shape, n_layers, *code, plan);
  for (int layer = 0; layer < n_layers; ++layer) {
    if (s.plain->dense(layer) == nullptr)
      throw Error(ErrorKind::invalid_argument, "the prefix is compressed already");
    if (!is_protected(plan, layer, n_layers)) require_finite(*s.plain->dense(layer), layer, s.pool);
  }
  const auto start = Clock::now();
  s.coded = std::make_unique<CodedPrefix>(s.shape, s.plain->take_dense(), s.n_prompt,
                                          std::move(code), plan);
  s.plain.reset();
  s.window = {};
  s.trace = {};
  for (int layer = 0; layer < n_layers; ++layer) {
    s.coded->encode(layer, s.pool);
    if (on_progress) on_progress({layer + 1, n_layers, seconds_since(start)});
  }
}

void Session::start_empty() {
  Impl& s = *impl_;
  s.forget();
  LayerStores nothing;
  for (int layer = 0; layer < s.model.info().n_layers; ++layer)
    nothing.emplace_back(DenseLayer(s.shape));
  s.hold(std::move(nothing), 0);
}

ReadTrace& Session::read_trace() { return impl_->trace; }

const PrefixCache& Session::prefix() const { return impl_->require_prefix(); }
int Session::n_prompt() const { return impl_->n_prompt; }

int Session::open() {
  impl_->require_prefix();
  const int id = impl_->next_sequence++;
  impl_->sequences.emplace(id, impl_->require_prefix().new_suffix());
  return id;
}

void Session::close(int sequence) {
  impl_->stores_of(sequence);
  impl_->sequences.erase(sequence);
}

int Session::suffix_length(int sequence) const { return impl_->stores_of(sequence).front().size(); }
int Session::room(int sequence) const {
  return impl_->model.info().context - impl_->n_prompt - suffix_length(sequence);
}

void Session::Impl::extend(int sequence, std::span<const int32_t> tokens, bool all,
                           std::vector<float>* logits) {
  const PrefixCache& over = require_prefix();
  LayerStores& stores = stores_of(sequence);
  const int n = static_cast<int>(tokens.size());
  if (n == 0) throw Error(ErrorKind::invalid_argument, "no tokens to append");
  const int first = n_prompt + stores.front().size();
  if (first + n > model.info().context) {
    throw Error(ErrorKind::invalid_argument,
                str("the context of ", model.info().context, " tokens is full: ", first,
                    " are in use and ", n, " more were asked for"));
  }
  logits->clear();
  for (int begin = 0; begin < n; begin += options.chunk) {
    const int count = std::min(options.chunk, n - begin);
    std::vector<int32_t> positions(count);
    std::vector<uint8_t> want(count, all);
    for (int i = 0; i < count; ++i) positions[i] = first + begin + i;
    if (begin + count == n) want.back() = 1;
    const SequenceRows rows{&stores, 0, count};
    std::vector<float> part;
    run(&over, {&rows, 1}, tokens.subspan(begin, count), positions, want, nullptr, &part);
    logits->insert(logits->end(), part.begin(), part.end());
  }
}

std::vector<float> Session::extend(int sequence, std::span<const int32_t> tokens) {
  std::vector<float> logits;
  impl_->extend(sequence, tokens, false, &logits);
  return logits;
}

std::vector<float> Session::extend_all(int sequence, std::span<const int32_t> tokens) {
  std::vector<float> logits;
  impl_->extend(sequence, tokens, true, &logits);
  return logits;
}

void Session::decode(std::span<const int32_t> sequences, std::span<const int32_t> tokens,
                     std::vector<float>* logits) {
  Impl& s = *impl_;
  const PrefixCache& over = s.require_prefix();
  std::vector<SequenceRows> rows;
  std::vector<int32_t> positions;
  for (size_t i = 0; i < sequences.size(); ++i) {
    LayerStores& stores = s.stores_of(sequences[i]);
    if (room(sequences[i]) < 1) {
      throw Error(ErrorKind::invalid_argument, str("the context of ", s.model.info().context,
                                                   " tokens is full in sequence ", sequences[i]));
    }
    rows.push_back({&stores, static_cast<int>(i), 1});
    positions.push_back(s.n_prompt + stores.front().size());
  }
  const std::vector<uint8_t> want(tokens.size(), 1);
  s.run(&over, rows, tokens, positions, want, nullptr, logits);
}

Bytes Session::suffix_bytes() const {
  Bytes total;
  for (const auto& [id, stores] : impl_->sequences) {
    for (const SuffixLayer& layer : stores) total += layer.bytes();
  }
  return total;
}

}  // namespace kvist
