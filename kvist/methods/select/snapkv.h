// SPDX-License-Identifier: MIT
// The score of SnapKV (arXiv:2404.14469), which PyramidKV and Ada-KV use as well.
#pragma once

#include "kvist/methods/method.h"

namespace kvist {

inline constexpr OptionSpec kWindowSizeOption{
    .name = "window_size",
    .kind = OptionSpec::Kind::integer,
    .fallback = "64",
    .unit = "tokens",
    .help = "last tokens, whose queries vote and which stay",
    .least = 1,
    .most = 4096};
inline constexpr OptionSpec kKernelSizeOption{.name = "kernel_size",
                                              .kind = OptionSpec::Kind::integer,
                                              .fallback = "5",
                                              .unit = "tokens",
                                              .help = "odd width of the average over neighbours",
                                              .least = 1,
                                              .most = 4095};

// Throws Error(invalid_argument) where a window, which stays, does not fit into the prompt or into
// n_kept, or its queries were not recorded.
void require_window(const LayerInput& layer, int window, int n_kept);

// Mean attention of the window's queries on each earlier token, averaged over `kernel_size`
// neighbours (beyond the ends: 0) and over the group; the window itself scores above all.
class SnapKv final : public Scorer {
 public:
  explicit SnapKv(const Options& options);
  Needs needs() const override { return {.window_queries = window_}; }
  // Throws Error(invalid_argument) where the window does not fit into the prompt or into n_kept.
  void require_room(const LayerInput& layer, int n_kept) const override;
  Scores score(const LayerInput& layer) override;

 private:
  int window_, kernel_;
};

extern const Method snapkv;

}  // namespace kvist
