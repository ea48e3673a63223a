// SPDX-License-Identifier: MIT
#include "kvist/methods/rank/budget.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "kvist/core/error.h"
#include "kvist/methods/rank/anchors.h"

namespace kvist {
namespace {

using Infeasible = RankPlan::Infeasible;

struct Shape {
  int64_t tokens, width, kv_heads, rows;
};

int64_t anchors_at(const Shape& shape, int64_t stride) {
  return (shape.tokens + stride - 1) / stride;
}

int64_t blocks_of(int64_t coded) { return (coded + 63) / 64; }

// Bits beside exact rows and coefficients, as RankedLayer stores them: indices, ranks, places in a
// block, offsets of blocks; gains, counts of neighbours, bounds of keys and the weights of rows
// where a plan has them.
int64_t metadata_bits(const RankPlan& plan, const Shape& shape, int64_t stride, int64_t coded) {
  const auto anchors = static_cast<uint64_t>(anchors_at(shape, std::max<int64_t>(stride, 1)));
  const int64_t index = std::max<int64_t>(1, std::bit_width(anchors - 1));
  int64_t each = (plan.anchored() ? plan.neighbours * index : 0) + 16 + 8;
  if (plan.bits < 16 && plan.code == RankPlan::Code::sigma) each += 16;
  if (plan.causal_anchors) each += 8;
  if (plan.skip) each += 16 * shape.kv_heads;
  return coded * each + blocks_of(coded) * 32 + (plan.read ? shape.rows * 64 : 0);
}

// A group of 32 codes has 32 bits of scales; each token's last group may be almost empty and ends
// on a whole byte. Of tree codes a block does.
constexpr int64_t kGroup = 32, kGroupScales = 32, kByteEnd = 7;

// What exact rows and metadata leave of the share of a layer's bits.
int64_t bits_left(const RankPlan& plan, const Shape& shape, const RankBudget& b) {
  return floor_mul(shape.tokens * shape.width * 16, plan.keep) - b.exact * shape.width * 16 -
         metadata_bits(plan, shape, b.stride, b.coded);
}

int64_t scalars(const RankPlan& plan, const Shape& shape, const RankBudget& b) {
  if (!plan.strict) return floor_mul(shape.tokens * shape.width, plan.keep) - b.exact * shape.width;
  const int64_t left = bits_left(plan, shape, b);
  return left < 0 ? -1 : left / 16;
}

int64_t coefficients_in_bytes(const RankPlan& plan, const Shape& shape, RankBudget* b) {
  const int64_t left = bits_left(plan, shape, *b);
  if (plan.bits >= 16) return left < 0 ? -1 : left / plan.bits;
  const bool grouped = plan.code == RankPlan::Code::group;
  const int64_t ends =
      grouped ? b->coded * (kByteEnd + kGroupScales) : blocks_of(b->coded) * kByteEnd;
  const int64_t each = kGroup * plan.bits + (grouped ? kGroupScales : 0);  // of 32 coefficients
  return left < ends ? -1 : (left - ends) * kGroup / each;
}

RankBudget count(const RankPlan& plan, const Shape& shape, int64_t stride) {
  RankBudget b;
  b.stride = plan.anchored() ? static_cast<int>(stride) : 0;
  b.least_rank = plan.basis == RankPlan::Basis::heads ? 0 : plan.least_rank;
  b.exact = exact_count(shape.tokens, plan.anchored() ? stride : shape.tokens, plan.window);
  b.coded = shape.tokens - b.exact;
  b.total = plan.rate == RankPlan::Rate::scalars ? scalars(plan, shape, b)
                                                 : coefficients_in_bytes(plan, shape, &b);
  return b;
}

bool feasible(const RankBudget& b) { return b.total >= 0 && b.total >= b.least_rank * b.coded; }

[[noreturn]] void refuse(const RankPlan& plan, const Shape& shape, const RankBudget& b) {
  const int64_t floor = b.least_rank * b.coded;
  std::string enough;
  if (plan.rate == RankPlan::Rate::scalars && !plan.strict) {
    const int64_t num = b.exact * shape.width + floor, den = shape.tokens * shape.width;
    const int64_t common = std::gcd(num, den);
    enough =
        fmt::format("; the smallest share that works here is {}/{}, about {:.4f}", num / common,
                    den / common, static_cast<double>(num) / static_cast<double>(den));
  }
  throw Error(
      ErrorKind::invalid_argument,
      str("varrate: keep=", plan.keep.text(), " is too small for a prompt of ", shape.tokens,
          " tokens: ", b.exact, " stay exact, which leaves ", b.total, " coefficients of the ",
          floor, " that a rank of at least ", b.least_rank, " for the other ", b.coded, " takes",
          enough, "; or give on_infeasible=widen_stride, shrink_floor or exact"));
}

// Twice the stride as long as that leaves anchors enough.
RankBudget widen(const RankPlan& plan, const Shape& shape, RankBudget b) {
  while (!feasible(b) && anchors_at(shape, int64_t{b.stride} * 2) >= plan.neighbours)
    b = count(plan, shape, int64_t{b.stride} * 2);
  return b;
}

}  // namespace

RankBudget rank_budget(const RankPlan& plan, int n_tokens, int width, int n_rows, int kv_heads) {
  check(plan);
  const Shape shape{n_tokens, width, kv_heads, n_rows};
  if (shape.tokens * shape.width >= int64_t{1} << 39) {
    throw Error(ErrorKind::unsupported, str("varrate: ", n_tokens, " tokens of ", width,
                                            " numbers; a layer has fewer than 2^39"));
  }
  RankBudget b = count(plan, shape, plan.stride);
  const auto keep_everything = [&] {
    b.exact = shape.tokens;
    b.coded = b.total = b.spendable = 0;
    return b;
  };
  if (plan.keep.num == plan.keep.den || b.coded == 0) return keep_everything();
  if (b.least_rank > n_rows) {
    throw Error(ErrorKind::invalid_argument,
                str("varrate: r_min is ", b.least_rank, ", but the basis has ", n_rows, " rows"));
  }
  if (!feasible(b)) {
    if (plan.infeasible == Infeasible::error) refuse(plan, shape, b);
    if (plan.infeasible == Infeasible::widen_stride && plan.anchored()) b = widen(plan, shape, b);
    if (!feasible(b) && (b.total < 0 || plan.infeasible == Infeasible::exact))
      return keep_everything();
    b.least_rank = static_cast<int>(std::min<int64_t>(b.least_rank, b.total / b.coded));
  }
  b.spendable = std::min(b.total, b.coded * n_rows);
  return b;
}

}  // namespace kvist
