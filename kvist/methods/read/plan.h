// SPDX-License-Identifier: MIT
// How one layer call of ReadKV (arXiv:2610.11245) is read: what is kept, the two budgets, and the
// switches of its controls and restricted readers.
#pragma once

#include <cstdint>

#include "kvist/core/ratio.h"

namespace kvist {

struct ReadPlan {
  int width = 8;           // W, bits kept of each number, 1 .. 8
  Ratio key_rate{2, 1};    // R_K, mean bits read of a key's number
  Ratio value_rate{2, 1};  // R_V
  // Share of R_K that the first layer reads beyond it and the last one less, linearly between; as
  // much as W leaves room for. See at_layer().
  Ratio tilt{0, 1};
  bool per_head = false;        // each KV head has a budget of its own
  int min_depth = 0;            // bits that every channel and token gets, 0 or 1
  bool pairs = false;           // two adjacent tokens share a depth
  bool uniform_keys = false;    // every channel at R_K bits, which is then whole: no allocation
  bool uniform_values = false;  // every token at R_V bits

  // Only depths `low` and W: the control that has no levels between.
  bool two_depth_keys = false;
  bool two_depth_values = false;
  int low = 0;  // 0 or 1

  // Weights of channels from the mean of q'^2 over the calibration texts, not from the query.
  bool calibrated_keys = false;
  // Weights of values times the variance of their head, not 1.
  bool physical_values = false;

  // The control that puts SparQ's choices (arXiv:2312.04985) in the place of both schedules: so
  // many channels of each KV head at kSparqDepth bits, then the whole record of so many tokens and
  // of the current one; 0 channels: off. The rates are not used.
  int sparq_channels = 0;
  int sparq_tokens = 128;
  static constexpr int kSparqDepth = 2;
  bool sparq() const { return sparq_channels > 0; }

  int sinks = 0;    // first tokens kept in 16 bits, exact, outside the value budget
  int recent = 0;   // newest tokens likewise
  int protect = 0;  // first and last layers that stay dense, each
};

// Throws Error(invalid_argument) naming the field that is out of range, or two that exclude each
// other.
void check(const ReadPlan& plan);

// The plan of one layer of a model: key_rate is what the tilt makes of it. Over all layers its mean
// is that of `plan`.
ReadPlan at_layer(const ReadPlan& plan, int layer, int n_layers);

// Whether a layer of a model stays dense: the first and last `protect`, at most half the layers.
bool is_protected(const ReadPlan& plan, int layer, int n_layers);

}  // namespace kvist
