// SPDX-License-Identifier: MIT
// Reading with the checks that make a clear message of whatever a path can be.
#include "kvist/cli/document.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

#include "kvist/cli/terminal.h"
#include "kvist/cli/utf8.h"
#include "kvist/core/error.h"

namespace kvist {
namespace {

constexpr size_t kMostBytes = size_t{256} << 20;

std::string read_all(std::FILE* file, const std::string& name) {
  std::string text;
  char block[1 << 16];
  while (const size_t n = std::fread(block, 1, sizeof block, file)) {
    text.append(block, n);
    if (text.size() > kMostBytes) {
      throw Error(ErrorKind::invalid_argument, str(name, ": larger than ", human_bytes(kMostBytes),
                                                   ", the most a document may have"));
    }
  }
  if (std::ferror(file))
    throw Error(ErrorKind::io, str(name, ": cannot read: ", std::strerror(errno)));
  return text;
}

std::string read_file(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    throw Error(ErrorKind::not_found, str(path, ": no such document"));
  }
  if (std::filesystem::is_directory(status)) {
    throw Error(ErrorKind::invalid_argument,
                str(path, ": is a directory; a document is one text file"));
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  if (!file) throw Error(ErrorKind::io, str(path, ": cannot open: ", std::strerror(errno)));
  return read_all(file.get(), path);
}

}  // namespace

void require_utf8(const std::string& text, const std::string& what) {
  if (const auto at = first_invalid_utf8(text)) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{}: byte 0x{:02x} at offset {} is not UTF-8 text", what,
                            static_cast<unsigned char>(text[*at]), *at));
  }
}

std::string read_document(const std::string& path) {
  const std::string name = path == "-" ? "standard input" : path;
  std::string text = path == "-" ? read_all(stdin, name) : read_file(path);
  require_utf8(text, name);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  if (text.empty()) throw Error(ErrorKind::invalid_argument, str(name, ": the document is empty"));
  return text;
}

}  // namespace kvist
