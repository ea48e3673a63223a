// SPDX-License-Identifier: MIT
// Drives prefill, compression and decoding: which rows run in a step, and which stores they write.
#include "kvist/runtime/session.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <utility>

#include "kvist/cache/coded_prefix.h"
#include "kvist/cache/dense_rows.h"
#include "kvist/cache/ragged.h"
#include "kvist/cache/ranked_prefix.h"
#include "kvist/methods/rank/encode_layer.h"
#include "kvist/methods/rope.h"
#include "kvist/runtime/cached_attention.h"

namespace kvist {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

KvShape shape_of(const ModelInfo& info, Scalar type) {
  return {info.kv_heads, info.heads, info.head_dim, type};
}

Rope rope_of(const RopeInfo& info) { return {info.frequencies, info.magnitude, info.adjacent}; }

}  // namespace

Watch::Watch(std::span<Observer* const> all) : observers(all.begin(), all.end()) {
  for (const Observer* observer : all) needs.also(observer->needs());
}

struct Session::Impl {
  Impl(Model& m, ThreadPool& p, const SessionOptions& o)
      : model(m),
        pool(p),
        options(o),
        shape(shape_of(m.info(), o.cache_type)),
        attention(shape, m.info().n_layers, m.info().logit_scale, o.precision, p.n_threads()),
        rope(rope_of(m.info().rope)) {}

  const PrefixCache& require_prefix() const;
  PlainPrefix& require_plain();
  void hold(LayerStores document, int n_tokens);
  // A question, or a text of its own.
  struct Sequence {
    LayerStores stores;
    int n_tokens = 0;            // appended
    Evictor* evictor = nullptr;  // of a bounded one
    int most = 0;                // entries a head
    QueryWindow step = {};       // queries of one step, where the evictor looks at them
  };
  Sequence& sequence(int id);
  int step_tokens(const Sequence& sequence) const {
    return sequence.evictor == nullptr ? options.chunk : std::min(options.chunk, sequence.most / 4);
  }
  void make_room(Sequence& sequence, int n_new);
  void append(Sequence& sequence, std::span<const int32_t> tokens, std::span<const uint8_t> want,
              std::vector<float>* logits);
  Bytes suffix_bytes() const;
  void forget_window() {  // unless it is of a prefix that may come back
    if (!aside) window = {};
  }
  void forget() {  // prefix and questions
    plain.reset();
    coded.reset();
    ranked.reset();
    aside.reset();
    sequences.clear();
    n_prompt = 0;
    window = {};
    document_digest = 0;
    trace = {};
    most_beside = 0;
  }
  void run(const PrefixCache* over, std::span<const SequenceRows> rows,
           std::span<const int32_t> tokens, std::span<const int32_t> positions,
           std::span<const uint8_t> want, std::span<QueryWindow* const> record,
           std::vector<float>* logits);
  LayerInput layer_input(int layer, int n_tokens, const HeadRows& keys, const HeadRows& values);
  void show_step(const LayerStores& document, const QueryWindow& step, const Watch& watch);
  void show_step(const LayerStores& stores, const QueryWindow& step, Evictor* evictor);
  void show_repetition(const Repeat& repeat, const LayerStores& input, const QueryWindow& step,
                       std::span<Observer* const> observers);
  using Kept = std::vector<std::vector<int32_t>>;  // of a layer, by KV head
  std::vector<Kept> select(Session& session, Selector& selector, Explanation* explain,
                           const std::function<void(const Progress&)>& on_progress);
  void rank_layer(const RankPlan& plan, int layer, RankedPrefix& to, EncodeScratch& scratch);
  void extend(int sequence, std::span<const int32_t> tokens, bool all, std::vector<float>* logits);

  Model& model;
  ThreadPool& pool;
  SessionOptions options;
  KvShape shape;
  CachedAttention attention;
  Rope rope;
  std::unique_ptr<PlainPrefix> plain;  // one of the three
  std::unique_ptr<CodedPrefix> coded;
  std::unique_ptr<RankedPrefix> ranked;
  std::unique_ptr<PlainPrefix> aside;  // what restore() puts back
  ReadTrace trace;
  uint64_t most_beside = 0;  // bytes of suffixes and workspace, at their largest
  QueryWindow window;
  int n_prompt = 0;
  uint64_t document_digest = 0;  // digest of the tokens prefilled
  int next_sequence = 1;
  std::map<int, Sequence> sequences;
};

const PrefixCache& Session::Impl::require_prefix() const {
  if (coded) return *coded;
  if (ranked) return *ranked;
  if (!plain) throw Error(ErrorKind::invalid_argument, "no document was prefilled yet");
  return *plain;
}

// The prefix as something that may still be compressed.
PlainPrefix& Session::Impl::require_plain() {
  require_prefix();
  if (coded || ranked) throw Error(ErrorKind::invalid_argument, "the prefix is coded already");
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

Session::Impl::Sequence& Session::Impl::sequence(int id) {
  const auto found = sequences.find(id);
  if (found == sequences.end())
    throw Error(ErrorKind::invalid_argument, str("sequence ", id, " is not open"));
  return found->second;
}

// Evicts where n_new more tokens would not fit, and an eighth of the bound with them, so that it is
// not done for every token.
void Session::Impl::make_room(Sequence& s, int n_new) {
  const int size = s.stores.front().size();
  if (s.evictor == nullptr || size + n_new <= s.most) return;
  const int n_kept = std::min(size - 1, s.most - std::max(n_new, s.most / 8));
  std::vector<Kept> kept;
  for (int layer = 0; layer < model.info().n_layers; ++layer) {
    const DenseLayer& stored = s.stores[static_cast<size_t>(layer)].dense();
    const DenseRows keys(stored, true), values(stored, false);
    kept.push_back(s.evictor->stay(layer_input(layer, size, keys, values), n_kept));
  }
  for (size_t layer = 0; layer < kept.size(); ++layer) s.stores[layer].keep(kept[layer]);
}

// The next tokens of one sequence, in one step.
void Session::Impl::append(Sequence& s, std::span<const int32_t> tokens,
                           std::span<const uint8_t> want, std::vector<float>* logits) {
  const int count = static_cast<int>(tokens.size()), first = n_prompt + s.n_tokens;
  make_room(s, count);
  std::vector<int32_t> positions(tokens.size());
  for (int i = 0; i < count; ++i) positions[static_cast<size_t>(i)] = first + i;
  const SequenceRows rows{&s.stores, 0, count};
  std::vector<QueryWindow*> record;
  if (s.evictor != nullptr && s.evictor->needs().every_query) {
    s.step.restart(first, count);
    record.push_back(&s.step);
  }
  run(&require_prefix(), {&rows, 1}, tokens, positions, want, record, logits);
  s.n_tokens += count;
  if (!record.empty()) show_step(s.stores, s.step, s.evictor);
}

// One step of the model over `rows`, all or nothing.
void Session::Impl::run(const PrefixCache* over, std::span<const SequenceRows> rows,
                        std::span<const int32_t> tokens, std::span<const int32_t> positions,
                        std::span<const uint8_t> want, std::span<QueryWindow* const> record,
                        std::vector<float>* logits) {
  std::vector<int32_t> sequence_of_row;
  for (size_t i = 0; i < rows.size(); ++i) {
    sequence_of_row.insert(sequence_of_row.end(), rows[i].n_rows, static_cast<int32_t>(i));
  }
  attention.begin_step(over, rows, positions, record, coded || ranked ? &trace : nullptr);
  try {
    model.step({tokens, positions, sequence_of_row, want}, attention, logits);
    attention.check_finite();
  } catch (...) {
    attention.abandon_step();
    throw;
  }
  if (over != nullptr)
    most_beside = std::max(most_beside, suffix_bytes().allocated + attention.workspace_bytes());
}

Bytes Session::Impl::suffix_bytes() const {
  Bytes total;
  for (const auto& [id, open] : sequences) {
    for (const SuffixLayer& layer : open.stores) total += layer.bytes();
  }
  return total;
}

LayerInput Session::Impl::layer_input(int layer, int n_tokens, const HeadRows& keys,
                                      const HeadRows& values) {
  const ModelInfo& info = model.info();
  LayerInput input;
  input.layer = layer;
  input.n_layers = info.n_layers;
  input.n_tokens = n_tokens;
  input.kv_heads = info.kv_heads;
  input.heads = info.heads;
  input.head_dim = info.head_dim;
  input.keys = &keys;
  input.values = &values;
  input.rope = &rope;
  input.logit_scale = info.logit_scale;
  input.pinned = std::min(options.pin_tail, n_tokens);
  input.document = document_digest;
  input.output_projection = [this, layer] { return model.output_projection(layer); };
  input.pool = &pool;
  return input;
}

void Session::Impl::show_step(const LayerStores& document, const QueryWindow& step,
                              const Watch& watch) {
  std::optional<BackRotation> back;
  Buffer<float> q_pre;  // of one layer after the other
  if (watch.needs.pre_rope) {
    back.emplace(rope, step.first_position(), step.size());
    q_pre = Buffer<float>(static_cast<size_t>(step.rows(0).size()));
  }
  for (int layer = 0; layer < model.info().n_layers; ++layer) {
    const DenseLayer& stored = document[layer].dense();
    const DenseRows keys(stored, true), values(stored, false);
    LayerInput input = layer_input(layer, step.first_position() + step.size(), keys, values);
    input.q = step.rows(layer);
    if (back) {
      back->apply(input.q, q_pre.data(), pool);
      input.q_pre = TensorView<const float, 3>(q_pre.data(), input.q.shape());
    }
    for (Observer* observer : watch.observers)
      if (observer->needs().every_query) observer->observe(input);
  }
}

void Session::Impl::show_step(const LayerStores& stores, const QueryWindow& step,
                              Evictor* evictor) {
  for (int layer = 0; layer < model.info().n_layers; ++layer) {
    const DenseLayer& stored = stores[static_cast<size_t>(layer)].dense();
    const DenseRows keys(stored, true), values(stored, false);
    LayerInput input = layer_input(layer, stored.size(), keys, values);
    input.q = step.rows(layer);
    evictor->observe(input);
  }
}

void Session::Impl::show_repetition(const Repeat& r, const LayerStores& stores,
                                    const QueryWindow& step, std::span<Observer* const> observers) {
  for (int layer = 0; layer < model.info().n_layers; ++layer) {
    const DenseLayer& document = *plain->dense(layer);
    const DenseRows keys(document, true), values(document, false),
        again(stores[layer].dense(), true);
    const LayerInput input = layer_input(layer, n_prompt, keys, values);
    const Repetition repetition{r.begin, r.end, step.first_position() - n_prompt, step.rows(layer),
                                &again};
    for (Observer* observer : observers) observer->observe_repetition(input, repetition);
  }
}

Session::Session(Model& model, ThreadPool& pool, const SessionOptions& options)
    : impl_(std::make_unique<Impl>(model, pool, options)) {
  if (options.chunk < 1)
    throw Error(ErrorKind::invalid_argument, str("chunk must be at least 1, got ", options.chunk));
}
Session::~Session() = default;

std::vector<float> Session::prefill(std::span<const int32_t> tokens, const Watch& watch,
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
  std::vector<QueryWindow*> record;
  if (const int window = watch.needs.window_queries; window > 0) {
    s.window = QueryWindow(info.n_layers, info.heads, info.head_dim, n, window);
    record.push_back(&s.window);
  }
  QueryWindow step;  // the queries of one step, for those who watch
  if (watch.needs.every_query) {
    step = QueryWindow(info.n_layers, info.heads, info.head_dim, n, s.options.chunk);
    record.push_back(&step);
  }

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
    if (watch.needs.every_query) step.restart(begin, count);
    s.run(nullptr, {&rows, 1}, tokens.subspan(begin, count), positions, want, record, &logits);
    if (watch.needs.every_query) s.show_step(document, step, watch);
    if (on_progress) on_progress({begin + count, n, seconds_since(start)});
  }
  s.hold(std::move(document), n);
  Digest digest;
  digest.add(tokens);
  s.document_digest = digest.value();
  return logits;
}

void Session::repeat(std::span<const Repeat> repeats, std::span<Observer* const> observers,
                     const std::function<void(const Progress&)>& on_progress,
                     const std::atomic<bool>* stop) {
  Impl& s = *impl_;
  if (s.require_plain().dense(0) == nullptr)
    throw Error(ErrorKind::invalid_argument, "the prefix is compressed already");
  const ModelInfo& info = s.model.info();
  int total = 0, done = 0, longest = 0;
  for (const Repeat& r : repeats) {
    longest = std::max(longest, static_cast<int>(r.input.size()));
    total += static_cast<int>(r.input.size());
  }
  if (s.n_prompt + longest > info.context) {
    throw Error(
        ErrorKind::invalid_argument,
        str("repeating the document needs ", longest, " tokens after the ", s.n_prompt,
            " of the prompt, but the context is ", info.context, "; repeat smaller chunks"));
  }
  const auto start = Clock::now();
  QueryWindow step(info.n_layers, info.heads, info.head_dim, longest, s.options.chunk);
  QueryWindow* record[] = {&step};
  for (const Repeat& r : repeats) {
    LayerStores stores = s.require_plain().new_suffix();
    const std::span<const int32_t> tokens = r.input;
    for (int begin = 0, n = static_cast<int>(tokens.size()); begin < n; begin += s.options.chunk) {
      if (stop != nullptr && stop->load())
        throw Error(ErrorKind::interrupted, "stopped while the document was repeated");
      const int count = std::min(s.options.chunk, n - begin);
      std::vector<int32_t> positions(count);
      for (int i = 0; i < count; ++i) positions[i] = s.n_prompt + begin + i;
      const std::vector<uint8_t> want(count, 0);
      step.restart(positions[0], count);
      const SequenceRows rows{&stores, 0, count};
      s.run(s.plain.get(), {&rows, 1}, tokens.subspan(begin, count), positions, want, record,
            nullptr);
      s.show_repetition(r, stores, step, observers);
      done += count;
      if (on_progress) on_progress({done, total, seconds_since(start)});
    }
  }
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
    LayerInput input = s.layer_input(layer, s.n_prompt, keys, values);
    if (s.window.size() > 0) input.q = s.window.rows(layer);
    look(input);
    if (on_progress) on_progress({layer + 1, info.n_layers, seconds_since(start)});
  }
}

// What stays of each layer. Nothing is changed.
std::vector<Session::Impl::Kept> Session::Impl::select(
    Session& session, Selector& selector, Explanation* explain,
    const std::function<void(const Progress&)>& on_progress) {
  std::vector<Selection> selections;
  session.each_layer(
      [&](const LayerInput& input) {
        selections.push_back(selector.select(input, explain != nullptr));
      },
      on_progress);
  selector.settle(selections);
  std::vector<Kept> kept;
  for (const Selection& selection : selections) kept.push_back(selection.kept);
  if (explain != nullptr) explain->layers = std::move(selections);
  return kept;
}

void Session::compress(Selector& selector, Explanation* explain,
                       const std::function<void(const Progress&)>& on_progress) {
  Impl& s = *impl_;
  const auto kept = s.select(*this, selector, explain, on_progress);
  // Nothing was changed so far; from here on only memory can fail, and each layer's dense form goes
  // before the next is gathered.
  for (size_t layer = 0; layer < kept.size(); ++layer)
    s.plain->select(static_cast<int>(layer), kept[layer], &s.pool);
  s.forget_window();
}

void Session::encode(const ReadPlan& plan, std::shared_ptr<const CodedModel> code,
                     const std::function<void(const Progress&)>& on_progress) {
  Impl& s = *impl_;
  s.require_plain();
  const int n_layers = s.model.info().n_layers;
  check_fits(s.shape, n_layers, *code, plan);
  for (int layer = 0; layer < n_layers; ++layer)
    if (!is_protected(plan, layer, n_layers)) require_finite(*s.plain, layer, s.pool);
  const auto start = Clock::now();
  s.coded = std::make_unique<CodedPrefix>(std::move(s.plain), std::move(code), plan);
  s.forget_window();
  s.trace = {};
  for (int layer = 0; layer < n_layers; ++layer) {
    s.coded->encode(layer, s.pool);
    if (on_progress) on_progress({layer + 1, n_layers, seconds_since(start)});
  }
}

void Session::encode(const RankPlan& plan, std::shared_ptr<const RankedModel> model,
                     const std::function<void(const Progress&)>& on_progress) {
  Impl& s = *impl_;
  s.require_plain();
  check(plan);
  const int n_layers = s.model.info().n_layers;
  check_fits(s.shape, n_layers, *model);
  for (int layer = 0; layer < n_layers; ++layer) {
    if (s.plain->dense(layer) == nullptr)
      throw Error(ErrorKind::invalid_argument,
                  "varrate codes every token of a layer; a selector has taken some already");
    require_finite(*s.plain, layer, s.pool);
  }
  const auto start = Clock::now();
  auto ranked = std::make_unique<RankedPrefix>(s.shape, s.n_prompt, std::move(model), s.rope,
                                               RankedPrefix::Storage::of(plan));
  EncodeScratch scratch;
  try {
    for (int layer = 0; layer < n_layers; ++layer) {
      s.rank_layer(plan, layer, *ranked, scratch);
      if (on_progress) on_progress({layer + 1, n_layers, seconds_since(start)});
    }
  } catch (...) {
    if (ranked->n_layers() > 0) s.aside ? restore() : s.forget();
    throw;
  }
  s.plain.reset();
  s.ranked = std::move(ranked);
  s.forget_window();
  s.trace = {};
}

// Codes a dense layer as the next of `to`, and frees it.
void Session::Impl::rank_layer(const RankPlan& plan, int layer, RankedPrefix& to,
                               EncodeScratch& scratch) {
  const DenseLayer& dense = *plain->dense(layer);
  const DenseRows keys(dense, true), values(dense, false);
  LayerInput input = layer_input(layer, n_prompt, keys, values);
  if (window.size() > 0) input.q = window.rows(layer);
  const RankedCode code =
      encode_layer(input, to.model().layer(layer), plan, to.rotations(), pool, &scratch);
  std::vector<kernels::KvRun> runs;
  for (int head = 0; head < shape.kv_heads; ++head) runs.push_back(plain->run(layer, head));
  to.encode(code, runs, pool);
  plain->release(layer);
}

void Session::expand_keys(uint64_t most_bytes) {
  Impl& s = *impl_;
  if (!s.ranked)
    throw Error(ErrorKind::invalid_argument, "only keys of a varrate prefix can be expanded");
  s.ranked->expand(most_bytes, s.pool);
}

const RankedPrefix* Session::ranked() const { return impl_->ranked.get(); }

void Session::start_empty() {
  Impl& s = *impl_;
  s.forget();
  LayerStores nothing;
  for (int layer = 0; layer < s.model.info().n_layers; ++layer)
    nothing.emplace_back(DenseLayer(s.shape));
  s.hold(std::move(nothing), 0);
}

ReadTrace& Session::read_trace() { return impl_->trace; }

void Session::set_aside() {
  Impl& s = *impl_;
  s.require_plain();
  if (s.aside) return;
  s.aside = std::exchange(s.plain, std::make_unique<PlainPrefix>(*s.plain));
  s.attention.forget_workspace();
  s.most_beside = 0;
}

void Session::restore() {
  Impl& s = *impl_;
  if (!s.sequences.empty()) {
    throw Error(ErrorKind::invalid_argument,
                "questions are open: close them before the prefix is restored");
  }
  if (!s.aside) return;
  s.coded.reset();
  s.ranked.reset();
  s.plain = std::move(s.aside);
  s.trace = {};
}

const ModelInfo& Session::model() const { return impl_->model.info(); }
const PrefixCache& Session::prefix() const { return impl_->require_prefix(); }
uint64_t Session::prefix_digest() const {
  Digest digest;
  impl_->require_prefix().add_to(digest);
  return digest.value();
}
int Session::n_prompt() const { return impl_->n_prompt; }

int Session::open() {
  const PrefixCache& prefix = impl_->require_prefix();
  const int id = impl_->next_sequence++;
  impl_->sequences.emplace(id, Impl::Sequence{.stores = prefix.new_suffix()});
  return id;
}

int Session::open_bounded(Evictor& evictor, int most) {
  Impl& s = *impl_;
  constexpr int kLeast = 16;  // a step appends a quarter of the bound
  if (most < kLeast) {
    throw Error(ErrorKind::invalid_argument,
                str("a growing cache of ", most, " entries: expected at least ", kLeast));
  }
  if (s.coded || s.require_prefix().longest_head() > 0) {
    throw Error(ErrorKind::invalid_argument,
                "a growing cache holds all of its text: it begins with an empty prefix");
  }
  const int id = open();
  Impl::Sequence& made = s.sequence(id);
  made.evictor = &evictor;
  made.most = most;
  for (SuffixLayer& layer : made.stores) layer.reserve(most);
  if (evictor.needs().every_query) {
    const ModelInfo& info = s.model.info();
    made.step = QueryWindow(info.n_layers, info.heads, info.head_dim, s.step_tokens(made),
                            s.step_tokens(made));
  }
  return id;
}

void Session::close(int sequence) {
  impl_->sequence(sequence);
  impl_->sequences.erase(sequence);
}

int Session::suffix_length(int sequence) const { return impl_->sequence(sequence).n_tokens; }
int Session::suffix_entries(int sequence) const {
  return impl_->sequence(sequence).stores.front().size();
}
int Session::room(int sequence) const {
  return impl_->model.info().context - impl_->n_prompt - suffix_length(sequence);
}

void Session::Impl::extend(int id, std::span<const int32_t> tokens, bool all,
                           std::vector<float>* logits) {
  Sequence& s = sequence(id);
  const int n = static_cast<int>(tokens.size());
  if (n == 0) throw Error(ErrorKind::invalid_argument, "no tokens to append");
  const int first = n_prompt + s.n_tokens;
  if (first + n > model.info().context) {
    throw Error(ErrorKind::invalid_argument,
                str("the context of ", model.info().context, " tokens is full: ", first,
                    " are in use and ", n, " more were asked for"));
  }
  logits->clear();
  for (int begin = 0; begin < n; begin += step_tokens(s)) {
    const int count = std::min(step_tokens(s), n - begin);
    std::vector<uint8_t> want(count, all);
    if (begin + count == n) want.back() = 1;
    std::vector<float> part;
    append(s, tokens.subspan(begin, count), want, &part);
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
  for (int id : sequences) {
    if (room(id) < 1) {
      throw Error(ErrorKind::invalid_argument, str("the context of ", s.model.info().context,
                                                   " tokens is full in sequence ", id));
    }
    if (s.sequence(id).evictor != nullptr && sequences.size() > 1)
      throw Error(ErrorKind::invalid_argument,
                  str("sequence ", id, " is bounded: it decodes alone"));
  }
  const std::vector<uint8_t> want(tokens.size(), 1);
  if (sequences.size() == 1) return s.append(s.sequence(sequences[0]), tokens, want, logits);
  std::vector<SequenceRows> rows;
  std::vector<int32_t> positions;
  for (size_t i = 0; i < sequences.size(); ++i) {
    Impl::Sequence& one = s.sequence(sequences[i]);
    rows.push_back({&one.stores, static_cast<int>(i), 1});
    positions.push_back(s.n_prompt + one.n_tokens);
  }
  s.run(&over, rows, tokens, positions, want, {}, logits);
  for (int id : sequences) ++s.sequence(id).n_tokens;
}

Bytes Session::suffix_bytes() const { return impl_->suffix_bytes(); }

uint64_t Session::answering_bytes() const {
  const PrefixCache& prefix = impl_->require_prefix();
  return prefix.bytes().allocated + prefix.expanded_bytes() + impl_->most_beside;
}

}  // namespace kvist
