// SPDX-License-Identifier: MIT
// A folder of results that appears as a whole or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "kvist/core/npy.h"

namespace kvist {

// Files are written under names of their own first; commit() gives them the final ones. What was
// not committed is removed.
class Staged {
 public:
  // Makes the folder where it is not there; throws io where it cannot be one.
  explicit Staged(const std::string& folder);
  ~Staged();
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;

  void array(const char* name, NpyType type, const std::vector<int64_t>& shape, const void* data);
  void text(const char* name, const std::string& content);
  void commit();

 private:
  std::string temporary(const std::string& name) const;

  std::filesystem::path folder_;
  std::vector<std::string> names_;
  bool created_ = false, committed_ = false;
};

}  // namespace kvist
