// SPDX-License-Identifier: MIT
// What a spec says about coding and reading: the plan of a layer call, the transforms, and where
// the calibration comes from.
#pragma once

#include "kvist/methods/read/calibration.h"
#include "kvist/methods/read/plan.h"

namespace kvist {

struct Reading {
  ReadPlan plan;
  ReadBasis basis;
  // Means and scales from the prompt itself, where no held-out text was measured: no file needed,
  // but the codes then fit a text that the questions have not seen.
  bool calibrate_on_prompt = false;
};

}  // namespace kvist
