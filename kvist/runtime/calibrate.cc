// SPDX-License-Identifier: MIT
// Prefills the windows one by one and hands every layer to the accumulator.
#include "kvist/runtime/calibrate.h"

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <numbers>
#include <optional>

#include "kvist/core/buffer.h"
#include "kvist/core/error.h"
#include "kvist/methods/rank/learn_basis.h"
#include "kvist/methods/read/accumulator.h"
#include "kvist/methods/rope.h"

namespace kvist {
namespace {

using Clock = std::chrono::steady_clock;

// All rows of a layer, as [tokens][kv_heads][head_dim].
void read_rows(const HeadRows& rows, const LayerInput& layer, Buffer<float>* head, float* out) {
  const auto d = static_cast<size_t>(layer.head_dim), heads = static_cast<size_t>(layer.kv_heads);
  for (int h = 0; h < layer.kv_heads; ++h) {
    rows.read(h, 0, layer.n_tokens, head->data());
    for (int t = 0; t < layer.n_tokens; ++t) {
      std::copy_n(head->data() + static_cast<size_t>(t) * d, d,
                  out + (static_cast<size_t>(t) * heads + static_cast<size_t>(h)) * d);
    }
  }
}

using Sums = std::vector<std::unique_ptr<CalibrationAccumulator>>;

// Where a window stands in [0, span): its first token at `first`, and those beyond the end at the
// beginning.
struct Place {
  int first = 0, span = 0;
};

// Puts windows all over [0, span), however many there are: the first at 0, others after it by
// multiples of the golden ratio.
class Places {
 public:
  explicit Places(int span) : span_(span) {}
  Place next() {
    const double turns = static_cast<double>(n_++) * std::numbers::phi;
    return {static_cast<int>((turns - std::floor(turns)) * span_), span_};
  }

 private:
  int span_;
  int64_t n_ = 0;
};

// Keys or queries of the last tokens of a window of n_tokens, in its place. rows [rows][width].
void put_in_place(const Place& place, const Rope& rope, int n_tokens, int head_dim, int64_t width,
                  std::span<float> rows) {
  const auto turn = [&](int64_t begin, int64_t end, int by) {
    if (by == 0) return;
    const PairRotation rotation = PairRotation::shift(rope, by);
    for (int64_t at = begin * width; at < end * width; at += head_dim)
      rotation.apply(rows.data() + at);
  };
  const int64_t n = static_cast<int64_t>(rows.size()) / width;
  const int64_t wraps = std::clamp<int64_t>(n - n_tokens + place.span - place.first, 0, n);
  turn(0, wraps, place.first);
  turn(wraps, n, place.first - place.span);
}

// Layers are read one after another and summed up side by side, each on a thread of its own: once
// for each place.
void add_prefix(Session& session, const Sums& sums, std::span<const Place> places) {
  struct Rows {
    int n_tokens = 0, n_queries = 0, heads = 0, kv_heads = 0, head_dim = 0;
    Buffer<float> k, v;
    std::span<const float> q;
  };
  std::vector<Rows> layers;
  ThreadPool* pool = nullptr;
  const Rope* rope = nullptr;
  session.each_layer([&](const LayerInput& layer) {
    const size_t of_head =
        static_cast<size_t>(layer.n_tokens) * static_cast<size_t>(layer.head_dim);
    const size_t size = of_head * static_cast<size_t>(layer.kv_heads);
    Buffer<float> head(of_head);
    Rows rows{
        layer.n_tokens,      0, layer.heads, layer.kv_heads, layer.head_dim, Buffer<float>(size),
        Buffer<float>(size), {}};
    read_rows(*layer.keys, layer, &head, rows.k.data());
    read_rows(*layer.values, layer, &head, rows.v.data());
    if (layer.q.data() != nullptr) {
      rows.n_queries = static_cast<int>(layer.q.dim(0));
      rows.q = {layer.q.data(), static_cast<size_t>(layer.q.dim(0) * layer.q.stride(0))};
    }
    layers.push_back(std::move(rows));
    pool = layer.pool;
    rope = layer.rope;
  });
  const auto n_layers = static_cast<int64_t>(layers.size());
  for (const Place& place : places) {
    pool->parallel_for(n_layers, [&](int64_t i) {
      const Rows& rows = layers[static_cast<size_t>(i)];
      std::vector<float> k(rows.k.data(), rows.k.data() + rows.k.size());
      std::vector<float> q(rows.q.begin(), rows.q.end());
      for (const auto& [x, heads] : {std::pair(&k, rows.kv_heads), std::pair(&q, rows.heads)})
        put_in_place(place, *rope, rows.n_tokens, rows.head_dim, int64_t{heads} * rows.head_dim,
                     *x);
      for (const auto& sum : sums)
        sum->add(static_cast<int>(i), rows.n_tokens, k.data(), rows.v.data(), rows.n_queries,
                 q.data());
    });
  }
}

int64_t total(std::span<const std::vector<int32_t>> windows) {
  int64_t tokens = 0;
  for (const auto& window : windows) tokens += static_cast<int64_t>(window.size());
  return tokens;
}

// Prefills one window after another and calls done() for each; with_queries: those of all positions
// are there then.
template <typename Done>
void read_windows(Session& session, std::span<const std::vector<int32_t>> windows,
                  bool with_queries, const std::function<void(const Progress&)>& on_progress,
                  const std::atomic<bool>* stop, const Done& done_with) {
  const auto all = static_cast<int>(total(windows));
  size_t done = 0;
  const auto start = Clock::now();
  for (const auto& window : windows) {
    const auto chunk_done = [&](const Progress& p) {
      if (!on_progress) return;
      on_progress({static_cast<int>(done) + p.done, all,
                   std::chrono::duration<double>(Clock::now() - start).count()});
    };
    const int queries = with_queries ? static_cast<int>(window.size()) : 0;
    session.prefill(window, Needs{.window_queries = queries}, chunk_done, stop);
    done_with();
    done += window.size();
  }
}

const char* from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

}  // namespace

ReadSource read_source(const ModelInfo& info) {
  ReadSource source;
  source.model = info.hash;
  const RopeInfo& r = info.rope;
  source.rope =
      fmt::format("theta {:.9g}, {} dims, {}, scaling {} {:.9g} of {}", r.theta, r.dims,
                  r.adjacent ? "adjacent" : "half", r.scaling, r.factor, r.original_context);
  source.shape = {info.n_layers, info.kv_heads, info.heads, info.head_dim};
  return source;
}

std::vector<ReadCalibration> calibrate(Session& session, const ReadSource& source,
                                       std::span<const ReadBasis> bases,
                                       std::span<const std::vector<int32_t>> windows, int span,
                                       const std::function<void(const Progress&)>& on_progress,
                                       const std::atomic<bool>* stop) {
  Sums sums;
  for (const ReadBasis& basis : bases)
    sums.push_back(std::make_unique<CalibrationAccumulator>(source, basis));
  const int64_t tokens = total(windows);
  const int64_t turns = tokens == 0 ? 1 : (2 * int64_t{span} + tokens - 1) / tokens;
  Places places(span);
  read_windows(session, windows, true, on_progress, stop, [&] {
    std::vector<Place> all(static_cast<size_t>(turns));
    for (Place& place : all) place = places.next();
    add_prefix(session, sums, all);
  });
  std::vector<ReadCalibration> calibrations;
  for (const auto& sum : sums) {
    calibrations.push_back(sum->finish());
    calibrations.back().tokens = tokens;
    calibrations.back().positions = span;
  }
  return calibrations;
}

std::vector<RankBasis> learn_bases(Session& session, const ReadSource& source, const RankPlan& plan,
                                   std::span<const RankPlan::Basis> kinds, int n_rows,
                                   std::span<const std::vector<int32_t>> windows,
                                   const std::function<void(const Progress&)>& on_progress,
                                   const std::atomic<bool>* stop) {
  BasisLearner learner(source, plan);
  std::optional<RotationTable> rotation;  // as long as the longest window so far
  ThreadPool* pool = nullptr;
  read_windows(session, windows, false, on_progress, stop, [&] {
    session.each_layer([&](const LayerInput& layer) {
      if (!rotation || rotation->n_positions() < layer.n_tokens)
        rotation.emplace(*layer.rope, layer.n_tokens);
      learner.add(layer, *rotation);
      pool = layer.pool;
    });
  });
  if (pool == nullptr) throw Error(ErrorKind::invalid_argument, "no text to learn a basis from");
  std::vector<RankBasis> bases;
  for (const RankPlan::Basis kind : kinds) bases.push_back(learner.finish(kind, n_rows, *pool));
  return bases;
}

ReadCalibration calibrate_on_prefix(Session& session, const ReadSource& source,
                                    const ReadBasis& basis) {
  Sums sums;
  sums.push_back(std::make_unique<CalibrationAccumulator>(source, basis));
  const Place as_read{0, session.n_prompt()};
  add_prefix(session, sums, {&as_read, 1});
  return sums.front()->finish();
}

std::string calibration_folder() {
  if (const char* folder = from_environment("KVIST_CALIBRATION")) return folder;
  if (const char* data = from_environment("XDG_DATA_HOME")) return str(data, "/kvist");
  const char* home = from_environment("HOME");
  return str(home != nullptr ? home : ".", "/.local/share/kvist");
}

std::string calibration_path(const ReadSource& source, const ReadBasis& basis) {
  return str(calibration_folder(), "/", source.model, "-", basis.klt ? "klt" : "hadamard", "-",
             basis.seed, basis.layer_signs ? "-per-layer" : "", ".readkv");
}

std::string basis_path(const ReadSource& source, RankPlan::Basis kind) {
  return str(calibration_folder(), "/", source.model, "-", name(kind), ".varrate");
}

}  // namespace kvist
