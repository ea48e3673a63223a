// SPDX-License-Identifier: MIT
// How many tokens a ratio keeps: the only formula, in integers.
#pragma once

#include <cstdint>

#include "kvist/core/ratio.h"

namespace kvist {

// floor(n * (1 - ratio)).
inline int64_t kept_tokens(int64_t n, Ratio ratio) { return floor_mul(n, ratio.complement()); }

}  // namespace kvist
