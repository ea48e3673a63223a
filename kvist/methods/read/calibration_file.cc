// SPDX-License-Identifier: MIT
// Calibration files. After magic and version: model and rope as length and bytes, shape, basis,
// tokens, checksum of the code's tables; then layer by layer format, mu_k, sigma_k, mu_v, sigma_v
// as 16 bits, m2q as float32, bases as 16 bits; at the end XXH64 of all before it.
#include <xxhash.h>

#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <string_view>

#include "kvist/core/error.h"
#include "kvist/kernels/tree_code.h"
#include "kvist/methods/read/calibration.h"

namespace kvist {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie");

constexpr std::string_view kMagic = "KVISTRKC";
constexpr uint32_t kVersion = 1;
constexpr uint32_t kMostText = 4096;
constexpr int kMostLayers = 4096, kMostHeads = 4096;
constexpr uint64_t kMostBytes = uint64_t{1} << 32;

uint64_t table_checksum() {
  using kernels::kTreeCentroids, kernels::kTreeThresholds;
  return XXH64(kTreeThresholds, sizeof(kTreeThresholds),
               XXH64(kTreeCentroids, sizeof(kTreeCentroids), 0));
}

class Writer {
 public:
  template <typename T>
  void put(T x) {
    static_assert(std::is_arithmetic_v<T>);
    append(&x, sizeof(T));
  }
  void text(std::string_view s) {
    KVIST_ASSERT(s.size() <= kMostText);
    put(static_cast<uint32_t>(s.size()));
    append(s.data(), s.size());
  }
  void numbers(const std::vector<float>& from, Scalar format) {
    for (float x : from) {
      if (format == Scalar::f32) put(x);
      if (format == Scalar::f16) put(to_f16(x).bits);
      if (format == Scalar::bf16) put(to_bf16(x).bits);
    }
  }
  void append(const void* data, size_t n) {
    const auto* from = static_cast<const uint8_t*>(data);
    out_.insert(out_.end(), from, from + n);
  }
  std::vector<uint8_t> take() {
    put(XXH64(out_.data(), out_.size(), 0));
    return std::move(out_);
  }

 private:
  std::vector<uint8_t> out_;
};

// Reads fields in order; every complaint names file, field, found and expected.
class Reader {
 public:
  Reader(std::span<const uint8_t> bytes, std::string name) : left_(bytes), name_(std::move(name)) {}

  [[noreturn]] void refuse(std::string_view field, std::string_view found,
                           std::string_view expected) const {
    throw Error(ErrorKind::corrupt,
                str(name_, ": ", field, ": found ", found, "; expected ", expected));
  }
  template <typename T>
  T get(std::string_view field) {
    T x;
    std::memcpy(&x, bytes(field, sizeof(T)).data(), sizeof(T));
    return x;
  }
  // An integer of 32 bits within [least, most].
  int integer(std::string_view field, int least, int most) {
    const auto x = get<int32_t>(field);
    if (x < least || x > most) refuse(field, str(x), str(least, " to ", most));
    return x;
  }
  bool boolean(std::string_view field) { return get_at_most(field, 1) != 0; }
  uint8_t get_at_most(std::string_view field, uint8_t most) {
    const auto x = get<uint8_t>(field);
    if (x > most) refuse(field, str(int{x}), str("at most ", int{most}));
    return x;
  }
  std::string text(std::string_view field) {
    const auto n = get<uint32_t>(field);
    if (n > kMostText) refuse(field, str(n, " bytes"), str("at most ", kMostText));
    const auto from = bytes(field, n);
    return {from.begin(), from.end()};
  }
  std::vector<float> numbers(std::string_view field, uint64_t n, Scalar format, float least) {
    const auto width = static_cast<uint64_t>(size_of(format));
    const auto from = bytes(field, checked_mul(n, width, "a calibration's array"));
    std::vector<float> out(n);
    for (size_t i = 0; i < n; ++i) {
      if (format == Scalar::f32) {
        std::memcpy(&out[i], from.data() + 4 * i, 4);
      } else {
        uint16_t bits;
        std::memcpy(&bits, from.data() + 2 * i, 2);
        out[i] = format == Scalar::f16 ? to_float(f16{bits}) : to_float(bf16{bits});
      }
      if (!std::isfinite(out[i]) || out[i] < least)
        refuse(field, str(out[i], " at ", i), str("a finite number of at least ", least));
    }
    return out;
  }
  void end() const {
    if (!left_.empty()) refuse("end", str(left_.size(), " more bytes"), "none");
  }

 private:
  std::span<const uint8_t> bytes(std::string_view field, uint64_t n) {
    if (n > left_.size()) refuse(field, str(left_.size(), " bytes"), str(n));
    const auto out = left_.first(n);
    left_ = left_.subspan(n);
    return out;
  }

  std::span<const uint8_t> left_;
  std::string name_;
};

constexpr float kAny = std::numeric_limits<float>::lowest();

ReadCalibration::Layer read_layer(Reader& in, const ReadShape& shape, bool klt) {
  const auto d = static_cast<uint64_t>(shape.head_dim);
  const uint64_t wide = static_cast<uint64_t>(shape.kv_heads) * d;
  ReadCalibration::Layer out;
  out.format = in.get_at_most("format of a layer", 1) == 0 ? Scalar::f16 : Scalar::bf16;
  const float least = out.format == Scalar::f16 ? 0x1p-14f : 0x1p-126f;
  out.mu_k = in.numbers("means of keys", wide, out.format, kAny);
  out.sigma_k = in.numbers("scales of keys", wide, out.format, least);
  out.mu_v = in.numbers("means of values", wide, out.format, kAny);
  out.sigma_v = in.numbers("scales of values", wide, out.format, least);
  out.m2q =
      in.numbers("squares of queries", static_cast<uint64_t>(shape.heads) * d, Scalar::f32, 0);
  if (klt) out.klt = in.numbers("bases of keys", wide * d, Scalar::f16, kAny);
  return out;
}

}  // namespace

std::vector<uint8_t> encode(const ReadCalibration& c) {
  Writer out;
  out.append(kMagic.data(), kMagic.size());
  out.put(kVersion);
  out.text(c.source.model);
  out.text(c.source.rope);
  const ReadShape& shape = c.source.shape;
  for (int size : {shape.layers, shape.kv_heads, shape.heads, shape.head_dim})
    out.put(static_cast<int32_t>(size));
  out.put(c.basis.seed);
  out.put(static_cast<uint8_t>(c.basis.layer_signs));
  out.put(static_cast<uint8_t>(c.basis.klt));
  out.put(c.tokens);
  out.put(table_checksum());
  for (const auto& layer : c.layers) {
    out.put(static_cast<uint8_t>(layer.format == Scalar::f16 ? 0 : 1));
    for (const auto* array : {&layer.mu_k, &layer.sigma_k, &layer.mu_v, &layer.sigma_v})
      out.numbers(*array, layer.format);
    out.numbers(layer.m2q, Scalar::f32);
    out.numbers(layer.klt, Scalar::f16);
  }
  return out.take();
}

ReadCalibration decode_calibration(std::span<const uint8_t> bytes, const std::string& name) {
  Reader whole(bytes, name);
  const size_t least = kMagic.size() + sizeof(kVersion) + sizeof(uint64_t);
  if (bytes.size() < least || std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0)
    whole.refuse("magic", str(bytes.size(), " bytes without it"), str("'", kMagic, "'"));
  const auto body = bytes.first(bytes.size() - sizeof(uint64_t));
  Reader in(body.subspan(kMagic.size()), name);
  const auto version = in.get<uint32_t>("version");
  if (version != kVersion) in.refuse("version", str(version), str(kVersion));
  Reader end(bytes.subspan(body.size()), name);
  const auto stored = end.get<uint64_t>("checksum");
  const uint64_t actual = XXH64(body.data(), body.size(), 0);
  if (stored != actual)
    in.refuse("checksum", fmt::format("{:016x}", stored),
              fmt::format("{:016x} (a file cut off or changed)", actual));

  ReadCalibration out;
  out.source.model = in.text("model");
  out.source.rope = in.text("rope");
  ReadShape& shape = out.source.shape;
  shape.layers = in.integer("layers", 1, kMostLayers);
  shape.kv_heads = in.integer("KV heads", 1, kMostHeads);
  shape.heads = in.integer("heads", shape.kv_heads, kMostHeads);
  if (shape.heads % shape.kv_heads != 0)
    in.refuse("heads", str(shape.heads), str("a multiple of ", shape.kv_heads));
  shape.head_dim = in.integer("head dimension", 1, HeadTransform::kMaxHeadDim);
  out.basis.seed = in.get<uint64_t>("seed");
  out.basis.layer_signs = in.boolean("signs by layer");
  out.basis.klt = in.boolean("klt");
  out.tokens = in.get<int64_t>("tokens");
  if (out.tokens < 1) in.refuse("tokens", str(out.tokens), "at least 1");
  const auto tables = in.get<uint64_t>("tables");
  if (tables != table_checksum())
    in.refuse("tables", fmt::format("{:016x}", tables), fmt::format("{:016x}", table_checksum()));
  for (int layer = 0; layer < shape.layers; ++layer)
    out.layers.push_back(read_layer(in, shape, out.basis.klt));
  in.end();
  return out;
}

void save(const ReadCalibration& calibration, const std::string& path) {
  const std::vector<uint8_t> bytes = encode(calibration);
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) throw Error(ErrorKind::io, str(path, ": cannot be written: ", std::strerror(errno)));
}

ReadCalibration load_calibration(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in)
    throw Error(errno == ENOENT ? ErrorKind::not_found : ErrorKind::io,
                str(path, ": cannot be opened: ", std::strerror(errno)));
  const auto size = static_cast<int64_t>(in.tellg());
  if (size < 0 || static_cast<uint64_t>(size) > kMostBytes)
    throw Error(ErrorKind::corrupt,
                str(path, ": size: found ", size, " bytes; expected at most ", kMostBytes));
  std::vector<uint8_t> bytes(static_cast<size_t>(size));
  in.seekg(0);
  in.read(reinterpret_cast<char*>(bytes.data()), size);
  if (in.gcount() != size)
    throw Error(ErrorKind::io, str(path, ": read ", in.gcount(), " of ", size, " bytes"));
  return decode_calibration(bytes, path);
}

}  // namespace kvist
