// SPDX-License-Identifier: MIT
#include "kvist/methods/fields.h"

#include <xxhash.h>

#include <cerrno>
#include <cmath>
#include <fstream>

namespace kvist {
namespace {

constexpr uint32_t kMostText = 4096;
constexpr uint64_t kMostBytes = uint64_t{1} << 32;

}  // namespace

void FieldWriter::text(std::string_view s) {
  KVIST_ASSERT(s.size() <= kMostText);
  put(static_cast<uint32_t>(s.size()));
  append(s.data(), s.size());
}

void FieldWriter::numbers(std::span<const float> from, Scalar format) {
  for (float x : from) {
    if (format == Scalar::f32) put(x);
    if (format == Scalar::f16) put(to_f16(x).bits);
    if (format == Scalar::bf16) put(to_bf16(x).bits);
  }
}

std::vector<uint8_t> FieldWriter::take() {
  put(XXH64(out_.data(), out_.size(), 0));
  return std::move(out_);
}

FieldReader::FieldReader(std::span<const uint8_t> bytes, std::string name, std::string_view magic,
                         uint32_t version)
    : left_(bytes), name_(std::move(name)) {
  const size_t least = magic.size() + sizeof(version) + sizeof(uint64_t);
  if (bytes.size() < least || std::memcmp(bytes.data(), magic.data(), magic.size()) != 0)
    refuse("magic", str(bytes.size(), " bytes without it"), str("'", magic, "'"));
  const auto body = bytes.first(bytes.size() - sizeof(uint64_t));
  left_ = body.subspan(magic.size());
  const auto found = get<uint32_t>("version");
  if (found != version)
    refuse("version", str(found), str(version, "; make the file anew with kvist calibrate"));
  uint64_t stored;
  std::memcpy(&stored, bytes.data() + body.size(), sizeof(stored));
  const uint64_t actual = XXH64(body.data(), body.size(), 0);
  if (stored != actual)
    refuse("checksum", fmt::format("{:016x}", stored),
           fmt::format("{:016x} (a file cut off or changed)", actual));
}

void FieldReader::refuse(std::string_view field, std::string_view found,
                         std::string_view expected) const {
  throw Error(ErrorKind::corrupt,
              str(name_, ": ", field, ": found ", found, "; expected ", expected));
}

int FieldReader::integer(std::string_view field, int least, int most) {
  const auto x = get<int32_t>(field);
  if (x < least || x > most) refuse(field, str(x), str(least, " to ", most));
  return x;
}

uint8_t FieldReader::get_at_most(std::string_view field, uint8_t most) {
  const auto x = get<uint8_t>(field);
  if (x > most) refuse(field, str(int{x}), str("at most ", int{most}));
  return x;
}

std::string FieldReader::text(std::string_view field) {
  const auto n = get<uint32_t>(field);
  if (n > kMostText) refuse(field, str(n, " bytes"), str("at most ", kMostText));
  const auto from = bytes(field, n);
  return {from.begin(), from.end()};
}

std::vector<float> FieldReader::numbers(std::string_view field, uint64_t n, Scalar format,
                                        float least) {
  const auto width = static_cast<uint64_t>(size_of(format));
  const auto from = bytes(field, checked_mul(n, width, "an array of a file"));
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

void FieldReader::end() const {
  if (!left_.empty()) refuse("end", str(left_.size(), " more bytes"), "none");
}

std::span<const uint8_t> FieldReader::bytes(std::string_view field, uint64_t n) {
  if (n > left_.size()) refuse(field, str(left_.size(), " bytes"), str(n));
  const auto out = left_.first(n);
  left_ = left_.subspan(n);
  return out;
}

void write_file(const std::string& path, std::span<const uint8_t> bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) throw Error(ErrorKind::io, str(path, ": cannot be written: ", std::strerror(errno)));
}

std::vector<uint8_t> read_file(const std::string& path) {
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
  return bytes;
}

}  // namespace kvist
