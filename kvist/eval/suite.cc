// SPDX-License-Identifier: MIT
// The list of suites, and what their generators share.
#include "kvist/eval/suite.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "kvist/core/error.h"
#include "kvist/core/sha256.h"
#include "kvist/eval/score.h"
#include "kvist/methods/spec.h"

namespace kvist {

extern const Suite passkey_suite, needle_suite, kv_ruler_suite, kv_qa_suite, kv_reuse_suite,
    kv_retrieval_suite, kv_count_suite, kv_fewshot_suite, kv_code_suite;

std::span<const Suite* const> suites() {
  static constexpr const Suite* kAll[] = {&passkey_suite,  &needle_suite,     &kv_ruler_suite,
                                          &kv_qa_suite,    &kv_reuse_suite,   &kv_retrieval_suite,
                                          &kv_count_suite, &kv_fewshot_suite, &kv_code_suite};
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

namespace {

namespace fs = std::filesystem;

std::string hash_of(const fs::path& path) {
  std::map<std::string, fs::path> files;
  if (fs::is_directory(path)) {
    for (const auto& entry : fs::recursive_directory_iterator(path))
      if (entry.is_regular_file()) files[entry.path().lexically_relative(path).string()] = entry;
  } else {
    files[path.filename().string()] = path;
  }
  std::string all;
  for (const auto& [name, file] : files) {
    std::ifstream in(file, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    all += str(name, " ", sha256_hex(std::string_view(text)), "\n");
  }
  return sha256_hex(std::string_view(all));
}

}  // namespace

std::map<std::string, std::string> data_hashes(const Suite& suite, const std::string& data) {
  const std::string_view needs = suite.needs;
  const fs::path root(data), sotu = root / "sotu/test";
  const std::pair<const char*, fs::path> places[] = {
      {"prose", fs::is_directory(sotu) ? sotu : root / "prose"},
      {"words", root / "words"},
      {"factbook", root / "factbook.jsonl"},
      {"kinds", root / "kinds.txt"},
      {"code", root / "code"}};
  std::map<std::string, std::string> hashes;
  for (const auto& [need, path] : places) {
    if (needs.find(need) != std::string_view::npos && fs::exists(path))
      hashes[need] = hash_of(path);
  }
  return hashes;
}

std::vector<std::string> chosen_tasks(const SuiteInput& input,
                                      const std::vector<std::string>& known) {
  for (const std::string& task : input.tasks) {
    if (std::find(known.begin(), known.end(), task) != known.end()) continue;
    const std::string near = nearest(task, known);
    throw Error(ErrorKind::invalid_argument,
                str("no task is called ", kvist::quoted(task),
                    near.empty() ? "" : str("; did you mean '", near, "'?")));
  }
  if (input.tasks.empty()) return known;
  std::vector<std::string> out;
  for (const std::string& task : known)
    if (std::find(input.tasks.begin(), input.tasks.end(), task) != input.tasks.end())
      out.push_back(task);
  return out;
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
