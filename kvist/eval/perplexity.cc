// SPDX-License-Identifier: MIT
// All contestants go through a window side by side, a few tokens at a time, so that each
// distribution of the uncompressed run is made once and compared with all.
#include "kvist/eval/perplexity.h"

#include <chrono>

#include "kvist/core/error.h"

namespace kvist {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kChunk = 64;  // tokens whose logits are held at a time

// A contestant's way through one window.
struct Runner {
  std::unique_ptr<Session> session;
  int sequence = 0;
};

Runner start(Model& model, ThreadPool& pool, const Contestant& contestant,
             std::span<const int32_t> plain) {
  Runner runner{std::make_unique<Session>(model, pool, SessionOptions{}), 0};
  if (plain.empty()) {
    runner.session->start_empty();
  } else {
    const auto selector = contestant.spec.make_selector();
    Observer* observer = selector.get();
    runner.session->prefill(plain, Watch({&observer, selector != nullptr ? 1u : 0u}));
    if (selector != nullptr) runner.session->compress(*selector);
  }
  if (const auto reading = contestant.spec.reading())
    runner.session->encode(reading->plan, contestant.code);
  runner.sequence = runner.session->open();
  return runner;
}

void check(Protocol protocol, std::span<const Contestant> contestants) {
  for (const Contestant& c : contestants) {
    const auto selector = c.spec.make_selector();
    if (selector != nullptr && selector->needs().repeat_chunk > 0) {
      throw Error(ErrorKind::unsupported,
                  str(c.spec.text,
                      " reads its document twice, which needs a chat; kvist compare "
                      "measures it"));
    }
    if (protocol == Protocol::causal && selector != nullptr) {
      throw Error(ErrorKind::invalid_argument,
                  str(c.spec.text,
                      " selects tokens of a whole prompt: it has no causal protocol, "
                      "ask for --protocol prefix"));
    }
    KVIST_ASSERT(!c.spec.reading() || c.code != nullptr);
  }
}

}  // namespace

std::vector<PerplexityResult> perplexity(Model& model, ThreadPool& pool, Protocol protocol,
                                         std::span<const Contestant> contestants,
                                         std::span<const std::vector<int32_t>> windows,
                                         const std::function<void(const Progress&)>& on_progress,
                                         const std::atomic<bool>* stop) {
  check(protocol, contestants);
  const auto begin_time = Clock::now();
  const auto vocab = static_cast<size_t>(model.info().vocab);
  const ModelInfo& info = model.info();
  const KvShape shape{info.kv_heads, info.heads, info.head_dim, Scalar::f16};
  const uint64_t plain_token = shape.token_bytes() * static_cast<uint64_t>(info.n_layers);
  std::vector<PerplexityResult> results(contestants.size());
  int done = 0, total = 0;
  for (const auto& window : windows) total += static_cast<int>(window.size());
  const Contestant uncompressed{parse_spec("none"), nullptr};
  for (const auto& window : windows) {
    const size_t head = protocol == Protocol::prefix ? window.size() / 2 : 0;
    const std::span<const int32_t> plain(window.data(), head);
    Runner base = start(model, pool, uncompressed, plain);
    std::vector<Runner> runners;
    for (const Contestant& c : contestants) runners.push_back(start(model, pool, c, plain));
    for (size_t at = head; at + 1 < window.size(); at += kChunk) {
      if (stop != nullptr && stop->load())
        throw Error(ErrorKind::interrupted, str("stopped after ", done, " of ", total, " tokens"));
      // The last token of a window has no target.
      const size_t n = std::min(kChunk, window.size() - 1 - at);
      const std::span<const int32_t> tokens(window.data() + at, n);
      const std::vector<float> expected = base.session->extend_all(base.sequence, tokens);
      for (size_t i = 0; i < runners.size(); ++i) {
        const std::vector<float> got = runners[i].session->extend_all(runners[i].sequence, tokens);
        for (size_t t = 0; t < n; ++t) {
          results[i].stats.add(std::span(expected).subspan(t * vocab, vocab),
                               std::span(got).subspan(t * vocab, vocab), window[at + t + 1]);
        }
      }
      if (on_progress) {
        on_progress({done + static_cast<int>(at + n), total,
                     std::chrono::duration<double>(Clock::now() - begin_time).count()});
      }
    }
    done += static_cast<int>(window.size());
    for (size_t i = 0; i < runners.size(); ++i) {
      Session& session = *runners[i].session;
      results[i].bytes =
          protocol == Protocol::prefix ? session.prefix().bytes() : session.suffix_bytes();
      results[i].plain_bytes =
          plain_token * (protocol == Protocol::prefix ? head : window.size() - 1);
      results[i].reads += session.read_trace();
    }
  }
  return results;
}

}  // namespace kvist
