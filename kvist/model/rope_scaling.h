// SPDX-License-Identifier: MIT
// How positions are stretched: the file's scaling, or the user's in its place, as parameters of
// ggml's rope.
#pragma once

#include <span>
#include <string>

#include "kvist/model/gguf_check.h"

namespace kvist {

// The rope keys of a file, absent ones at their defaults.
struct RopeKeys {
  int dims = 0, context = 0, original_context = 0;  // original 0: not given
  double theta = 10000, factor = 0, attn_factor = 1, beta_fast = 32,
         beta_slow = 1;  // factor 0: not given
  std::string type;      // "", none, linear, yarn
  bool freq_factors = false, adjacent = true;
};

struct RopePlan {
  RopeParams params;
  RopeInfo info;
  int context = 0;  // tokens that can be addressed
};

// user: "", "linear:F" or "yarn:F" with F >= 1; replaces the file's scaling and multiplies the
// original context by F. Throws unsupported for a type it does not know (naming path and type),
// invalid_argument for a malformed `user`.
// How far each pair turns a position, as ggml's rope with these parameters does it. factors: of the
// file, [dims / 2], or none.
struct RopeTable {
  std::vector<double> frequencies;
  double magnitude = 1;
};
RopeTable rope_table(const RopeParams& params, std::span<const float> factors);

RopePlan plan_rope(const std::string& path, const RopeKeys& keys, const std::string& user);

}  // namespace kvist
