// SPDX-License-Identifier: MIT
// The list of suites, and what their generators share.
#include "kvist/eval/suite.h"

#include "kvist/core/error.h"
#include "kvist/core/sha256.h"
#include "kvist/eval/score.h"
#include "kvist/methods/spec.h"

namespace kvist {

extern const Suite passkey_suite, needle_suite;

std::span<const Suite* const> suites() {
  static constexpr const Suite* kAll[] = {&passkey_suite, &needle_suite};
  return kAll;
}

const Suite& find_suite(std::string_view name) {
  std::vector<std::string> names;
  std::string known;
  for (const Suite* suite : suites()) {
    if (suite->name == name) return *suite;
    names.emplace_back(suite->name);
    known += str(known.empty() ? "" : ", ", suite->name);
  }
  const std::string near = nearest(name, names);
  throw Error(ErrorKind::invalid_argument,
              str("unknown suite ", quoted(name),
                  near.empty() ? str("; there are ", known) : str("; did you mean '", near, "'?")));
}

std::vector<EvalRow> rows_of(const Suite& suite, const SuiteInput& input) {
  std::vector<EvalRow> rows = suite.rows(input);
  for (EvalRow& row : rows) {
    seal(&row);
    require_metrics(row);
  }
  require_distinct(rows);
  return rows;
}

Rng sample_rng(const SuiteInput& input, std::string_view task, int length, int index) {
  const std::string hash = sha256_hex(std::string_view(str(task, "/", length)));
  return Rng(input.seed, static_cast<uint32_t>(index), 0,
             std::stoull(hash.substr(0, 16), nullptr, 16));
}

std::string sample_id(int version, const SuiteInput& input, int index) {
  return str("v", version, "-s", input.seed, "-", index);
}

int largest_fit(int least, int most, const std::function<bool(int)>& fits, std::string_view task,
                int length) {
  if (!fits(least)) {
    throw Error(ErrorKind::invalid_argument,
                str(task, " at ", length, " tokens: even the shortest prompt is longer"));
  }
  int low = least, high = std::max(least, most) + 1;  // fits(low), not fits(high)
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace kvist
