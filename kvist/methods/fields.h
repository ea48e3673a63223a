// SPDX-License-Identifier: MIT
// Files of fields, as calibrations and bases have them: magic, version, fields in a fixed order,
// XXH64 of all before it; little endian.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kvist/core/error.h"
#include "kvist/core/half.h"

namespace kvist {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie");

class FieldWriter {
 public:
  FieldWriter(std::string_view magic, uint32_t version) {
    append(magic.data(), magic.size());
    put(version);
  }
  template <typename T>
  void put(T x) {
    static_assert(std::is_arithmetic_v<T>);
    append(&x, sizeof(T));
  }
  void text(std::string_view s);  // at most 4096 bytes
  void numbers(std::span<const float> from, Scalar format);
  std::vector<uint8_t> take();  // closes with the checksum

 private:
  void append(const void* data, size_t n) {
    const auto* from = static_cast<const uint8_t*>(data);
    out_.insert(out_.end(), from, from + n);
  }
  std::vector<uint8_t> out_;
};

// Reads fields in order; every complaint is Error(corrupt) and names file, field, found and
// expected.
class FieldReader {
 public:
  static constexpr float kAny = std::numeric_limits<float>::lowest();

  // Checks magic, version and checksum. `name` stands for the file in messages.
  FieldReader(std::span<const uint8_t> bytes, std::string name, std::string_view magic,
              uint32_t version);

  [[noreturn]] void refuse(std::string_view field, std::string_view found,
                           std::string_view expected) const;
  template <typename T>
  T get(std::string_view field) {
    T x;
    std::memcpy(&x, bytes(field, sizeof(T)).data(), sizeof(T));
    return x;
  }
  // An integer of 32 bits within [least, most].
  int integer(std::string_view field, int least, int most);
  bool boolean(std::string_view field) { return get_at_most(field, 1) != 0; }
  uint8_t get_at_most(std::string_view field, uint8_t most);
  std::string text(std::string_view field);
  // Finite numbers of at least `least`.
  std::vector<float> numbers(std::string_view field, uint64_t n, Scalar format, float least);
  void end() const;

 private:
  std::span<const uint8_t> bytes(std::string_view field, uint64_t n);

  std::span<const uint8_t> left_;
  std::string name_;
};

// Throws Error(io).
void write_file(const std::string& path, std::span<const uint8_t> bytes);
// Throws not_found or io, and corrupt for more than 4 GiB.
std::vector<uint8_t> read_file(const std::string& path);

}  // namespace kvist
