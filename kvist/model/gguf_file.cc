// SPDX-License-Identifier: MIT
// Reads the header of a GGUF file, every length checked against the file, and maps its tensors into
// memory.
#include "kvist/model/gguf_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kvist/core/error.h"

namespace kvist {
namespace {

constexpr uint64_t kMaxValues = 1 << 20, kMaxTensors = 1 << 20, kMaxKey = 1 << 16;
constexpr uint64_t kMaxDimension = uint64_t{1} << 40;
constexpr std::array<const char*, 13> kTypeNames{
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};
constexpr std::array<uint64_t, 13> kTypeSizes{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

std::string type_name(uint32_t type) {
  return type < kTypeNames.size() ? kTypeNames[type] : str("type ", type);
}

template <typename T>
T load(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

}  // namespace

std::string GgufTensor::shape() const {
  int rank = 4;
  while (rank > 1 && ne[static_cast<size_t>(rank - 1)] == 1) --rank;
  std::string out = "[";
  for (int i = 0; i < rank; ++i) out += str(i ? ", " : "", ne[static_cast<size_t>(i)]);
  return out + "]";
}

// A cursor over the mapped bytes; every step past the end is an Error that says what was being
// read.
class GgufFile::Reader {
 public:
  explicit Reader(const GgufFile& file) : file_(file) {}
  uint64_t at() const { return at_; }

  const uint8_t* take(uint64_t n, const std::string& what) {
    if (n > file_.size_ - at_) {
      throw Error(ErrorKind::corrupt,
                  str(file_.path_, ": truncated: ", what, " at byte ", at_, " needs ", n,
                      " bytes, the file ends after ", file_.size_ - at_));
    }
    const uint8_t* out = file_.map_ + at_;
    at_ += n;
    return out;
  }
  template <typename T>
  T take(const std::string& what) {
    return load<T>(take(sizeof(T), what));
  }
  std::string_view text(uint64_t cap, const std::string& what) {
    const uint64_t at = at_;
    const auto n = take<uint64_t>(what);
    if (n > cap) {
      throw Error(ErrorKind::corrupt, str(file_.path_, ": ", what, " at byte ", at, " has length ",
                                          n, ", at most ", cap, " is expected"));
    }
    return {reinterpret_cast<const char*>(take(n, what)), n};
  }

 private:
  const GgufFile& file_;
  uint64_t at_ = 0;
};

GgufFile::GgufFile(const std::string& path) : path_(path) {
  map();
  try {
    parse();
  } catch (...) {
    munmap(const_cast<uint8_t*>(map_), size_);
    throw;
  }
}

GgufFile::~GgufFile() { munmap(const_cast<uint8_t*>(map_), size_); }

void GgufFile::map() {
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    throw Error(errno == ENOENT ? ErrorKind::not_found : ErrorKind::io,
                str(path_, ": cannot open the model: ", std::strerror(errno)));
  }
  struct stat info {};
  const bool known = fstat(fd, &info) == 0;
  void* at = MAP_FAILED;
  if (known && S_ISREG(info.st_mode) && info.st_size >= 24) {
    size_ = static_cast<uint64_t>(info.st_size);
    at = mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
  }
  const int error = errno;
  close(fd);
  if (known && !S_ISREG(info.st_mode)) {
    throw Error(ErrorKind::invalid_argument,
                str(path_, ": not a regular file, a GGUF model is expected"));
  }
  if (known && info.st_size < 24) {
    throw Error(ErrorKind::corrupt,
                str(path_, ": ", info.st_size, " bytes, a GGUF header has at least 24"));
  }
  if (at == MAP_FAILED)
    throw Error(ErrorKind::io, str(path_, ": cannot map: ", std::strerror(error)));
  map_ = static_cast<const uint8_t*>(at);
}

void GgufFile::parse() {
  Reader in(*this);
  const std::string_view magic(reinterpret_cast<const char*>(in.take(4, "magic")), 4);
  if (magic != "GGUF") {
    throw Error(ErrorKind::corrupt, str(path_, ": magic ", quoted(magic), ", expected \"GGUF\""));
  }
  const auto version = in.take<uint32_t>("version");
  if (version != 2 && version != 3) {
    throw Error(ErrorKind::unsupported,
                str(path_, ": GGUF version ", version,
                    (version & 0xFFFF) == 0 ? " (big endian)" : "", ", expected 2 or 3"));
  }
  const auto n_tensors = in.take<uint64_t>("number of tensors");
  const auto n_values = in.take<uint64_t>("number of keys");
  if (n_tensors > kMaxTensors || n_values > kMaxValues) {
    throw Error(ErrorKind::corrupt,
                str(path_, ": the header claims ", n_tensors, " tensors and ", n_values,
                    " keys, at most ", kMaxTensors, " of each are expected"));
  }
  read_values(in, n_values);
  const int64_t parts = integer("split.count").value_or(1);
  if (parts > 1) {
    throw Error(ErrorKind::unsupported,
                str(path_, ": key split.count is ", parts,
                    ": one part of a split model; merge it with llama-gguf-split --merge first"));
  }
  const int64_t alignment = integer("general.alignment").value_or(32);
  if (alignment < 8 || alignment > (1 << 20) || (alignment & (alignment - 1)) != 0) {
    throw Error(ErrorKind::corrupt, str(path_, ": key general.alignment is ", alignment,
                                        ", expected a power of two from 8 to 1048576"));
  }
  keys_ = in.at();
  read_tensors(in, n_tensors);
  const auto step = static_cast<uint64_t>(alignment);
  header_ = (in.at() + step - 1) / step * step;
  place_tensors(step);
}

void GgufFile::read_values(Reader& in, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    const std::string key(in.text(kMaxKey, str("the name of key ", i)));
    const std::string what = str("key ", quoted(key));
    Value v;
    v.type = in.take<uint32_t>(what);
    if (v.type == kArray) {
      v.element = in.take<uint32_t>(what);
      v.count = in.take<uint64_t>(what);
    }
    const uint32_t basic = v.type == kArray ? v.element : v.type;
    if (basic >= kTypeSizes.size() || basic == kArray) {
      throw Error(ErrorKind::corrupt, str(path_, ": ", what, " has value type ", basic,
                                          ", expected 0 to 12 and no array of arrays"));
    }
    if (v.type == kString) {
      const std::string_view text = in.text(UINT64_MAX, what);
      v.at = reinterpret_cast<const uint8_t*>(text.data());
      v.size = text.size();
    } else if (v.type != kArray) {
      v.at = in.take(kTypeSizes[basic], what);
    } else if (basic == kString) {
      if (v.count > size_ / 8) in.take(size_, str(what, ", ", v.count, " strings,"));
      v.at = map_ + in.at();
      for (uint64_t j = 0; j < v.count; ++j) in.text(UINT64_MAX, what);
    } else {
      if (v.count > size_) in.take(size_, str(what, ", ", v.count, " numbers,"));
      v.at = in.take(v.count * kTypeSizes[basic], what);
    }
    if (key.empty() || !values_.emplace(key, v).second) {
      throw Error(ErrorKind::corrupt,
                  str(path_, ": ", what, key.empty() ? " has no name" : " is given twice"));
    }
  }
}

void GgufFile::read_tensors(Reader& in, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    GgufTensor t;
    t.name = std::string(in.text(GGML_MAX_NAME - 1, str("the name of tensor ", i)));
    const std::string what = str("tensor ", quoted(t.name));
    const auto rank = in.take<uint32_t>(what);
    if (rank < 1 || rank > 4) {
      throw Error(ErrorKind::corrupt,
                  str(path_, ": ", what, " has ", rank, " dimensions, expected 1 to 4"));
    }
    uint64_t elements = 1;
    for (uint32_t axis = 0; axis < rank; ++axis) {
      const auto n = in.take<uint64_t>(what);
      if (n < 1 || n > kMaxDimension || elements > kMaxDimension / n) {
        throw Error(ErrorKind::corrupt,
                    str(path_, ": ", what, " has ", n, " elements along dimension ", axis,
                        ", expected a tensor of 1 to 2^40 elements"));
      }
      elements *= n;
      t.ne[axis] = static_cast<int64_t>(n);
    }
    const auto type = in.take<uint32_t>(what);
    t.offset = in.take<uint64_t>(what);
    const bool known = type < GGML_TYPE_COUNT && ggml_blck_size(static_cast<ggml_type>(type)) > 0 &&
                       ggml_type_size(static_cast<ggml_type>(type)) > 0;
    if (!known) {
      throw Error(ErrorKind::unsupported,
                  str(path_, ": ", what, " has element type ", type, ", which this ggml (",
                      ggml_version(), ") does not read"));
    }
    t.type = static_cast<ggml_type>(type);
    const int64_t block = ggml_blck_size(t.type);
    if (t.ne[0] % block != 0) {
      throw Error(ErrorKind::corrupt,
                  str(path_, ": ", what, " has rows of ", t.ne[0], " elements, but ",
                      ggml_type_name(t.type), " stores blocks of ", block));
    }
    t.size_bytes = elements / static_cast<uint64_t>(block) * ggml_type_size(t.type);
    if (!index_.emplace(t.name, tensors_.size()).second) {
      throw Error(ErrorKind::corrupt, str(path_, ": ", what, " is listed twice"));
    }
    tensors_.push_back(std::move(t));
  }
}

void GgufFile::place_tensors(uint64_t alignment) {
  for (GgufTensor& t : tensors_) {
    if (t.offset % alignment != 0) {
      throw Error(ErrorKind::corrupt, str(path_, ": tensor ", quoted(t.name), " begins at offset ",
                                          t.offset, ", expected a multiple of ", alignment));
    }
    const bool fits = header_ <= size_ && t.offset <= size_ - header_ &&
                      t.size_bytes <= size_ - header_ - t.offset;
    if (!fits) {
      throw Error(ErrorKind::corrupt,
                  str(path_, ": truncated: tensor ", quoted(t.name), " needs ", t.size_bytes,
                      " bytes at offset ", t.offset, " of the data, the file has ", size_,
                      " bytes, ", header_, " of them header"));
    }
    t.offset += header_;
  }
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

const GgufFile::Value* GgufFile::value(std::string_view key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

void GgufFile::wrong(std::string_view key, std::string_view expected) const {
  throw Error(ErrorKind::corrupt,
              str(path_, ": key ", key, " is ", shown(key), ", expected ", expected));
}

std::optional<int64_t> GgufFile::integer(std::string_view key) const {
  const Value* v = value(key);
  if (v == nullptr) return std::nullopt;
  switch (v->type) {
    case 0:
      return load<uint8_t>(v->at);
    case 1:
      return load<int8_t>(v->at);
    case 2:
      return load<uint16_t>(v->at);
    case 3:
      return load<int16_t>(v->at);
    case 4:
      return load<uint32_t>(v->at);
    case 5:
      return load<int32_t>(v->at);
    case 10:
      if (load<uint64_t>(v->at) > INT64_MAX) wrong(key, "an integer below 2^63");
      return static_cast<int64_t>(load<uint64_t>(v->at));
    case 11:
      return load<int64_t>(v->at);
    default:
      wrong(key, "an integer");
  }
}

std::optional<double> GgufFile::number(std::string_view key) const {
  const Value* v = value(key);
  if (v == nullptr) return std::nullopt;
  if (v->type == kFloat32) return static_cast<double>(load<float>(v->at));
  if (v->type == 12) return load<double>(v->at);
  if (v->type == kBool || v->type == kString || v->type == kArray) wrong(key, "a number");
  return static_cast<double>(*integer(key));
}

std::optional<bool> GgufFile::boolean(std::string_view key) const {
  const Value* v = value(key);
  if (v == nullptr) return std::nullopt;
  if (v->type != kBool) wrong(key, "true or false");
  return *v->at != 0;
}

std::optional<std::string> GgufFile::text(std::string_view key) const {
  const Value* v = value(key);
  if (v == nullptr) return std::nullopt;
  if (v->type != kString) wrong(key, "a string");
  return std::string(reinterpret_cast<const char*>(v->at), v->size);
}

std::optional<uint64_t> GgufFile::array(std::string_view key, uint32_t element) const {
  const Value* v = value(key);
  if (v == nullptr) return std::nullopt;
  if (v->type != kArray || v->element != element)
    wrong(key, str("an array of ", type_name(element)));
  return v->count;
}

std::vector<std::string_view> GgufFile::strings(std::string_view key) const {
  std::vector<std::string_view> out;
  const uint64_t count = array(key, kString).value_or(0);
  const uint8_t* at = count > 0 ? value(key)->at : nullptr;
  for (uint64_t i = 0; i < count; ++i) {
    const auto n = load<uint64_t>(at);
    out.emplace_back(reinterpret_cast<const char*>(at) + 8, n);
    at += 8 + n;
  }
  return out;
}

std::vector<std::string> GgufFile::keys_with_prefix(std::string_view prefix) const {
  std::vector<std::string> out;
  for (const auto& [key, v] : values_) {
    if (key.starts_with(prefix)) out.push_back(key);
  }
  return out;
}

std::string GgufFile::shown(std::string_view key) const {
  const Value* v = value(key);
  if (v == nullptr) return "nothing";
  switch (v->type) {
    case kFloat32:
      return str(load<float>(v->at));
    case 12:
      return str(load<double>(v->at));
    case kBool:
      return *v->at != 0 ? "true" : "false";
    case kString:
      return quoted({reinterpret_cast<const char*>(v->at), v->size});
    case kArray:
      return str("an array of ", v->count, " ", type_name(v->element));
    case 10:
      return str(load<uint64_t>(v->at));
    default:
      return str(*integer(key));
  }
}

bool GgufFile::is_zero(std::string_view key) const {
  const Value* v = value(key);
  if (v == nullptr || v->type == kString || v->type == kArray) return false;
  if (v->type == kBool) return *v->at == 0;
  if (v->type == 10) return load<uint64_t>(v->at) == 0;
  return *number(key) == 0;
}

}  // namespace kvist
