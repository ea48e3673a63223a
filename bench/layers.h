// SPDX-License-Identifier: MIT
// Time of a layer call among others, for readers whose workers go through all layers together.
#pragma once

#include <chrono>

#include "kvist/core/meeting.h"
#include "kvist/core/thread_pool.h"

namespace kvist {

// Microseconds a layer: fn(layer, worker) of n_layers layers, one after the other. Workers stay
// awake from layer to layer, as they do in a model's graph.
template <typename Fn>
double layer_us(ThreadPool& pool, int n_layers, const Fn& fn) {
  Meeting meeting;
  std::chrono::duration<double, std::micro> passed{};
  pool.run([&](Worker w) {
    const auto meet = [&] { meeting.each(0, w, [](int) {}); };
    meet();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < n_layers; ++i) {
      fn(i, w);
      meet();
    }
    if (w.index == 0) passed = std::chrono::steady_clock::now() - start;
  });
  return passed.count() / n_layers;
}

}  // namespace kvist
