// SPDX-License-Identifier: MIT
// Prefills the windows one by one and hands every layer to the accumulator.
#include "kvist/runtime/calibrate.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "kvist/core/buffer.h"
#include "kvist/core/error.h"
#include "kvist/methods/read/accumulator.h"

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

void add_prefix(Session& session, CalibrationAccumulator* sums) {
  Buffer<float> head, k, v;
  session.each_layer([&](const LayerInput& layer) {
    const size_t of_head =
        static_cast<size_t>(layer.n_tokens) * static_cast<size_t>(layer.head_dim);
    const size_t size = of_head * static_cast<size_t>(layer.kv_heads);
    if (k.size() != size) {
      head = Buffer<float>(of_head);
      k = Buffer<float>(size);
      v = Buffer<float>(size);
    }
    read_rows(*layer.keys, layer, &head, k.data());
    read_rows(*layer.values, layer, &head, v.data());
    const bool queries = layer.q.data() != nullptr;
    sums->add(layer.layer, layer.n_tokens, k.data(), v.data(), queries ? layer.q.dim(0) : 0,
              layer.q.data());
  });
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

ReadCalibration calibrate(Session& session, const ReadSource& source, const ReadBasis& basis,
                          std::span<const std::vector<int32_t>> windows,
                          const std::function<void(const Progress&)>& on_progress,
                          const std::atomic<bool>* stop) {
  CalibrationAccumulator sums(source, basis);
  size_t total = 0, done = 0;
  for (const auto& window : windows) total += window.size();
  const auto start = Clock::now();
  for (const auto& window : windows) {
    const auto chunk_done = [&](const Progress& p) {
      if (!on_progress) return;
      on_progress({static_cast<int>(done) + p.done, static_cast<int>(total),
                   std::chrono::duration<double>(Clock::now() - start).count()});
    };
    session.prefill(window, {.window_queries = static_cast<int>(window.size())}, chunk_done, stop);
    add_prefix(session, &sums);
    done += window.size();
  }
  return sums.finish();
}

ReadCalibration calibrate_on_prefix(Session& session, const ReadSource& source,
                                    const ReadBasis& basis) {
  CalibrationAccumulator sums(source, basis);
  add_prefix(session, &sums);
  return sums.finish();
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

}  // namespace kvist
