// SPDX-License-Identifier: MIT
// Keeps the values that matter and that no far-away twin repeats, and gives more slots to heads
// whose attention is spread. TwinKV, arXiv:2608.27128.
#include "kvist/methods/select/twinkv.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kvist/core/error.h"
#include "kvist/methods/select/budget.h"
#include "kvist/methods/select/by_score.h"
#include "kvist/methods/select/quota.h"
#include "kvist/methods/select/topk.h"
#include "kvist/methods/select/twinkv_controls.h"

namespace kvist {
namespace twin {

Budget budget(int n, const Config& config) {
  Budget b;
  b.n = n;
  b.kept = static_cast<int>(kept_tokens(n, config.removed));
  b.sinks = static_cast<int>(std::min<int64_t>(config.sinks, b.kept));
  b.recent = static_cast<int>(std::min<int64_t>(config.recent, b.kept - b.sinks));
  return b;
}

std::vector<double> discounts(int n, Discount shape) {
  std::vector<double> out;
  out.reserve(static_cast<size_t>(n) + 1);
  for (int c = 0; c <= n; ++c) {
    switch (shape) {
      case Discount::log:
        out.push_back(std::log((n + 1.0) / (c + 1.0)));
        break;
      case Discount::inverse:
        out.push_back(1.0 / (1.0 + c));
        break;
      case Discount::inverse_sqrt:
        out.push_back(1.0 / std::sqrt(1.0 + c));
        break;
      case Discount::linear:
        out.push_back(1.0 - c / (n + 1.0));
        break;
      case Discount::hard:
        out.push_back(c == 0 ? 1.0 : 0.5);
        break;
    }
  }
  return out;
}

namespace {

// Scores of positions [begin, end) of a head.
std::vector<double> scores_of(const Signals& signals, int head, int n, int begin, int end,
                              Score score, std::span<const double> factors) {
  std::vector<double> out;
  out.reserve(static_cast<size_t>(end - begin));
  for (int i = begin; i < end; ++i) {
    const auto at = static_cast<size_t>(int64_t{head} * n + i);
    const double energy = static_cast<double>(signals.energies[at]);
    const double factor =
        score == Score::value ? 1.0 : factors[static_cast<size_t>(signals.counts[at])];
    out.push_back(score == Score::rarity ? factor : energy * factor);
  }
  return out;
}

std::span<const float> open_energies(const Signals& signals, int head, const Budget& budget) {
  return {signals.energies.data() + int64_t{head} * budget.n + budget.sinks,
          static_cast<size_t>(budget.open())};
}

// Energy breaks ties of the full score only: value alone and rarity alone go by position.
Ranking ranking(std::span<const double> scores, const Signals& signals, int head,
                const Budget& budget, const Config& config) {
  return {
      scores,
      config.score == Score::twin ? open_energies(signals, head, budget) : std::span<const float>{},
      budget.sinks};
}

std::vector<int32_t> open_winners(const LayerInput& layer, const Signals& signals, int head,
                                  int slots, const Budget& budget, const Config& config,
                                  std::span<const double> factors) {
  const auto scores = open_scores(signals, head, budget, config, factors);
  std::vector<int32_t> winners =
      top_positions(ranking(scores, signals, head, budget, config), slots);
  if (!config.replace_seed) return winners;
  const auto by_value = scores_of(signals, head, budget.n, budget.sinks, budget.n - budget.recent,
                                  Score::value, factors);
  const std::vector<int32_t> value_winners = top_positions({by_value, {}, budget.sinks}, slots);
  return matched_replacement(
      {budget.sinks, open_energies(signals, head, budget), value_winners, winners},
      *config.replace_seed, static_cast<uint32_t>(layer.layer), static_cast<uint32_t>(head));
}

std::vector<int32_t> with_protected(std::vector<int32_t> winners, const Budget& budget) {
  std::vector<int32_t> kept(static_cast<size_t>(budget.sinks));
  std::iota(kept.begin(), kept.end(), 0);
  kept.insert(kept.end(), winners.begin(), winners.end());
  for (int i = budget.n - budget.recent; i < budget.n; ++i) kept.push_back(i);
  return kept;
}

std::vector<int> quotas(const Signals& signals, int kv_heads, const Budget& budget, Trace* trace) {
  if (signals.z.empty()) return std::vector<int>(static_cast<size_t>(kv_heads), budget.slots());
  const std::vector<int> g =
      global_counts({signals.z.data(), {kv_heads, budget.open()}}, budget.slots());
  if (trace != nullptr) trace->g = g;
  return mixed_quotas(g, budget.slots());
}

void explain_head(const Signals& signals, int head, const Budget& budget, const Config& config,
                  std::span<const double> factors, Selection* selection) {
  selection->scores.push_back(
      scores_of(signals, head, budget.n, 0, budget.n, config.score, factors));
  if (signals.counts.empty()) return;
  const int32_t* counts = signals.counts.data() + int64_t{head} * budget.n;
  selection->counts.emplace_back(counts, counts + budget.n);
}

void require_some(const LayerInput& layer, const Budget& budget, const Config& config) {
  if (budget.kept > 0 || config.allow_empty) return;
  throw Error(ErrorKind::invalid_argument,
              str("twinkv: ", layer.n_tokens, " tokens at ratio ", config.removed.text(),
                  " leave none; give a smaller ratio, or allow_empty=true"));
}

}  // namespace

std::vector<double> open_scores(const Signals& signals, int head, const Budget& budget,
                                const Config& config, std::span<const double> factors) {
  return scores_of(signals, head, budget.n, budget.sinks, budget.n - budget.recent, config.score,
                   factors);
}

Selection select(const LayerInput& layer, const Config& config, bool explain, Trace* trace) {
  const Budget shares = budget(layer.n_tokens, config);
  require_some(layer, shares, config);
  Config needed = config;
  const bool decided =
      shares.slots() == 0 || (shares.slots() == shares.open() && !explain && trace == nullptr);
  if (decided) {  // nothing competes: what is left is the check for finite numbers, and an
                  // explanation if asked for
    if (!explain) needed.score = Score::value;
    needed.adapted = false;
    needed.replace_seed.reset();
  }
  Signals signals = measure(layer, shares, needed);
  const std::vector<int> u = quotas(signals, layer.kv_heads, shares, trace);
  const std::vector<double> factors =
      discounts(needed.score == Score::value ? 0 : layer.n_tokens, config.discount);
  Selection selection;
  selection.kept.resize(static_cast<size_t>(layer.kv_heads));
  layer.pool->parallel_for(layer.kv_heads, [&](int64_t i) {
    const int head = static_cast<int>(i), slots = u[static_cast<size_t>(i)];
    selection.kept[static_cast<size_t>(i)] =
        with_protected(open_winners(layer, signals, head, slots, shares, needed, factors), shares);
  });
  for (int head = 0; head < layer.kv_heads; ++head) {
    if (explain) explain_head(signals, head, shares, config, factors, &selection);
    if (trace != nullptr && !decided) {
      const auto scores = open_scores(signals, head, shares, config, factors);
      trace->order.push_back(ranked_positions(ranking(scores, signals, head, shares, config)));
    }
  }
  if (trace != nullptr) {
    trace->budget = shares;
    trace->u = u;
    trace->signals = std::move(signals);
  }
  return selection;
}

Config Config::from(const Options& o) {
  Config c;
  c.removed = o.removed();
  c.sinks = o.integer("sinks");
  c.recent = o.integer("recent");
  c.ell = o.integer("ell");
  c.window = static_cast<int>(o.integer("window"));
  c.pool = static_cast<int>(o.integer("pool"));
  const std::string score = o.text("score"), discount = o.text("discount");
  c.score = score == "twin" ? Score::twin : score == "value" ? Score::value : Score::rarity;
  c.discount = discount == "log"       ? Discount::log
               : discount == "inv"     ? Discount::inverse
               : discount == "invsqrt" ? Discount::inverse_sqrt
               : discount == "linear"  ? Discount::linear
                                       : Discount::hard;
  c.adapted = o.text("capacity") == "adapted";
  c.pool_per_query_head = o.text("pool_order") == "per_query_head";
  c.pool_sees_protected = o.boolean("pool_sees_protected");
  c.allow_empty = o.boolean("allow_empty");
  c.nonfinite_last = o.text("nonfinite") == "last";
  if (const auto counts = o.choice("counts"); counts.name == "permuted")
    c.permute_seed = counts.number;
  if (const auto replace = o.choice("replace"); replace.name == "matched")
    c.replace_seed = replace.number;
  if (c.pool % 2 == 0) {
    throw Error(
        ErrorKind::invalid_argument,
        str("twinkv: pool=", c.pool, " is even; a pool around a position has an odd width"));
  }
  if (c.replace_seed && c.score != Score::twin) {
    throw Error(ErrorKind::invalid_argument,
                str("twinkv: replace=", o.text("replace"),
                    " imitates the change from score=value to score=twin; "
                    "it does not go with score=",
                    score));
  }
  return c;
}

}  // namespace twin

namespace {

using Kind = OptionSpec::Kind;
constexpr OptionSpec kOptions[] = {
    kRatioOption,
    kKeepOption,
    {.name = "sinks",
     .kind = Kind::integer,
     .fallback = "4",
     .unit = "tokens",
     .help = "first tokens that always stay"},
    {.name = "recent",
     .kind = Kind::integer,
     .fallback = "64",
     .unit = "tokens",
     .help = "last tokens that always stay"},
    {.name = "ell",
     .kind = Kind::integer,
     .fallback = "32",
     .unit = "tokens",
     .help = "keys no farther apart are not counted as twins"},
    {.name = "window",
     .kind = Kind::integer,
     .fallback = "32",
     .unit = "queries",
     .help = "last queries whose attention divides the slots over heads",
     .least = 1,
     .most = 4096},
    {.name = "pool",
     .kind = Kind::integer,
     .fallback = "7",
     .unit = "tokens",
     .help = "odd width of the max-pool over that attention",
     .least = 1,
     .most = 4095},
    {.name = "score",
     .kind = Kind::choice,
     .fallback = "twin",
     .unit = "",
     .help = "value energy times rarity, or one of them alone",
     .choices = "twin|value|rarity"},
    {.name = "capacity",
     .kind = Kind::choice,
     .fallback = "adapted",
     .unit = "",
     .help = "slots of a head: half by attention, or all the same",
     .choices = "adapted|uniform"},
    {.name = "counts",
     .kind = Kind::choice,
     .fallback = "true",
     .unit = "",
     .help = "control: shuffle the twin counts of a head, with this seed",
     .choices = "true|permuted:N"},
    {.name = "replace",
     .kind = Kind::choice,
     .fallback = "none",
     .unit = "",
     .help = "control: random changes to the value-only set that match the true ones in energy and "
             "place",
     .choices = "none|matched:N"},
    {.name = "discount",
     .kind = Kind::choice,
     .fallback = "log",
     .unit = "",
     .help = "how the score falls with the count c: log((N+1)/(c+1)), 1/(1+c), 1/sqrt(1+c), "
             "1-c/(N+1), 1 or 1/2",
     .choices = "log|inv|invsqrt|linear|hard"},
    {.name = "pool_order",
     .kind = Kind::choice,
     .fallback = "after_group_mean",
     .unit = "",
     .help = "pool the mean of a group's query heads, or each before the mean",
     .choices = "after_group_mean|per_query_head"},
    {.name = "pool_sees_protected",
     .kind = Kind::boolean,
     .fallback = "true",
     .unit = "",
     .help = "the pool reaches into sinks and recent tokens"},
    {.name = "allow_empty",
     .kind = Kind::boolean,
     .fallback = "false",
     .unit = "",
     .help = "a budget of no token at all is not an error"},
    {.name = "nonfinite",
     .kind = Kind::choice,
     .fallback = "refuse",
     .unit = "",
     .help = "a NaN or infinity in keys, values or queries: an error, or ranked last",
     .choices = "refuse|last"},
};

class TwinKv final : public Selector {
 public:
  explicit TwinKv(const Options& options) : config_(twin::Config::from(options)) {}
  Needs needs() const override { return {config_.adapted ? config_.window : 0}; }
  Selection select(const LayerInput& layer, bool explain) override {
    twin::Config config = config_;
    config.recent = std::max<int64_t>(config.recent, layer.pinned);
    return twin::select(layer, config, explain);
  }

 private:
  twin::Config config_;
};

// The score alone, for heads that compete by it: protected tokens are above all others, and where
// not even they fit, sinks stay before recent tokens and later ones before earlier.
class TwinKvScorer final : public Scorer {
 public:
  explicit TwinKvScorer(const Options& options) : config_(twin::Config::from(options)) {
    config_.adapted = false;
  }
  Needs needs() const override { return {}; }

  Scores score(const LayerInput& layer) override {
    const int n = layer.n_tokens;
    twin::Budget budget{.n = n, .kept = n};
    budget.sinks = static_cast<int>(std::min<int64_t>(config_.sinks, n));
    budget.recent = static_cast<int>(std::min<int64_t>(config_.recent, n - budget.sinks));
    const twin::Signals signals = twin::measure(layer, budget, config_);
    const std::vector<double> factors = twin::discounts(layer.n_tokens, config_.discount);
    Scores scores;
    for (int head = 0; head < layer.kv_heads; ++head)
      scores.push_back(twin::open_scores(signals, head, budget, config_, factors));
    const double protect = budget.open() > 0 ? above_all(scores) : 1;
    for (auto& head : scores) {
      head.insert(head.begin(), static_cast<size_t>(budget.sinks), protect + budget.recent);
      for (int i = 0; i < budget.recent; ++i) head.push_back(protect + i);
    }
    return scores;
  }

 private:
  twin::Config config_;
};

int64_t kept_of_all(const Options& options, const PromptShape& shape) {
  return int64_t{shape.n_layers} * shape.kv_heads * kept_tokens(shape.n_tokens, options.removed());
}

}  // namespace

extern constinit const Method twinkv = {
    .name = "twinkv",
    .paper = "arXiv:2608.27128",
    .summary =
        "keeps values with much energy whose keys have few far-away twins; heads share slots by "
        "attention",
    .decides = "entries",
    .options = kOptions,
    .select = make_selector<TwinKv>,
    .kept = kept_of_all,
    .score = make_scorer<TwinKvScorer>};

}  // namespace kvist
