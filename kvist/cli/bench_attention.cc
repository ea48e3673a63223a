// SPDX-License-Identifier: MIT
// One layer's decode attention on random keys and values, timed beside ggml's flash attention.
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <thread>

#include "kvist/cache/ragged.h"
#include "kvist/cli/bench.h"
#include "kvist/core/error.h"
#include "kvist/core/rng.h"
#include "kvist/model/peer.h"

namespace kvist {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kKvHeads = 4;
constexpr int kInner = 4;  // calls per timing

struct Case {
  KvShape shape;
  int n_tokens = 0;
  std::vector<f16> k, v;  // [kv_heads][n_tokens][head_dim]
  std::vector<float> q;   // [heads][head_dim]
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape.head_dim)); }
};

Case make_case(int group, int head_dim, int n_tokens) {
  Case c;
  c.shape = {kKvHeads, kKvHeads * group, head_dim, Scalar::f16};
  c.n_tokens = n_tokens;
  Rng rng(static_cast<uint64_t>(n_tokens) * 1000 + static_cast<uint64_t>(head_dim * 10 + group));
  const size_t size = static_cast<size_t>(kKvHeads) * n_tokens * head_dim;
  // Uniform numbers of variance 1 do for timing, and are cheap to draw.
  const auto draw = [&] { return static_cast<float>((rng.uniform() - 0.5) * std::sqrt(12.0)); };
  for (auto* part : {&c.k, &c.v}) {
    part->resize(size);
    for (f16& x : *part) x = to_f16(draw());
  }
  c.q.resize(static_cast<size_t>(c.shape.heads) * head_dim);
  for (float& x : c.q) x = draw();
  return c;
}

std::unique_ptr<PlainPrefix> make_prefix(const Case& c) {
  DenseLayer layer(c.shape);
  layer.reserve(c.n_tokens);
  layer.resize(c.n_tokens);
  const int d = c.shape.head_dim;
  std::vector<float> k(static_cast<size_t>(kKvHeads) * d), v(k.size());
  for (int t = 0; t < c.n_tokens; ++t) {
    for (int h = 0; h < kKvHeads; ++h) {
      for (int i = 0; i < d; ++i) {
        const size_t at = (static_cast<size_t>(h) * c.n_tokens + t) * d + i;
        k[static_cast<size_t>(h) * d + i] = to_float(c.k[at]);
        v[static_cast<size_t>(h) * d + i] = to_float(c.v[at]);
      }
    }
    layer.write(t, k.data(), v.data());
  }
  std::vector<DenseLayer> layers;
  layers.push_back(std::move(layer));
  return std::make_unique<PlainPrefix>(c.shape, std::move(layers), c.n_tokens);
}

// Kept sets of unequal size whose mean is (1 - removed) * n: heads take 1.3, 0.7, 1.2 and 0.8 times
// the mean.
std::vector<std::vector<int32_t>> make_kept(const Case& c, double removed) {
  static constexpr double kShare[kKvHeads] = {1.3, 0.7, 1.2, 0.8};
  std::vector<std::vector<int32_t>> kept(kKvHeads);
  for (int h = 0; h < kKvHeads; ++h) {
    const double step = 1.0 / std::min(1.0, (1.0 - removed) * kShare[h]);
    for (double at = 0; at < c.n_tokens; at += step) kept[h].push_back(static_cast<int32_t>(at));
  }
  return kept;
}

// Attention of one query over what the prefix holds, in double precision.
std::vector<double> reference(const Case& c, const PrefixCache& prefix) {
  const int d = c.shape.head_dim;
  std::vector<double> out(static_cast<size_t>(c.shape.heads) * d, 0.0);
  std::vector<float> k, v;
  for (int h = 0; h < c.shape.heads; ++h) {
    if (h % c.shape.group() == 0) prefix.reconstruct(0, h / c.shape.group(), &k, &v);
    const size_t n = k.size() / d;
    std::vector<double> logit(n);
    double most = -std::numeric_limits<double>::infinity(), sum = 0;
    for (size_t t = 0; t < n; ++t) {
      for (int i = 0; i < d; ++i)
        logit[t] += double{c.q[static_cast<size_t>(h) * d + i]} * double{k[t * d + i]};
      logit[t] *= double{c.scale()};
      most = std::max(most, logit[t]);
    }
    double* o = out.data() + static_cast<size_t>(h) * d;
    for (size_t t = 0; t < n; ++t) {
      const double p = std::exp(logit[t] - most);
      sum += p;
      for (int i = 0; i < d; ++i) o[i] += p * double{v[t * d + i]};
    }
    for (int i = 0; i < d; ++i) o[i] /= sum;
  }
  return out;
}

void require_close(std::span<const float> got, std::span<const double> want, double bound,
                   const std::string& what) {
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    size += want[i] * want[i];
  }
  const double relative = std::sqrt(error / size);
  if (!(relative <= bound)) {
    throw Error(ErrorKind::corrupt, str(what, ": relative error ", relative,
                                        " against the double-precision reference, at most ", bound,
                                        " expected; not timed"));
  }
}

// kInner calls in a row, each worker in the pool taking part; seconds per call.
double time_ours(const Case& c, const PrefixCache& prefix, ThreadPool& pool,
                 AttendWorkspace& workspace, std::vector<float>* out) {
  const DenseLayer none(c.shape);
  const SuffixRows suffix{&none, 0, 1, -1};
  AttendCall call;
  call.q = c.q.data();
  call.out = out->data();
  call.n_rows = 1;
  call.logit_scale = c.scale();
  call.suffixes = {&suffix, 1};
  workspace.reserve(c.shape, 1, c.n_tokens, pool.n_threads());
  std::barrier barrier(pool.n_threads());
  double elapsed = 0;
  pool.run([&](Worker w) {
    barrier.arrive_and_wait();
    const auto start = Clock::now();
    for (int i = 0; i < kInner; ++i) {
      if (w.index == 0) workspace.begin();
      barrier.arrive_and_wait();
      prefix.attend(call, workspace, w);
      barrier.arrive_and_wait();
    }
    if (w.index == 0) elapsed = std::chrono::duration<double>(Clock::now() - start).count();
  });
  return elapsed / kInner;
}

double time_flash(FlashPeer& peer, const Case& c, std::vector<float>* out) {
  const auto start = Clock::now();
  for (int i = 0; i < kInner; ++i) peer.attend(c.q, c.scale(), *out);
  return std::chrono::duration<double>(Clock::now() - start).count() / kInner;
}

// Lets the other side's threads stop spinning before the clock starts again.
void settle() { std::this_thread::sleep_for(std::chrono::milliseconds(3)); }

std::string length_name(int n) { return n % 1024 == 0 ? str(n / 1024, "k") : str(n); }

void bench_one(int group, int head_dim, int n_tokens, int repeats, ThreadPool& pool,
               const RowSink& sink) {
  const Case c = make_case(group, head_dim, n_tokens);
  const auto dense = make_prefix(c);
  FlashPeer flash(c.shape.heads, kKvHeads, head_dim, n_tokens, 1, c.k, c.v, pool.n_threads());
  AttendWorkspace workspace;
  std::vector<float> out(c.q.size());
  const std::string shape = str("g", group, "/d", head_dim, "/", length_name(n_tokens));

  const std::vector<double> want = reference(c, *dense);
  time_ours(c, *dense, pool, workspace, &out);
  require_close(out, want, 1e-5, str("attention/dense/", shape));
  time_flash(flash, c, &out);
  // Random values nearly cancel in the mean, which brings out the f16 sums of ggml.
  require_close(out, want, 5e-2, str("ggml flash attention ", shape));

  struct Ragged {
    const char* name;
    double target;
    std::unique_ptr<PlainPrefix> prefix;
    Sample sample;
  };
  std::vector<Ragged> ragged;
  for (const auto& [name, removed, target] :
       {std::tuple{"twinkv0.5", 0.5, 1.8}, std::tuple{"twinkv0.75", 0.75, 3.4}}) {
    ragged.push_back({name, target, make_prefix(c), {}});
    ragged.back().prefix->select(0, make_kept(c, removed));
    time_ours(c, *ragged.back().prefix, pool, workspace, &out);
    require_close(out, reference(c, *ragged.back().prefix), 1e-5,
                  str("attention/", name, "/", shape));
  }
  Sample ours, theirs;
  for (int r = 0; r < repeats; ++r) {
    theirs.seconds.push_back(time_flash(flash, c, &out));
    settle();
    ours.seconds.push_back(time_ours(c, *dense, pool, workspace, &out));
    for (Ragged& x : ragged)
      x.sample.seconds.push_back(time_ours(c, *x.prefix, pool, workspace, &out));
  }
  sink({str("attention/dense/", shape), ours.median() * 1e3, ours.spread(), "ms",
        "ggml_flash_attn_ext f16", theirs.median() * 1e3, RatioKind::speedup, 2.0});
  if (n_tokens < 8192) return;
  for (const Ragged& x : ragged) {
    sink({str("attention/", x.name, "/", shape), x.sample.median() * 1e3, x.sample.spread(), "ms",
          "our dense", ours.median() * 1e3, RatioKind::speedup, x.target});
  }
}

}  // namespace

void bench_attention(const AttentionBenchOptions& options, ThreadPool& pool, const RowSink& sink) {
  for (int head_dim : options.head_dims) {
    for (int group : options.groups) {
      for (int n : options.lengths) bench_one(group, head_dim, n, options.repeats, pool, sink);
    }
  }
}

}  // namespace kvist
