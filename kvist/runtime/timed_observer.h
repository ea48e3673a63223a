// SPDX-License-Identifier: MIT
// What watching costs.
#pragma once

#include "kvist/methods/method.h"

namespace kvist {

// Passes everything on and adds up the time it takes.
class TimedObserver final : public Observer {
 public:
  explicit TimedObserver(Observer& inner) : inner_(inner) {}
  Needs needs() const override { return inner_.needs(); }
  void observe(const LayerInput& layer) override;
  void observe_repetition(const LayerInput& layer, const Repetition& repetition) override;
  double ms() const { return ms_; }

 private:
  Observer& inner_;
  double ms_ = 0;
};

}  // namespace kvist
