// SPDX-License-Identifier: MIT
// Reading suites and comparing with them.
#include "tests/support/golden.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "kvist/core/error.h"
#include "kvist/core/npy.h"

namespace kvist::golden {
namespace {

namespace fs = std::filesystem;

template <typename T>
Array<T> load(const std::string& path, NpyType type) {
  NpyFile file(path, type);
  const Buffer<T> data = file.read_all<T>();
  return {file.shape(), {data.begin(), data.end()}};
}

}  // namespace

std::string whole_suite(const std::string& suite) {
  const char* given = std::getenv("KVIST_GOLDEN");
  const fs::path root =
      given != nullptr ? fs::path(given) : fs::path(KVIST_SOURCE_DIR) / "../shared/golden";
  const fs::path folder = root / suite;
  return fs::exists(folder / "manifest.json") ? folder.lexically_normal().string() : "";
}

std::string best_suite(const std::string& suite) {
  const std::string whole = whole_suite(suite);
  return whole.empty() ? (fs::path(KVIST_SOURCE_DIR) / "tests/data" / suite).string() : whole;
}

Suite::Suite(const std::string& folder) : folder_(folder) {
  std::ifstream file(fs::path(folder) / "manifest.json");
  if (!file) throw Error(ErrorKind::not_found, str(folder, ": no manifest.json"));
  manifest_ = nlohmann::json::parse(file);
}

const nlohmann::json& Suite::find(const std::string& name) const {
  for (const auto& item : cases()) {
    if (item["name"] == name) return item;
  }
  throw Error(ErrorKind::not_found, str(folder_, ": no case ", name));
}

std::string Suite::path(const std::string& array) const {
  return (fs::path(folder_) / manifest_.at("arrays").at(array).at("file").get<std::string>())
      .string();
}
Array<float> Suite::floats(const std::string& array) const {
  return load<float>(path(array), NpyType::float32);
}
Array<int32_t> Suite::ints(const std::string& array) const {
  return load<int32_t>(path(array), NpyType::int32);
}
Array<uint8_t> Suite::bytes(const std::string& array) const {
  return load<uint8_t>(path(array), NpyType::uint8);
}

bool Suite::expect(const nlohmann::json& item, const std::string& role,
                   const std::vector<float>& got) const {
  if (!item["expected"].contains(role)) return false;
  const auto& expected = item["expected"][role];
  const std::vector<float> want = floats(expected["array"]).data;
  const bool exact = expected["tolerance"] == "exact";
  const double abs = exact ? 0 : expected["tolerance"]["abs"].get<double>();
  const double rel = exact ? 0 : expected["tolerance"]["rel"].get<double>();
  EXPECT_EQ(got.size(), want.size()) << role;
  int wrong = 0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const double distance = std::abs(double{got[i]} - double{want[i]});
    if (distance <= abs + rel * std::abs(double{want[i]})) continue;
    if (++wrong <= 3)
      ADD_FAILURE() << role << "[" << i << "]: got " << got[i] << ", want " << want[i];
  }
  EXPECT_EQ(wrong, 0) << role << ": so many of " << want.size() << " are outside the tolerance";
  return true;
}

bool Suite::expect(const nlohmann::json& item, const std::string& role,
                   const std::vector<int32_t>& got) const {
  if (!item["expected"].contains(role)) return false;
  EXPECT_EQ(item["expected"][role]["tolerance"], "exact");
  EXPECT_EQ(got, ints(item["expected"][role]["array"]).data) << role;
  return true;
}

bool Suite::expect(const nlohmann::json& item, const std::string& role,
                   const std::vector<uint8_t>& got) const {
  if (!item["expected"].contains(role)) return false;
  EXPECT_EQ(item["expected"][role]["tolerance"], "exact");
  EXPECT_EQ(got, bytes(item["expected"][role]["array"]).data) << role;
  return true;
}

std::vector<std::string> case_names(const std::string& suite) {
  std::vector<std::string> names;
  try {
    const Suite all(best_suite(suite));
    for (const auto& item : all.cases()) names.push_back(item["name"]);
  } catch (const std::exception&) {
    names.clear();  // the test that counts the cases then fails
  }
  return names;
}

}  // namespace kvist::golden
