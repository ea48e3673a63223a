// SPDX-License-Identifier: MIT
// Temporary names beside the final ones, so that a rename suffices.
#include "kvist/cli/staged.h"

#include <array>
#include <fstream>

#include "kvist/core/error.h"

namespace kvist {
namespace {

namespace fs = std::filesystem;

// All names of ours: an older run may have left one that this run does not write.
constexpr std::array kOwned = {
    "kept_count.npy", "kept.npy",     "scores.npy",   "counts.npy",       "codes_k.npy",
    "codes_v.npy",    "depths_k.npy", "depths_v.npy", "out.npy",          "ledger.json",
    "ranks.npy",      "k_out.npy",    "v_out.npy",    "anchor_index.npy", "coefficients.npy"};

}  // namespace

Staged::Staged(const std::string& folder) : folder_(folder) {
  std::error_code failure;
  created_ = fs::create_directories(folder_, failure);
  if (failure || !fs::is_directory(folder_)) {
    throw Error(ErrorKind::io, str(folder, ": cannot be made a folder: ",
                                   failure ? failure.message() : "it is something else"));
  }
}

Staged::~Staged() {
  std::error_code ignored;
  for (const std::string& name : names_) fs::remove(temporary(name), ignored);
  if (created_ && !committed_) fs::remove(folder_, ignored);
}

void Staged::array(const char* name, NpyType type, const std::vector<int64_t>& shape,
                   const void* data) {
  names_.emplace_back(name);
  write_npy(temporary(name), type, shape, data);
}

void Staged::text(const char* name, const std::string& content) {
  names_.emplace_back(name);
  std::ofstream out(temporary(name), std::ios::binary);
  out << content;
  out.close();
  if (!out) throw Error(ErrorKind::io, str(temporary(name), ": cannot be written"));
}

void Staged::commit() {
  std::error_code ignored;
  for (const char* name : kOwned) fs::remove(folder_ / name, ignored);
  for (const std::string& name : names_) {
    std::error_code failure;
    fs::rename(temporary(name), folder_ / name, failure);
    if (failure)
      throw Error(ErrorKind::io, str((folder_ / name).string(), ": ", failure.message()));
  }
  committed_ = true;
}

std::string Staged::temporary(const std::string& name) const {
  return (folder_ / ("." + name + ".part")).string();
}

}  // namespace kvist
