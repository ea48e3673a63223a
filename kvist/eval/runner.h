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
  Boundary boundary = Boundary::compressed_question;
  int pin_tail = 0;   // last tokens that selectors keep, as the subject was told: part of the name
  uint64_t seed = 0;  // that the rows were made with
};

struct RunHooks {
  std::function<void(int done, int total, double seconds)> on_progress;  // of answers
  const std::atomic<bool>* stop = nullptr;
};

// Where the time of a run went, in seconds: uncompressed prefills, what methods added to them, and
// answers.
struct RunSeconds {
  double prefills = 0, methods = 0, answers = 0;
  int n_answers = 0;
  // How much longer it took than prefills and answers alone.
  double factor() const { return 1 + methods / (prefills + answers); }
};

// Appends what is not finished to `log`. Throws what the subject throws with the row's name before
// it, and interrupted; what was appended stays.
RunSeconds run_rows(std::span<const EvalRow> rows, Subject& subject, const RunPlan& plan,
                    PredictionLog& log, const RunHooks& hooks);

const char* name(Mode mode);
const char* name(Boundary boundary);
// The mode as predictions have it: "aware", or with a pinned tail "aware, tail of 64".
std::string mode_text(const RunPlan& plan);

}  // namespace kvist
