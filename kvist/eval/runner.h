// SPDX-License-Identifier: MIT
// Asks every row of every method: one read of a context serves all methods and questions of its
// group.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kvist/eval/prediction.h"
#include "kvist/eval/subject.h"

namespace kvist {

// Names of the anchors; "floor" is the uncompressed model without the context.
inline constexpr const char* kUncompressed = "none";
inline constexpr const char* kFloor = "floor";

struct RunPlan {
  std::vector<Spec> methods;  // each once; the uncompressed run is made in any case
  Mode mode = Mode::agnostic;
  uint64_t seed = 0;  // that the rows were made with
};

struct RunHooks {
  std::function<void(int done, int total, double seconds)> on_progress;  // of answers
  const std::atomic<bool>* stop = nullptr;
};

// Appends what is not finished to `log`. Throws what the subject throws with the row's name before
// it, and interrupted; what was appended stays.
void run_rows(std::span<const EvalRow> rows, Subject& subject, const RunPlan& plan,
              PredictionLog& log, const RunHooks& hooks);

const char* name(Mode mode);

}  // namespace kvist
