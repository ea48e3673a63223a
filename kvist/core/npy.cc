// SPDX-License-Identifier: MIT
// The header of .npy files: a magic, a version, and a Python dict literal with descr, fortran_order
// and shape.
#include "kvist/core/npy.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>

#include "kvist/core/error.h"

namespace kvist {
namespace {

static_assert(std::endian::native == std::endian::little, "arrays are read as they lie in memory");

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kPreamble = 10;  // magic, major, minor, header length (2 bytes, little endian)
constexpr size_t kMostAxes = 8;

const char* descr_of(NpyType type) {
  switch (type) {
    case NpyType::float32:
      return "<f4";
    case NpyType::float64:
      return "<f8";
    case NpyType::int32:
      return "<i4";
    case NpyType::uint8:
      return "|u1";
  }
  return "";
}

std::string printable(std::string_view text) {
  std::string out;
  for (char c : text.substr(0, 40)) out += c >= ' ' && c <= '~' ? c : '?';
  return out;
}

struct Header {
  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<int64_t>> shape;
};

// Reads {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }. Throws a plain description of
// what is wrong.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : text_(text) {}

  Header parse() {
    Header header;
    expect('{');
    while (!accept('}')) {
      const std::string key = quoted_text();
      expect(':');
      if (key == "descr" && !header.descr) {
        header.descr = descr();
      } else if (key == "fortran_order" && !header.fortran_order) {
        header.fortran_order = boolean();
      } else if (key == "shape" && !header.shape) {
        header.shape = shape();
      } else {
        fail(str("an unknown or repeated key '", printable(key), "'"));
      }
      if (accept(',')) continue;
      expect('}');
      break;
    }
    skip();
    if (at_ != text_.size()) fail("text after the header's '}'");
    if (!header.descr || !header.fortran_order || !header.shape)
      fail("a header without descr, fortran_order or shape");
    return header;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw Error(ErrorKind::corrupt, std::string(what));
  }
  void skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool accept(char c) {
    skip();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(str("no '", c, "' at header byte ", at_));
  }
  std::string quoted_text() {
    skip();
    if (at_ == text_.size() || (text_[at_] != '\'' && text_[at_] != '"'))
      fail(str("no text at header byte ", at_));
    const size_t end = text_.find(text_[at_], at_ + 1);
    if (end == std::string_view::npos) fail("text without an end");
    const std::string out(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return out;
  }
  std::string descr() {
    skip();
    if (at_ < text_.size() && text_[at_] == '[') fail("a structured array (a list of fields)");
    return quoted_text();
  }
  bool boolean() {
    skip();
    for (const bool value : {false, true}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return value;
      }
    }
    fail(str("neither True nor False at header byte ", at_));
  }
  std::vector<int64_t> shape() {
    std::vector<int64_t> axes;
    expect('(');
    while (!accept(')')) {
      skip();
      int64_t axis = 0;
      const auto [end, failure] =
          std::from_chars(text_.data() + at_, text_.data() + text_.size(), axis);
      if (failure != std::errc() || axis < 0)
        fail(str("a shape with an axis that is no size at header byte ", at_));
      at_ = static_cast<size_t>(end - text_.data());
      axes.push_back(axis);
      if (axes.size() > kMostAxes) fail(str("more than ", kMostAxes, " axes"));
      if (accept(',')) continue;
      expect(')');
      break;
    }
    return axes;
  }

  std::string_view text_;
  size_t at_ = 0;
};

// Elements of `shape`, or nothing where it and the bytes do not fit in 62 bits.
std::optional<int64_t> count(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (int64_t axis : shape) {
    if (__builtin_mul_overflow(n, axis, &n) || n > int64_t{1} << 59) return std::nullopt;
  }
  return n;
}

}  // namespace

const char* name(NpyType type) noexcept {
  switch (type) {
    case NpyType::float32:
      return "float32";
    case NpyType::float64:
      return "float64";
    case NpyType::int32:
      return "int32";
    case NpyType::uint8:
      return "uint8";
  }
  return "unknown";
}

int size_of(NpyType type) noexcept {
  return type == NpyType::float64 ? 8 : type == NpyType::uint8 ? 1 : 4;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (size_t axis = 0; axis < shape.size(); ++axis) out += str(axis == 0 ? "" : ", ", shape[axis]);
  return out + "]";
}

NpyFile::NpyFile(const std::string& path, NpyType type) : path_(path), type_(type) {
  const auto refuse = [&](std::string_view found) {
    throw Error(ErrorKind::corrupt,
                str(path, ": found ", found, "; expected a .npy array (version 1.0, C order) of ",
                    name(type), " '", descr_of(type), "'"));
  };
  std::error_code failure;
  if (!std::filesystem::exists(path, failure))
    throw Error(ErrorKind::not_found, str(path, ": no such file"));
  if (!std::filesystem::is_regular_file(path, failure))
    refuse("something that is not a regular file");
  const uint64_t file_size = std::filesystem::file_size(path, failure);
  file_.open(path, std::ios::binary);
  if (failure || !file_)
    throw Error(ErrorKind::io, str(path, ": cannot be opened: ", std::strerror(errno)));

  char preamble[kPreamble] = {};
  file_.read(preamble, kPreamble);
  const auto got = static_cast<size_t>(file_.gcount());
  if (got > 0 && preamble[0] == '\x80') refuse("a pickle");
  if (got > 1 && preamble[0] == 'P' && preamble[1] == 'K') refuse("a zip archive (.npz)");
  if (got < kPreamble || std::string_view(preamble, kMagic.size()) != kMagic)
    refuse("a file without the .npy magic");
  const int major = static_cast<unsigned char>(preamble[6]),
            minor = static_cast<unsigned char>(preamble[7]);
  if (major != 1 || minor != 0) refuse(str(".npy version ", major, ".", minor));
  const size_t length = static_cast<unsigned char>(preamble[8]) |
                        static_cast<size_t>(static_cast<unsigned char>(preamble[9])) << 8;
  std::string text(length, '\0');
  file_.read(text.data(), static_cast<std::streamsize>(length));
  if (static_cast<size_t>(file_.gcount()) != length)
    refuse(str("a header cut off after ", file_.gcount(), " of ", length, " bytes"));

  Header header;
  try {
    header = HeaderParser(text).parse();
  } catch (const Error& error) {
    refuse(error.what());
  }
  if (header.descr->find('O') != std::string::npos) refuse("Python objects (a pickle, descr '|O')");
  if (*header.descr != descr_of(type)) refuse(str("descr '", printable(*header.descr), "'"));
  if (*header.fortran_order) refuse("Fortran order");
  data_at_ = kPreamble + length;
  shape_ = *header.shape;
  const std::optional<int64_t> elements = count(shape_);
  const uint64_t width = static_cast<uint64_t>(size_of(type));
  if (!elements) refuse(str("the absurd shape ", shape_text(shape_)));
  size_ = *elements;
  const uint64_t expected = data_at_ + static_cast<uint64_t>(size_) * width;
  if (file_size != expected) {
    refuse(str(file_size, " bytes where shape ", shape_text(shape_), " needs ", expected,
               file_size < expected ? " (a truncated file)" : " (bytes after the array)"));
  }
}

void NpyFile::read_bytes(int64_t first, void* out, size_t wanted, size_t width) {
  KVIST_ASSERT(width == static_cast<size_t>(size_of(type_)) && first >= 0 &&
               first + static_cast<int64_t>(wanted) <= size_);
  file_.clear();
  file_.seekg(static_cast<std::streamoff>(data_at_ + static_cast<uint64_t>(first) * width));
  file_.read(static_cast<char*>(out), static_cast<std::streamsize>(wanted * width));
  if (static_cast<size_t>(file_.gcount()) != wanted * width) {
    throw Error(ErrorKind::io,
                str(path_, ": read ", file_.gcount(), " of ", wanted * width, " bytes"));
  }
}

void write_npy(const std::string& path, NpyType type, const std::vector<int64_t>& shape,
               const void* data) {
  std::string axes;
  for (int64_t axis : shape) axes += str(axis, ", ");
  if (shape.size() != 1 && !axes.empty()) axes.resize(axes.size() - 2);
  if (shape.size() == 1) axes.pop_back();  // "(5,)"
  std::string text =
      str("{'descr': '", descr_of(type), "', 'fortran_order': False, 'shape': (", axes, "), }");
  text.append(63 - (kPreamble + text.size()) % 64, ' ');  // data begins at a multiple of 64
  text += '\n';
  std::string preamble(kMagic);
  preamble += '\x01';
  preamble += '\0';
  preamble += static_cast<char>(text.size() & 0xFF);
  preamble += static_cast<char>(text.size() >> 8);
  std::ofstream out(path, std::ios::binary);
  out << preamble << text;
  const std::optional<int64_t> elements = count(shape);
  KVIST_ASSERT(elements.has_value());
  out.write(static_cast<const char*>(data),
            static_cast<std::streamsize>(*elements * size_of(type)));
  out.close();
  if (!out) throw Error(ErrorKind::io, str(path, ": cannot be written: ", std::strerror(errno)));
}

}  // namespace kvist
