// SPDX-License-Identifier: MIT
// Scorers of one prefix, so that selectors whose scores are equal share one, whatever their
// budgets.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvist/methods/method.h"

namespace kvist {

// Hands out scorers. One that several selectors share watches once (Selector::watcher) and scores a
// layer once, for all of them. Selectors outlive it at will. Not thread-safe.
class Scorers {
 public:
  using Make = std::unique_ptr<Scorer> (*)(const Options&);
  // What make(options) makes: the same object for equal options, ratio and keep aside.
  std::shared_ptr<Scorer> of(Make make, const Options& options);
  // Milliseconds that scoring would have taken so far where it was not done again.
  double spared_ms() const { return *spared_ms_; }

 private:
  class Shared;
  std::map<std::pair<Make, std::string>, std::weak_ptr<Shared>> shared_;
  std::shared_ptr<double> spared_ms_ = std::make_shared<double>(0);
};

}  // namespace kvist
