// SPDX-License-Identifier: MIT
// Arrays in .npy files, version 1.0, C order, little endian: what numpy.save writes. Anything else
// is refused by name.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "kvist/core/buffer.h"

namespace kvist {

enum class NpyType { float32, float64, int32, uint8 };
const char* name(NpyType type) noexcept;  // "float32"
int size_of(NpyType type) noexcept;       // bytes

// "[2, 3]".
std::string shape_text(const std::vector<int64_t>& shape);

// An array on disk whose header was checked against the file's size. Elements are read when asked
// for.
class NpyFile {
 public:
  // Throws not_found or io where `path` cannot be opened, corrupt naming path, found and expected
  // where it is not a plain array of `type`: a pickle, another type or version, Fortran order, a
  // shape that the file's size does not match.
  NpyFile(const std::string& path, NpyType type);

  const std::string& path() const { return path_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t size() const { return size_; }  // elements

  // Elements [first, first + out.size()), in C order. T is as wide as the file's type.
  template <typename T>
  void read(int64_t first, std::span<T> out) {
    read_bytes(first, out.data(), out.size(), sizeof(T));
  }
  template <typename T>
  Buffer<T> read_all() {
    Buffer<T> out(static_cast<size_t>(size_));
    read(0, out.span());
    return out;
  }

 private:
  void read_bytes(int64_t first, void* out, size_t count, size_t width);

  std::string path_;
  NpyType type_;
  std::vector<int64_t> shape_;
  int64_t size_ = 0;
  uint64_t data_at_ = 0;  // byte offset of element 0
  std::ifstream file_;
};

// Writes `data`, as many elements as `shape` says. Throws io.
void write_npy(const std::string& path, NpyType type, const std::vector<int64_t>& shape,
               const void* data);

}  // namespace kvist
