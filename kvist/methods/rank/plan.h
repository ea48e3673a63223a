// SPDX-License-Identifier: MIT
// How VarRate (arXiv:2607.15498) divides a budget among the tokens of a layer, and how coefficients
// are stored.
#pragma once

#include <cstdint>
#include <optional>

#include "kvist/core/ratio.h"

namespace kvist {

struct RankPlan {
  Ratio keep{1, 5};  // kappa: share of the layer's scalars (or bytes) that stays
  int stride = 16;   // every so many tokens an anchor
  int window = 64;   // newest tokens, exact
  int neighbours = 4;
  int least_rank = 16;
  int granule = 1;  // ranks are handed out in units of so many coefficients
  bool causal_anchors = false;
  double value_scale = 1;

  // Directions that tokens are coded in. Without anchors only the first token and the window are
  // exact, and nothing is subtracted from the others.
  enum class Basis {
    residual,  // of what anchors leave (the paper's)
    token,     // of whole tokens: low rank without anchors
    heads,     // of keys and of values by groups of 4 heads, one rank for all tokens (Palu-style)
  };
  Basis basis = Basis::residual;
  bool anchored() const { return basis == Basis::residual; }

  enum class Salience {
    window,  // attention of the last queries (the paper's)
    twin,    // value energy times the rarity of the key
    mix,     // both, `mix_twin` parts of the second
    fisher,  // attention squared times the distance of the value from the output
    norm,    // length of the residual
    flat,    // every token alike
    random,  // controls
    shuffle,
    position,
    oracle,  // tokens [gold_begin, gold_end) and no other
  };
  Salience salience = Salience::window;
  int gold_begin = 0, gold_end = 0;
  int scoring_window = 64;  // queries
  bool bf16_scores = false;
  double mix_twin = 0.5;
  double salience_power = 1;
  uint64_t seed = 11;  // of the controls

  enum class Allocation {
    salience,  // in proportion to salience (the paper's)
    split,     // the best at full rank, the rest at the least
    energy,    // by the residual's own energy, weighted with salience
  };
  Allocation allocation = Allocation::salience;
  bool round_up = false;  // every rank is rounded up, as the paper seems to do

  enum class Rate {
    scalars,  // the paper's: 2 kv_heads head_dim scalars a token are the whole
    bytes,    // all bytes, metadata too, at the width of the coefficients
  };
  Rate rate = Rate::scalars;
  bool strict = false;  // of scalars: metadata is charged too, as the numbers of 16 bits it takes

  // Where the budget is less than the floor: widening the stride goes on with a lower floor where
  // it does not help, and a lower floor with exact tokens where no budget is left.
  enum class Infeasible { error, shrink_floor, widen_stride, exact };
  Infeasible infeasible = Infeasible::error;

  // Of stored coefficients: 32 is f32, 16 is f16; fewer are codes of `code`.
  int bits = 16;
  enum class Code {
    group,  // 32 of a token share a least value and a step
    sigma,  // the tree code, in units of the row's spread and the token's gain
  };
  Code code = Code::group;
  // Of tree codes: bits of a coefficient that a query reads on average, more of the rows that
  // matter to it; without it all that are stored.
  std::optional<Ratio> read;
  bool skip = false;  // bounds of keys are kept, and blocks that they show to weigh nothing skipped

  int window_queries() const;  // that LayerInput::q must hold
};

// Throws Error(invalid_argument) naming the field that is out of range, or two that exclude each
// other.
void check(const RankPlan& plan);

}  // namespace kvist
