// SPDX-License-Identifier: MIT
// Suites of reference arrays: a folder with manifest.json and .npy files, and comparison as its
// cases ask for.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvist::golden {

// The folder of the whole suite: $KVIST_GOLDEN/<suite>, else ../shared/golden/<suite> beside the
// sources, else "".
std::string whole_suite(const std::string& suite);
// The same, or the part of it that every clone carries, tests/data/<suite>.
std::string best_suite(const std::string& suite);

template <typename T>
struct Array {
  std::vector<int64_t> shape;
  std::vector<T> data;
};

class Suite {
 public:
  explicit Suite(const std::string& folder);
  const nlohmann::json& cases() const { return manifest_["cases"]; }
  const nlohmann::json& find(const std::string& name) const;

  Array<float> floats(const std::string& array) const;
  Array<int32_t> ints(const std::string& array) const;
  Array<uint8_t> bytes(const std::string& array) const;

  // Compares with what the case expects for `role` within its stated tolerance. Does nothing where
  // the case has no such role; returns whether it has.
  bool expect(const nlohmann::json& item, const std::string& role,
              const std::vector<float>& got) const;
  bool expect(const nlohmann::json& item, const std::string& role,
              const std::vector<int32_t>& got) const;
  bool expect(const nlohmann::json& item, const std::string& role,
              const std::vector<uint8_t>& got) const;

 private:
  std::string path(const std::string& array) const;
  std::string folder_;
  nlohmann::json manifest_;
};

// Names of all cases of the best suite, for parameterised tests; empty where it cannot be read.
std::vector<std::string> case_names(const std::string& suite);

}  // namespace kvist::golden
