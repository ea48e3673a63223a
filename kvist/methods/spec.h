// SPDX-License-Identifier: MIT
// Text to methods and back: "twinkv(ratio=0.5)", "none", "a(x=1)+b(y=2)". One grammar for CLI,
// server and file headers.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvist/methods/method.h"
#include "kvist/methods/rank/plan.h"
#include "kvist/methods/read/reading.h"
#include "kvist/methods/select/scorers.h"

namespace kvist {

struct MethodCall {
  const Method* method;
  Options options;
};

// A parsed spec: methods applied left to right; no call at all is "none", the uncompressed cache.
struct Spec {
  std::vector<MethodCall> calls;
  std::string text;  // canonical: options that were given, in table order, ratios in lowest terms

  bool none() const { return calls.empty(); }
  // The selector of the spec, or null where every token stays.
  std::unique_ptr<Selector> make_selector() const;
  // The same where several serve one prefix: those of equal scores share the scorer.
  std::unique_ptr<Selector> make_selector(Scorers& shared) const;
  // The method as a bound on a cache that grows. Throws invalid_argument where it is none, or not
  // alone, or says how much to remove.
  std::unique_ptr<Evictor> make_evictor() const;
  Ratio removed() const;  // of the selector; 0 without one
  // How the survivors are coded and read, or nothing where they stay plain numbers.
  std::optional<Reading> reading() const;
  // How the tokens of each layer are ranked and coded, or nothing where no method does that.
  std::optional<RankPlan> ranking() const;
  // Entries that are left of a prompt, over all layers and heads: the budget, exactly.
  int64_t kept(const PromptShape& shape) const;
  // What all of it must see while the document is read.
  Needs needs() const;
  // The text with ratio=`removed` put into the selector's options, unless ratio or keep is given.
  std::string text_at(Ratio removed) const;
  // The same with keep=1-`removed` for a method that ranks; nothing where no method of the spec has
  // a budget that is left open.
  std::optional<std::string> text_at_budget(Ratio removed) const;
};

// Throws invalid_argument saying where in `text` it went wrong and what was expected there.
Spec parse_spec(std::string_view text);

// The entry of `words` nearest to `word` in edits, or "" if none is near. For "did you mean".
std::string nearest(std::string_view word, const std::vector<std::string>& words);

}  // namespace kvist
