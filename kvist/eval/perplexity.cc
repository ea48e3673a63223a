// SPDX-License-Identifier: MIT
// Every distribution of the uncompressed run is made once and compared with all contestants'.
#include "kvist/eval/perplexity.h"

#include <algorithm>
#include <chrono>

#include "kvist/core/error.h"

namespace kvist {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kChunk = 64;  // tokens whose logits a contestant holds at a time

void check(Protocol protocol, std::span<const Contestant> contestants) {
  for (const Contestant& c : contestants) {
    const bool whole = c.spec.make_selector() != nullptr || c.spec.ranking();
    if (protocol == Protocol::causal && whole) {
      throw Error(ErrorKind::invalid_argument,
                  str(c.spec.text,
                      " looks at a whole prompt: it has no causal protocol, "
                      "ask for --protocol prefix"));
    }
    KVIST_ASSERT(!c.spec.reading() || c.code != nullptr);
  }
}

class Measuring {
 public:
  Measuring(Model& model, ThreadPool& pool, std::span<const Contestant> contestants,
            const PerplexityHooks& hooks)
      : model_(model),
        pool_(pool),
        contestants_(contestants),
        hooks_(hooks),
        vocab_(static_cast<size_t>(model.info().vocab)),
        results_(contestants.size()) {
    const ModelInfo& info = model.info();
    const KvShape shape{info.kv_heads, info.heads, info.head_dim, Scalar::f16};
    plain_token_ = shape.token_bytes() * static_cast<uint64_t>(info.n_layers);
  }

  std::vector<PerplexityResult> all(Protocol protocol,
                                    std::span<const std::vector<int32_t>> windows) {
    for (const auto& window : windows) {
      const size_t head = protocol == Protocol::prefix ? window.size() / 2 : 0;
      total_ += (window.size() - 1 - head) * contestants_.size();
    }
    for (const auto& window : windows)
      protocol == Protocol::prefix ? prefix(window) : causal(window);
    return std::move(results_);
  }

 private:
  using Ids = std::span<const int32_t>;

  // One prefill; the second half is read once plainly, then once over each contestant's prefix.
  void prefix(Ids window) {
    const size_t head = window.size() / 2;
    const Ids document = window.first(head), rest = window.subspan(head);
    Session session(model_, pool_, {});
    std::vector<std::unique_ptr<Selector>> selectors;
    std::vector<Observer*> observers;
    for (const Contestant& c : contestants_) {
      selectors.push_back(c.spec.make_selector());
      if (selectors.back()) observers.push_back(selectors.back().get());
    }
    Watch watch(observers);
    for (const Contestant& c : contestants_) {
      if (const auto ranking = c.spec.ranking())
        watch.needs.window_queries =
            std::max(watch.needs.window_queries, ranking->window_queries());
    }
    session.prefill(document, watch, {}, hooks_.stop);
    repeat(session, document, selectors);
    const int base = session.open();
    std::vector<float> expected;
    for (size_t at = 0; at + 1 < rest.size(); at += kChunk) {
      check_stop();
      const auto some = session.extend_all(base, rest.subspan(at, chunk_at(rest, at)));
      expected.insert(expected.end(), some.begin(), some.end());
    }
    session.close(base);
    for (size_t i = 0; i < contestants_.size(); ++i) {
      session.set_aside();
      if (selectors[i]) session.compress(*selectors[i]);
      selectors[i].reset();
      if (const auto reading = contestants_[i].spec.reading())
        session.encode(reading->plan, contestants_[i].code);
      if (const auto ranking = contestants_[i].spec.ranking())
        session.encode(*ranking, contestants_[i].ranked);
      const int sequence = session.open();
      for (size_t at = 0; at + 1 < rest.size(); at += kChunk) {
        check_stop();
        compare(i, std::span(expected).subspan(at * vocab_), session, sequence, rest, at);
      }
      session.close(sequence);
      finish(i, session, session.prefix().bytes(), head, rest.size() - 1);
      session.restore();
    }
  }

  // All side by side, a chunk at a time: each reads its own cache from the first token on.
  void causal(Ids window) {
    std::vector<std::unique_ptr<Session>> sessions;
    for (size_t i = 0; i <= contestants_.size(); ++i) {
      auto& session =
          sessions.emplace_back(std::make_unique<Session>(model_, pool_, SessionOptions{}));
      session->start_empty();
      if (i == contestants_.size()) continue;  // the uncompressed one
      if (const auto reading = contestants_[i].spec.reading())
        session->encode(reading->plan, contestants_[i].code);
    }
    std::vector<int> sequences;
    for (auto& session : sessions) sequences.push_back(session->open());
    for (size_t at = 0; at + 1 < window.size(); at += kChunk) {
      check_stop();
      const auto expected =
          sessions.back()->extend_all(sequences.back(), window.subspan(at, chunk_at(window, at)));
      for (size_t i = 0; i < contestants_.size(); ++i)
        compare(i, expected, *sessions[i], sequences[i], window, at);
    }
    for (size_t i = 0; i < contestants_.size(); ++i)
      finish(i, *sessions[i], sessions[i]->suffix_bytes(), window.size() - 1, window.size() - 1);
  }

  void repeat(Session& session, Ids document,
              const std::vector<std::unique_ptr<Selector>>& selectors) {
    for (const auto& selector : selectors) {
      const int chunk = selector ? selector->needs().repeat_chunk : 0;
      if (chunk == 0) continue;
      if (!hooks_.repeats)
        throw Error(ErrorKind::unsupported,
                    "a method reads the document twice, and nobody says how");
      Observer* observer = selector.get();
      session.repeat(hooks_.repeats(document, chunk), {&observer, 1}, {}, hooks_.stop);
    }
  }

  // The last token of a window has no target.
  static size_t chunk_at(Ids tokens, size_t at) { return std::min(kChunk, tokens.size() - 1 - at); }

  // expected [chunk][vocab]: the uncompressed run's logits after tokens[at], ...
  void compare(size_t i, std::span<const float> expected, Session& session, int sequence,
               Ids tokens, size_t at) {
    const size_t n = chunk_at(tokens, at);
    const std::vector<float> got = session.extend_all(sequence, tokens.subspan(at, n));
    std::vector<TokenDistance> distances(n);
    pool_.parallel_for(static_cast<int64_t>(n), [&](int64_t index) {
      const auto t = static_cast<size_t>(index);
      distances[t] =
          distance_between(expected.subspan(t * vocab_, vocab_),
                           std::span(got).subspan(t * vocab_, vocab_), tokens[at + t + 1]);
    });
    for (const TokenDistance& one : distances) results_[i].stats.add(one);
    done_ += n;
    if (hooks_.on_progress) {
      hooks_.on_progress({static_cast<int>(done_), static_cast<int>(total_),
                          std::chrono::duration<double>(Clock::now() - begin_).count()});
    }
  }

  void finish(size_t i, Session& session, const Bytes& bytes, size_t n_held, size_t n_targets) {
    PerplexityResult& r = results_[i];
    NllUnit unit{r.stats.nll_sum(), r.stats.base_nll_sum(), static_cast<double>(n_targets)};
    for (const NllUnit& before : r.documents) {
      unit.nll_a -= before.nll_a;
      unit.nll_b -= before.nll_b;
    }
    r.documents.push_back(unit);
    r.bytes = bytes;
    r.plain_bytes = plain_token_ * n_held;
    r.reads += session.read_trace();
    session.read_trace() = {};
  }

  void check_stop() const {
    if (hooks_.stop != nullptr && hooks_.stop->load())
      throw Error(ErrorKind::interrupted, str("stopped after ", done_, " of ", total_, " tokens"));
  }

  Model& model_;
  ThreadPool& pool_;
  std::span<const Contestant> contestants_;
  const PerplexityHooks& hooks_;
  size_t vocab_;
  uint64_t plain_token_ = 0;
  std::vector<PerplexityResult> results_;
  size_t done_ = 0, total_ = 0;  // tokens scored, of all contestants
  Clock::time_point begin_ = Clock::now();
};

}  // namespace

std::vector<PerplexityResult> perplexity(Model& model, ThreadPool& pool, Protocol protocol,
                                         std::span<const Contestant> contestants,
                                         std::span<const std::vector<int32_t>> windows,
                                         const PerplexityHooks& hooks) {
  check(protocol, contestants);
  return Measuring(model, pool, contestants, hooks).all(protocol, windows);
}

std::vector<std::vector<int32_t>> corpus_windows(std::span<const std::vector<int32_t>> documents,
                                                 int length, std::span<const int32_t> bos) {
  std::vector<std::vector<int32_t>> windows(1);
  for (const auto& document : documents) {
    for (int32_t token : document) {
      if (windows.back().size() == static_cast<size_t>(length)) windows.emplace_back();
      windows.back().push_back(token);
    }
  }
  if (windows.back().size() < static_cast<size_t>(length)) windows.pop_back();
  if (!bos.empty())
    for (auto& window : windows) window.front() = bos.front();
  return windows;
}

}  // namespace kvist
