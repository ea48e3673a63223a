// SPDX-License-Identifier: MIT
// A method with what it needs of a model: ready to be put over any prefix of that model.
#pragma once

#include <functional>
#include <memory>

#include "kvist/cache/coded_prefix.h"
#include "kvist/cache/ranked_prefix.h"
#include "kvist/methods/spec.h"
#include "kvist/runtime/session.h"

namespace kvist {

struct Recipe {
  Spec spec;
  std::shared_ptr<const CodedModel> code;  // where it codes; null: calibrated on the prefix itself
  std::shared_ptr<const RankedModel> ranked;  // where it ranks
};

// Calibrates `recipe->code` on the uncompressed prefix in place, if the spec codes and has none.
// Returns whether it did.
bool calibrate(Session& session, Recipe* recipe);

// Selects, then codes or ranks what is in place, as far as the spec does either. `selector` is what
// the spec makes, and has watched the document; null where there is none. Throws what
// Session::compress and Session::encode do.
void apply(Session& session, const Recipe& recipe, Selector* selector,
           Session::Explanation* explain = nullptr,
           const std::function<void(const Progress&)>& on_progress = {});

}  // namespace kvist
