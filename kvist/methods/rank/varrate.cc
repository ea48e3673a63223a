// SPDX-License-Identifier: MIT
// The row of VarRate, arXiv:2607.15498, in the table of methods: options to a plan.
#include "kvist/core/error.h"
#include "kvist/methods/method.h"
#include "kvist/methods/rank/plan.h"

namespace kvist {
namespace {

using Kind = OptionSpec::Kind;

constexpr OptionSpec kOptions[] = {
    {.name = "keep",
     .kind = Kind::ratio,
     .fallback = "0.2",
     .unit = "",
     .help = "share of the cache that stays: exact tokens and coefficients"},
    {.name = "preset",
     .kind = Kind::choice,
     .fallback = "paper",
     .unit = "",
     .help = "defaults: those of the paper, or for questions that come later: alloc=energy, "
             "stride=64, and the share as bytes of coefficients of 4 bits",
     .choices = "paper|reuse"},
    {.name = "basis",
     .kind = Kind::choice,
     .fallback = "residual",
     .unit = "",
     .help = "directions of what anchors leave; or, as controls, of whole tokens without anchors, "
             "or of keys and of values by groups of 4 heads, one rank for all tokens (Palu-style); "
             "salience=flat is the controls' default",
     .choices = "residual|token|heads"},
    {.name = "stride",
     .kind = Kind::integer,
     .fallback = "16",
     .unit = "tokens",
     .help = "every so many tokens one is an anchor and stays exact",
     .least = 1,
     .most = 1 << 20},
    {.name = "window",
     .kind = Kind::integer,
     .fallback = "64",
     .unit = "tokens",
     .help = "newest tokens, which stay exact",
     .most = 1 << 20},
    {.name = "neighbours",
     .kind = Kind::integer,
     .fallback = "4",
     .unit = "anchors",
     .help = "nearest anchors whose mean a token is coded against",
     .least = 1,
     .most = 64},
    {.name = "r_min",
     .kind = Kind::integer,
     .fallback = "16",
     .unit = "coefficients",
     .help = "least rank; 0: a token may be its anchors' mean alone",
     .most = 65535},
    {.name = "alloc",
     .kind = Kind::choice,
     .fallback = "salience",
     .unit = "",
     .help = "ranks in proportion to salience; full for the best and least for the rest; or where "
             "they bring most energy of the residual, weighted with salience",
     .choices = "salience|split|energy"},
    {.name = "salience",
     .kind = Kind::choice,
     .fallback = "window",
     .unit = "",
     .help = "attention of the last queries; rarity and value energy, as twinkv scores; both; or a "
             "control",
     .choices = "window|twin|mix|fisher|norm|flat|random|shuffle|position|oracle"},
    {.name = "mix",
     .kind = Kind::number,
     .fallback = "0.5",
     .unit = "",
     .help = "part of twin in salience=mix",
     .most = 1},
    {.name = "power",
     .kind = Kind::number,
     .fallback = "1",
     .unit = "",
     .help = "salience is raised to it",
     .most = 8},
    {.name = "w_obs",
     .kind = Kind::integer,
     .fallback = "64",
     .unit = "queries",
     .help = "last queries whose attention is salience",
     .least = 1,
     .most = 4096},
    {.name = "salience_dtype",
     .kind = Kind::choice,
     .fallback = "f32",
     .unit = "",
     .help = "what attention weights are rounded to before their mean",
     .choices = "f32|bf16"},
    {.name = "gold_begin",
     .kind = Kind::integer,
     .fallback = "0",
     .unit = "tokens",
     .help = "first position that matters, for salience=oracle"},
    {.name = "gold_end",
     .kind = Kind::integer,
     .fallback = "0",
     .unit = "tokens",
     .help = "the position after the last that matters"},
    {.name = "seed",
     .kind = Kind::integer,
     .fallback = "11",
     .unit = "",
     .help = "of the random controls"},
    {.name = "causal_anchors",
     .kind = Kind::boolean,
     .fallback = "false",
     .unit = "",
     .help = "only anchors before a token are its neighbours"},
    {.name = "value_scale",
     .kind = Kind::number,
     .fallback = "1",
     .unit = "",
     .help = "values are multiplied by it beside keys; needs a basis learned so",
     .most = 1024},
    {.name = "rounding",
     .kind = Kind::choice,
     .fallback = "exact",
     .unit = "",
     .help = "ranks spend the budget exactly, or are all rounded up",
     .choices = "exact|paper"},
    {.name = "granule",
     .kind = Kind::integer,
     .fallback = "1",
     .unit = "coefficients",
     .help = "ranks are handed out in such portions",
     .least = 1,
     .most = 65535},
    {.name = "rate",
     .kind = Kind::choice,
     .fallback = "scalars",
     .unit = "",
     .help = "what keep is a share of: numbers, as in the paper, or bytes with all metadata",
     .choices = "scalars|bytes"},
    {
        .name = "strict",
        .kind = Kind::boolean,
        .fallback = "false",
        .unit = "",
        .help = "with rate=scalars: metadata counts too, in numbers of 16 bits; rate=bytes always "
                "counts it",
    },
    {.name = "bits",
     .kind = Kind::integer,
     .fallback = "16",
     .unit = "bits",
     .help = "of a coefficient: 32, 16; 8, 4, 3 in groups; 1 to 8 with code=sigma",
     .least = 1,
     .most = 32},
    {.name = "code",
     .kind = Kind::choice,
     .fallback = "group",
     .unit = "",
     .help = "below 16 bits: 32 coefficients share a scale, or tree codes in units of the basis, "
             "most significant bits first",
     .choices = "group|sigma"},
    {.name = "read",
     .kind = Kind::number,
     .fallback = "all",
     .unit = "bits",
     .help =
         "of a coefficient that a query reads on average, more of the directions that matter to "
         "it; needs code=sigma",
     .choices = "all",
     .most = 8},
    {.name = "skip",
     .kind = Kind::boolean,
     .fallback = "false",
     .unit = "",
     .help = "keep bounds of keys, and skip blocks that they show to weigh nothing"},
    {.name = "on_infeasible",
     .kind = Kind::choice,
     .fallback = "error",
     .unit = "",
     .help = "where keep is too small for the prompt: refuse, lower r_min, widen the stride, or "
             "leave the prompt as it is",
     .choices = "error|shrink_floor|widen_stride|exact"},
};

// Position of a choice among the words of its option, which are in the order of the enum.
template <typename Enum>
Enum chosen(const Options& o, const char* name) {
  const std::string value = o.text(name);
  for (const OptionSpec& spec : kOptions) {
    if (std::string_view(spec.name) != name) continue;
    int at = 0;
    std::string_view left = spec.choices;
    while (left.substr(0, left.find('|')) != value) {
      left.remove_prefix(left.find('|') + 1);
      ++at;
    }
    return static_cast<Enum>(at);
  }
  KVIST_ASSERT(false);
  return {};
}

int integer(const Options& o, const char* name) { return static_cast<int>(o.integer(name)); }

RankPlan plan_of(const Options& o) {
  const bool reuse = o.text("preset") == "reuse";
  const auto preset = [&](const char* option) { return reuse && !o.given(option); };
  RankPlan p;
  p.keep = o.ratio("keep");
  p.stride = preset("stride") ? 64 : integer(o, "stride");
  p.window = integer(o, "window");
  p.neighbours = integer(o, "neighbours");
  p.least_rank = integer(o, "r_min");
  p.granule = integer(o, "granule");
  p.basis = chosen<RankPlan::Basis>(o, "basis");
  p.causal_anchors = o.boolean("causal_anchors");
  p.value_scale = o.ratio("value_scale").value();
  p.salience = !p.anchored() && !o.given("salience") ? RankPlan::Salience::flat
                                                     : chosen<RankPlan::Salience>(o, "salience");
  p.gold_begin = integer(o, "gold_begin");
  p.gold_end = integer(o, "gold_end");
  p.scoring_window = integer(o, "w_obs");
  p.bf16_scores = o.text("salience_dtype") == "bf16";
  p.mix_twin = o.ratio("mix").value();
  p.salience_power = o.ratio("power").value();
  p.seed = static_cast<uint64_t>(o.integer("seed"));
  p.allocation =
      preset("alloc") ? RankPlan::Allocation::energy : chosen<RankPlan::Allocation>(o, "alloc");
  p.round_up = o.text("rounding") == "paper";
  p.rate = preset("rate") ? RankPlan::Rate::bytes : chosen<RankPlan::Rate>(o, "rate");
  p.strict = o.boolean("strict");
  p.infeasible = chosen<RankPlan::Infeasible>(o, "on_infeasible");
  p.bits = preset("bits") ? 4 : integer(o, "bits");
  p.code = chosen<RankPlan::Code>(o, "code");
  if (o.text("read") != "all") p.read = o.ratio("read");
  p.skip = o.boolean("skip");
  check(p);
  return p;
}

}  // namespace

extern constinit const Method varrate = {
    .name = "varrate",
    .paper = "arXiv:2607.15498",
    .summary =
        "keeps every token: some exact, each other as the mean of its nearest anchors and as many "
        "coefficients as it deserves",
    .decides = "dimensions",
    .options = kOptions,
    .rank = plan_of};

}  // namespace kvist
