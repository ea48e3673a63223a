// SPDX-License-Identifier: MIT
// The order of the steps.
#include "kvist/runtime/recipe.h"

#include "kvist/runtime/calibrate.h"

namespace kvist {

bool calibrate(Session& session, Recipe* recipe) {
  const auto reading = recipe->spec.reading();
  if (!reading || recipe->code) return false;
  recipe->code = std::make_shared<CodedModel>(
      calibrate_on_prefix(session, read_source(session.model()), reading->basis));
  return true;
}

void apply(Session& session, const Recipe& recipe, Selector* selector,
           Session::Explanation* explain, const std::function<void(const Progress&)>& on_progress) {
  Recipe ready = recipe;
  calibrate(session, &ready);
  if (selector != nullptr) session.compress(*selector, explain, on_progress);
  if (const auto reading = ready.spec.reading())
    session.encode(reading->plan, ready.code, on_progress);
  if (const auto plan = ready.spec.ranking()) session.encode(*plan, ready.ranked, on_progress);
}

}  // namespace kvist
