// SPDX-License-Identifier: MIT
// Splits one activation row into what ggml's 8-bit blocks hold exactly and what they would lose.
#pragma once

#include <cstdint>

namespace kvist {

// ggml multiplies 4- and 8-bit weights by activations that it rounds to 8 bits in blocks of 32. Two
// such products, of `high` and of `low`, add up to one of about 16 bits, for one reading of the
// weights' cost more.
//
//   x     [n]; n is a multiple of 32
//   high  [n] out: every block is a multiple of an fp16 step, at most 127 steps: ggml's rounding
//   leaves it as it is low   [n] out: x - high
void split_activation(const float* x, int64_t n, float* high, float* low);

}  // namespace kvist
