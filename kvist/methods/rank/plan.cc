// SPDX-License-Identifier: MIT
#include "kvist/methods/rank/plan.h"

#include "kvist/core/error.h"

namespace kvist {
namespace {

void within(const char* what, int64_t found, int64_t least, int64_t most) {
  if (found >= least && found <= most) return;
  throw Error(ErrorKind::invalid_argument,
              str("varrate: ", what, " is ", found, "; expected ", least, " to ", most));
}

void require(bool holds, const std::string& problem) {
  if (!holds) throw Error(ErrorKind::invalid_argument, str("varrate: ", problem));
}

}  // namespace

int RankPlan::window_queries() const {
  switch (salience) {
    case Salience::window:
    case Salience::mix:
    case Salience::fisher:
    case Salience::shuffle:
      return scoring_window;
    default:
      return 0;
  }
}

void check(const RankPlan& plan) {
  constexpr int kMost = 1 << 20;
  within("stride", plan.stride, 1, kMost);
  within("window", plan.window, 0, kMost);
  within("neighbours", plan.neighbours, 1, 64);
  within("r_min", plan.least_rank, 0, 65535);
  within("granule", plan.granule, 1, 65535);
  within("w_obs", plan.scoring_window, 1, kMost);
  require(plan.keep.num > 0 && plan.keep.num <= plan.keep.den,
          str("keep is ", plan.keep.text(), "; expected more than 0, at most 1"));
  require(plan.value_scale > 0, str("value_scale is ", plan.value_scale, "; expected above 0"));
  require(plan.mix_twin >= 0 && plan.mix_twin <= 1,
          str("mix is ", plan.mix_twin, "; expected 0 to 1"));
  require(plan.salience_power > 0, str("power is ", plan.salience_power, "; expected above 0"));
  const bool codes = plan.code == RankPlan::Code::sigma
                         ? plan.bits >= 1 && plan.bits <= 8
                         : plan.bits == 8 || plan.bits == 4 || plan.bits == 3;
  require(plan.bits == 32 || plan.bits == 16 || codes,
          str("bits is ", plan.bits,
              "; expected 32, 16, 8, 4 or 3, or with code=sigma 32, 16 or 1 to 8"));
  if (plan.read) {
    require(plan.bits <= 8 && plan.code == RankPlan::Code::sigma,
            "read chooses among the bits of tree codes: it needs bits=1 to 8 and code=sigma");
    require(plan.read->num <= plan.bits * plan.read->den,
            str("read is ", plan.read->text(), ", but coefficients have ", plan.bits, " bits"));
    require(!plan.skip, "skip bounds keys as they are stored, not as read= reads them");
  }
  require(plan.salience != RankPlan::Salience::oracle ||
              (plan.gold_begin >= 0 && plan.gold_begin < plan.gold_end),
          str("salience=oracle needs the tokens that matter: gold_begin is ", plan.gold_begin,
              ", gold_end ", plan.gold_end));
  require(plan.basis != RankPlan::Basis::heads ||
              (plan.salience == RankPlan::Salience::flat &&
               plan.allocation == RankPlan::Allocation::salience && !plan.round_up),
          "basis=heads gives every token the same rank: not with salience, alloc or rounding");
  require(!plan.round_up || (plan.allocation != RankPlan::Allocation::energy &&
                             plan.rate == RankPlan::Rate::scalars),
          "rounding=paper exceeds the budget: only with alloc=salience or split, and rate=scalars");
}

}  // namespace kvist
