// SPDX-License-Identifier: MIT
// How the coefficients of a VarRate code (arXiv:2607.15498) become bits: f16 with a shift for the
// layer, groups of 32 with a least value and a step, or the tree code in units of the basis.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvist/core/half.h"
#include "kvist/core/thread_pool.h"
#include "kvist/methods/rank/layer_code.h"
#include "kvist/methods/rank/plan.h"

namespace kvist {

// Rows of a basis that are read together, and coefficients of a group. A token's last row of them
// may be shorter: nothing is padded.
inline constexpr int kRankChunk = 32;

struct CoefficientFormat {
  int bits = 16;  // 16: f16; 32: f32; else 3, 4 or 8 in groups, 1 to 8 with the tree code
  RankPlan::Code code = RankPlan::Code::group;

  bool tree() const { return bits < 16 && code == RankPlan::Code::sigma; }
  bool groups() const { return bits < 16 && code == RankPlan::Code::group; }
  int unit() const { return bits >= 16 ? bits / 8 : 1; }  // bytes in which blocks are counted
  // Bytes of n <= 32 coefficients of a token, scales of a group included; not of tree codes.
  int row_bytes(int n) const { return (n * bits + 7) / 8 + (groups() && n > 0 ? 4 : 0); }
};
// Throws Error(invalid_argument) naming the width that is not possible.
void check(const CoefficientFormat& format);
inline CoefficientFormat format_of(const RankPlan& plan) { return {plan.bits, plan.code}; }

// The smallest k >= 0 with |x| <= 32768 * 2^k for all: f16 holds x * 2^-k.
int shift_of(std::span<const float> coefficients);

// A group's x is lo + step * code.
struct GroupScale {
  f16 lo, step;
};
// codes [x.size()], each below 2^bits; x.size() <= 32. Rounded scales are used for coding; all
// steps in fp32.
GroupScale code_group(std::span<const float> x, int bits, uint8_t* codes);

// Code i in bits [i * bits, (i + 1) * bits) of out, lowest first; (n * bits + 7) / 8 bytes.
void pack_codes(const uint8_t* codes, int n, int bits, uint8_t* out) noexcept;
void unpack_codes(const uint8_t* in, int n, int bits, uint8_t* codes) noexcept;

// Spread of the coefficients of each row: the root of its eigenvalue, at least 2^-20 of the first.
std::vector<float> row_sigmas(std::span<const float> eigenvalues);
// Root mean square of x_j / sigma_j, in double, rounded once; 0 for no coefficients.
f16 gain_of(std::span<const float> x, const float* sigma);
// Tree codes of x / (gain * sigma_j) to full depth [x.size()]; of `bits`, the code is leaf >> (8 -
// bits).
void code_leaves(std::span<const float> x, f16 gain, const float* sigma, uint8_t* leaves) noexcept;

// Throws Error(corrupt) naming layer and token of a coefficient that is not finite, or whose scale
// or gain f16 cannot hold.
void require_codable(const RankedCode& code, int layer, const CoefficientFormat& format,
                     std::span<const float> sigma, ThreadPool& pool);

}  // namespace kvist
