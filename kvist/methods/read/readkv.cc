// SPDX-License-Identifier: MIT
// ReadKV (arXiv:2610.11245): keep W bits of every number, read a few, chosen anew by each query.
#include <numeric>

#include "kvist/core/error.h"
#include "kvist/methods/method.h"
#include "kvist/methods/read/reading.h"

namespace kvist {
namespace {

using Kind = OptionSpec::Kind;
constexpr OptionSpec kOptions[] = {
    {.name = "preset",
     .kind = Kind::choice,
     .fallback = "paper",
     .unit = "",
     .help =
         "sharp: transform=klt with tilt=1/6, sinks=4, and of the bits read three for keys to one "
         "for values, where those are not given; loses less at every rate",
     .choices = "paper|sharp"},
    {.name = "store",
     .kind = Kind::integer,
     .fallback = "8",
     .unit = "bits",
     .help = "W, kept of every number",
     .least = 1,
     .most = 8},
    {.name = "read",
     .kind = Kind::number,
     .fallback = "4",
     .unit = "bits",
     .help = "R, read of a number on average; at most store",
     .most = 8},
    {.name = "read_keys",
     .kind = Kind::number,
     .fallback = "read",
     .unit = "bits",
     .help = "R_K, the same for keys alone",
     .choices = "read",
     .most = 8},
    {.name = "read_values",
     .kind = Kind::number,
     .fallback = "read",
     .unit = "bits",
     .help = "R_V, the same for values alone",
     .choices = "read",
     .most = 8},
    {.name = "tilt",
     .kind = Kind::number,
     .fallback = "0",
     .unit = "",
     .help = "share of read_keys that the first layer reads beyond it and the last one less, "
             "linearly between",
     .most = 1},
    {.name = "transform",
     .kind = Kind::choice,
     .fallback = "hadamard",
     .unit = "",
     .help =
         "of keys before coding: random signs and a Hadamard matrix, or the eigenvectors of each "
         "head's keys",
     .choices = "hadamard|klt"},
    {.name = "seed",
     .kind = Kind::integer,
     .fallback = "20260801",
     .unit = "",
     .help = "of the random signs"},
    {.name = "signs",
     .kind = Kind::choice,
     .fallback = "shared",
     .unit = "",
     .help = "one set of signs for all layers, or one each",
     .choices = "shared|per_layer"},
    {.name = "sinks",
     .kind = Kind::integer,
     .fallback = "0",
     .unit = "tokens",
     .help = "first tokens kept exact, in 16 bits",
     .most = 4096},
    {.name = "recent",
     .kind = Kind::integer,
     .fallback = "0",
     .unit = "tokens",
     .help = "newest tokens kept exact, in 16 bits",
     .most = 4096},
    {.name = "protect",
     .kind = Kind::integer,
     .fallback = "0",
     .unit = "layers",
     .help = "layers at either end that stay uncompressed (2: the paper's dagger)",
     .most = 1024},
    {.name = "budget",
     .kind = Kind::choice,
     .fallback = "pooled",
     .unit = "",
     .help = "bits are shared among a layer's heads, or each has its own; keys behind a selector "
             "always do",
     .choices = "pooled|per_head"},
    {.name = "min_depth",
     .kind = Kind::integer,
     .fallback = "0",
     .unit = "bits",
     .help = "read of every channel and token before importance counts",
     .most = 1},
    {.name = "pairs",
     .kind = Kind::boolean,
     .fallback = "false",
     .unit = "",
     .help = "two adjacent tokens are read equally deep"},
    {.name = "uniform",
     .kind = Kind::choice,
     .fallback = "none",
     .unit = "",
     .help = "a control: all of these are read equally deep",
     .choices = "none|keys|values|both"},
    {.name = "two_depth",
     .kind = Kind::choice,
     .fallback = "none",
     .unit = "",
     .help = "a control: these are read to the full depth or to `low`, nothing between",
     .choices = "none|keys|values|both"},
    {.name = "low",
     .kind = Kind::integer,
     .fallback = "0",
     .unit = "bits",
     .help = "the lesser depth of two_depth",
     .most = 1},
    {.name = "key_weights",
     .kind = Kind::choice,
     .fallback = "query",
     .unit = "",
     .help = "channels are weighed by the query at hand, or (a control) by the mean query of the "
             "calibration",
     .choices = "query|calibration"},
    {.name = "value_weights",
     .kind = Kind::choice,
     .fallback = "standard",
     .unit = "",
     .help = "errors of values count in units of their spread, or as they are",
     .choices = "standard|physical"},
    {.name = "sparq",
     .kind = Kind::integer,
     .fallback = "0",
     .unit = "channels",
     .help =
         "a control: SparQ's choice of so many channels, read at 2 bits, then of `tokens`, read "
         "whole; 0: off",
     .most = 1024},
    {.name = "tokens",
     .kind = Kind::integer,
     .fallback = "128",
     .unit = "tokens",
     .help = "of sparq: tokens read whole beside the newest",
     .least = 1,
     .most = 1 << 20},
    {.name = "calibration",
     .kind = Kind::choice,
     .fallback = "file",
     .unit = "",
     .help = "means and scales from a file of kvist calibrate, or from the prompt itself",
     .choices = "file|prompt"},
};

bool names(const std::string& what, const char* part) { return what == part || what == "both"; }

// Mean bits read of a number; a default never asks for more than is stored.
Ratio mean_rate(const Options& o) {
  const Ratio read = o.ratio("read"), stored{o.integer("store"), 1};
  return !o.given("read") && read.value() > stored.value() ? stored : read;
}

// Three quarters of the bits, or as many as are stored: 3 R / 2.
Ratio sharp_key_rate(Ratio mean, Ratio stored) {
  const int64_t common = std::gcd(3 * mean.num, 2 * mean.den);
  const Ratio keys{3 * mean.num / common, 2 * mean.den / common};
  return keys.value() > stored.value() ? stored : keys;
}

// The rest of 2 R.
Ratio rest(Ratio mean, Ratio part) {
  const int64_t num = 2 * mean.num * part.den - part.num * mean.den, den = mean.den * part.den;
  const int64_t common = std::gcd(num, den);
  return {num / common, den / common};
}

void set_rates(const Options& o, bool sharp, ReadPlan* plan) {
  const Ratio mean = mean_rate(o);
  const bool keys = o.text("read_keys") != "read", values = o.text("read_values") != "read";
  plan->key_rate = keys    ? o.ratio("read_keys")
                   : sharp ? sharp_key_rate(mean, {o.integer("store"), 1})
                           : mean;
  plan->value_rate = values           ? o.ratio("read_values")
                     : sharp && !keys ? rest(mean, plan->key_rate)
                                      : mean;
}

Reading reading(const Options& o) {
  Reading r;
  ReadPlan& p = r.plan;
  p.width = static_cast<int>(o.integer("store"));
  const bool sharp = o.text("preset") == "sharp";
  set_rates(o, sharp, &p);
  p.per_head = o.text("budget") == "per_head";
  p.min_depth = static_cast<int>(o.integer("min_depth"));
  p.pairs = o.boolean("pairs");
  p.uniform_keys = names(o.text("uniform"), "keys");
  p.uniform_values = names(o.text("uniform"), "values");
  p.two_depth_keys = names(o.text("two_depth"), "keys");
  p.two_depth_values = names(o.text("two_depth"), "values");
  p.low = static_cast<int>(o.integer("low"));
  p.calibrated_keys = o.text("key_weights") == "calibration";
  p.physical_values = o.text("value_weights") == "physical";
  p.sinks = sharp && !o.given("sinks") ? 4 : static_cast<int>(o.integer("sinks"));
  p.recent = static_cast<int>(o.integer("recent"));
  p.protect = static_cast<int>(o.integer("protect"));
  p.sparq_channels = static_cast<int>(o.integer("sparq"));
  p.sparq_tokens = static_cast<int>(o.integer("tokens"));
  r.basis.klt = sharp && !o.given("transform") ? true : o.text("transform") == "klt";
  // Without fitted transforms early layers do not gain from it.
  p.tilt = sharp && r.basis.klt && !o.given("tilt") ? Ratio{1, 6} : o.ratio("tilt");
  for (const char* other : {"read", "read_keys", "read_values"})
    if (p.sparq() && o.given(other))
      throw Error(ErrorKind::invalid_argument,
                  str("sparq=", p.sparq_channels, " says what is read; leave out ", other));
  check(p);
  r.basis.seed = static_cast<uint64_t>(o.integer("seed"));
  r.basis.layer_signs = o.text("signs") == "per_layer";
  r.calibrate_on_prompt = o.text("calibration") == "prompt";
  return r;
}

}  // namespace

extern constinit const Method readkv = {
    .name = "readkv",
    .paper = "arXiv:2610.11245",
    .summary =
        "keeps a progressive code of every number and reads as many bits as the query needs: "
        "key channels by the query, value tokens by attention",
    .decides = "reads",
    .options = kOptions,
    .read = reading};

}  // namespace kvist
