// SPDX-License-Identifier: MIT
// Every distribution of the uncompressed run is made once and compared with all contestants'.
#include "kvist/eval/perplexity.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "kvist/core/error.h"

namespace kvist {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kChunk = 64;  // tokens whose logits a contestant holds at a time

void check(Protocol protocol, std::span<const Recipe> contestants) {
  for (const Recipe& c : contestants) {
    const bool whole = c.spec.make_selector() != nullptr || c.spec.ranking();
    if (protocol == Protocol::causal && whole) {
      throw Error(ErrorKind::invalid_argument,
                  str(c.spec.text,
                      " looks at a whole prompt: it has no causal protocol, "
                      "ask for --protocol prefix"));
    }
    if (protocol == Protocol::causal && c.spec.reading() && c.code == nullptr) {
      throw Error(ErrorKind::invalid_argument,
                  str(c.spec.text,
                      " calibrates itself on a prompt, and the causal protocol has "
                      "none; give a calibration, or ask for --protocol prefix"));
    }
  }
}

std::vector<Recipe> with_uncompressed(std::span<const Recipe> contestants) {
  std::vector<Recipe> all{{parse_spec("none"), nullptr, nullptr}};
  for (const Recipe& c : contestants) {
    KVIST_ASSERT(!c.spec.none());
    all.push_back(c);
  }
  return all;
}

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// 1, 2, ... n.
std::vector<int> counting(size_t n) {
  std::vector<int> out(n);
  std::iota(out.begin(), out.end(), 1);
  return out;
}

class Measuring {
 public:
  Measuring(Model& model, ThreadPool& pool, const SessionOptions& options,
            std::span<const Recipe> contestants, const PerplexityHooks& hooks)
      : model_(model),
        pool_(pool),
        options_(options),
        recipes_(with_uncompressed(contestants)),
        hooks_(hooks),
        vocab_(static_cast<size_t>(model.info().vocab)),
        results_(recipes_.size()) {
    const ModelInfo& info = model.info();
    const KvShape shape{info.kv_heads, info.heads, info.head_dim, Scalar::f16};
    plain_token_ = shape.token_bytes() * static_cast<uint64_t>(info.n_layers);
  }

  std::vector<PerplexityResult> all(Protocol protocol,
                                    std::span<const std::vector<int32_t>> windows) {
    for (const auto& window : windows) {
      const size_t head = protocol == Protocol::prefix ? window.size() / 2 : 0;
      total_ += (window.size() - 1 - head) * recipes_.size();
    }
    for (const auto& window : windows)
      protocol == Protocol::prefix ? prefix(window) : causal(window);
    return std::move(results_);
  }

 private:
  using Ids = std::span<const int32_t>;

  // One prefill; the second half is read over each recipe's prefix, the uncompressed one first.
  void prefix(Ids window) {
    const size_t head = window.size() / 2;
    const Ids document = window.first(head), rest = window.subspan(head);
    Session session(model_, pool_, options_);
    SharedPrefill shared(session, hooks_.repeats);
    const double prefill_ms = shared.read(document, recipes_, {{}, hooks_.stop});
    std::vector<float> expected;
    for (size_t i = 0; i < recipes_.size(); ++i) {
      WindowCost cost;
      const auto placed = shared.place(i);
      cost.construct_ms = placed.construct_ms;
      cost.construct_bytes = placed.construct_bytes;
      const int sequence = session.open();
      for (size_t at = 0; at + 1 < rest.size(); at += kChunk) {
        check_stop();
        const auto got = session.extend_all(sequence, rest.subspan(at, chunk_at(rest, at)));
        if (i == 0) expected.insert(expected.end(), got.begin(), got.end());
        score(i, std::span(expected).subspan(at * vocab_), got, rest, at);
      }
      cost.read = read_share(session, counting(rest.size() - 1));
      session.close(sequence);
      finish(i, session, session.prefix().bytes(), head, rest.size() - 1);
      time_answer(session, rest, &cost);
      cost.ttft_ms += prefill_ms + cost.construct_ms;
      cost.answering_bytes = session.answering_bytes();
      cost.peak_rss_bytes = shared.placed_rss_bytes();
      results_[i].costs.push_back(cost);
      shared.restore();
    }
  }

  // All side by side, a chunk at a time: each reads its own cache from the first token on.
  void causal(Ids window) {
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<int> sequences;
    for (const Recipe& recipe : recipes_) {
      auto& session = sessions.emplace_back(std::make_unique<Session>(model_, pool_, options_));
      session->start_empty();
      apply(*session, recipe, nullptr);
      sequences.push_back(session->open());
    }
    const size_t n_targets = window.size() - 1;
    for (size_t at = 0; at < n_targets; at += kChunk) {
      check_stop();
      std::vector<float> expected;
      for (size_t i = 0; i < recipes_.size(); ++i) {
        auto got = sessions[i]->extend_all(sequences[i], window.subspan(at, chunk_at(window, at)));
        if (i == 0) expected = got;
        score(i, expected, got, window, at);
      }
    }
    for (size_t i = 0; i < recipes_.size(); ++i) {
      Session& session = *sessions[i];
      WindowCost cost;
      cost.read = read_share(session, counting(n_targets));
      cost.answering_bytes = session.answering_bytes();
      finish(i, session, session.suffix_bytes(), n_targets, n_targets);
      cost.decode_ms = time_steps(session, sequences[i], window);
      results_[i].costs.push_back(cost);
    }
  }

  // One token after the prefix, then some one by one.
  static void time_answer(Session& session, Ids tokens, WindowCost* cost) {
    const int sequence = session.open();
    const auto begin = Clock::now();
    session.extend(sequence, tokens.first(1));
    cost->ttft_ms = ms_since(begin);
    cost->decode_ms = time_steps(session, sequence, tokens.subspan(1));
    session.close(sequence);
    session.read_trace() = {};
  }

  // Milliseconds a step; 0 where no token fits.
  static double time_steps(Session& session, int sequence, Ids tokens) {
    constexpr size_t kSteps = 31;
    const size_t n = std::min({kSteps, tokens.size(), static_cast<size_t>(session.room(sequence))});
    std::vector<float> logits;
    const auto begin = Clock::now();
    for (size_t i = 0; i < n; ++i) session.decode({&sequence, 1}, tokens.subspan(i, 1), &logits);
    return n == 0 ? 0 : ms_since(begin) / static_cast<double>(n);
  }

  // The last token of a window has no target.
  static size_t chunk_at(Ids tokens, size_t at) { return std::min(kChunk, tokens.size() - 1 - at); }

  // expected, got [chunk][vocab]: logits of the uncompressed cache and of recipe i after
  // tokens[at], ...
  void score(size_t i, std::span<const float> expected, std::span<const float> got, Ids tokens,
             size_t at) {
    const size_t n = chunk_at(tokens, at);
    std::vector<TokenDistance> distances(n);
    pool_.parallel_for(static_cast<int64_t>(n), [&](int64_t index) {
      const auto t = static_cast<size_t>(index);
      distances[t] = distance_between(expected.subspan(t * vocab_, vocab_),
                                      got.subspan(t * vocab_, vocab_), tokens[at + t + 1]);
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
  SessionOptions options_;
  std::vector<Recipe> recipes_;  // the first is uncompressed
  const PerplexityHooks& hooks_;
  size_t vocab_;
  uint64_t plain_token_ = 0;
  std::vector<PerplexityResult> results_;
  size_t done_ = 0, total_ = 0;  // tokens scored, of all recipes
  Clock::time_point begin_ = Clock::now();
};

}  // namespace

std::vector<PerplexityResult> perplexity(Model& model, ThreadPool& pool,
                                         const SessionOptions& options, Protocol protocol,
                                         std::span<const Recipe> contestants,
                                         std::span<const std::vector<int32_t>> windows,
                                         const PerplexityHooks& hooks) {
  check(protocol, contestants);
  return Measuring(model, pool, options, contestants, hooks).all(protocol, windows);
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
