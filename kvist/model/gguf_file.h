// SPDX-License-Identifier: MIT
// Reads the header of a GGUF file, every length checked against the file, and maps its tensors into
// memory.
#pragma once

#include <ggml.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvist {

// One tensor as the header describes it; its bytes lie inside the file.
struct GgufTensor {
  std::string name;
  ggml_type type = GGML_TYPE_F32;
  std::array<int64_t, 4> ne{1, 1, 1, 1};  // ggml's order: innermost first
  uint64_t offset = 0;                    // of the first byte in the file
  uint64_t size_bytes = 0;
  std::string shape() const;  // "[576, 1536]"
};

// A mapped file. Throws Error for anything that is not a whole, single, readable GGUF of version 2
// or 3.
class GgufFile {
 public:
  explicit GgufFile(const std::string& path);
  ~GgufFile();
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::string& path() const { return path_; }
  uint64_t size_bytes() const { return size_; }
  uint64_t header_bytes() const { return header_; }  // up to the first tensor's data
  uint64_t keys_bytes() const { return keys_; }      // up to the list of tensors
  const uint8_t* data() const { return map_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find(std::string_view name) const;

  // Values by key; empty where the key is absent. Throw Error naming the key, what was found and
  // what was expected where the type does not fit: integers of any width are integers, floats of
  // any width and integers are numbers.
  bool has(std::string_view key) const { return values_.find(key) != values_.end(); }
  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> text(std::string_view key) const;
  // Length of an array whose elements are of gguf type `element` (one of the kGguf constants).
  std::optional<uint64_t> array(std::string_view key, uint32_t element) const;

  // The strings of an array of strings, as views into the file; empty where the key is absent.
  std::vector<std::string_view> strings(std::string_view key) const;

  std::vector<std::string> keys_with_prefix(std::string_view prefix) const;
  // The value as a message shows it: "8192", "\"yarn\"", "array of 30 u32"; "nothing" where absent.
  std::string shown(std::string_view key) const;
  bool is_zero(std::string_view key) const;  // a number 0 or false

  static constexpr uint32_t kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8,
                            kArray = 9;

 private:
  struct Value {
    uint32_t type = 0;
    uint32_t element = 0;         // arrays
    uint64_t count = 0;           // arrays
    const uint8_t* at = nullptr;  // scalar bytes; the text of a string; the first element
    uint64_t size = 0;            // bytes of a string
  };
  class Reader;
  void map();
  void parse();
  void read_values(Reader& in, uint64_t count);
  void read_tensors(Reader& in, uint64_t count);
  void place_tensors(uint64_t alignment);
  const Value* value(std::string_view key) const;
  [[noreturn]] void wrong(std::string_view key, std::string_view expected) const;

  std::string path_;
  const uint8_t* map_ = nullptr;
  uint64_t size_ = 0, keys_ = 0, header_ = 0;
  std::map<std::string, Value, std::less<>> values_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
};

}  // namespace kvist
