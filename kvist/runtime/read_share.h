// SPDX-License-Identifier: MIT
// How much of a cache attention reads, beside what it would read of f16.
#pragma once

#include <span>

#include "kvist/runtime/session.h"

namespace kvist {

// Of the calls since the trace was reset, over the f16 keys and values of every token, prefix and
// suffix, that the same calls would have read.
struct ReadShare {
  double logical = 0;  // numbers fetched: bits of codes, rows that stay plain
  double touched = 0;  // bytes of 64-byte lines that hold them, with metadata and tables read on
                       // the way; equal where nothing is coded, since rows are read whole
};

// suffix[i]: tokens behind the prefix that row i saw, its own included. Layers that a plan protects
// count as f16.
ReadShare read_share(Session& session, std::span<const int> suffix);

}  // namespace kvist
