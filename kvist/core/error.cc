// SPDX-License-Identifier: MIT
// Names of error kinds, and how an assertion ends the program.
#include "kvist/core/error.h"

#include <cstdio>
#include <cstdlib>

namespace kvist {

const char* name(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::invalid_argument:
      return "invalid_argument";
    case ErrorKind::unsupported:
      return "unsupported";
    case ErrorKind::not_found:
      return "not_found";
    case ErrorKind::io:
      return "io";
    case ErrorKind::corrupt:
      return "corrupt";
    case ErrorKind::exhausted:
      return "exhausted";
    case ErrorKind::interrupted:
      return "interrupted";
  }
  return "unknown";
}

std::string quoted(std::string_view text) {
  constexpr size_t kLongest = 64;
  std::string out = "'";
  for (char c : text.substr(0, kLongest)) {
    if (c >= ' ' && c <= '~') {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return out + (text.size() > kLongest ? "...'" : "'");
}

void assertion_failed(const char* condition, const char* file, int line) noexcept {
  std::fprintf(stderr, "kvist: this is a bug in kvist: %s is false at %s:%d\n", condition, file,
               line);
  std::abort();
}

uint64_t checked_mul(uint64_t a, uint64_t b, const char* what) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product) || product >> 63) {
    throw Error(ErrorKind::corrupt, str(what, ": ", a, " * ", b, " is too large"));
  }
  return product;
}

}  // namespace kvist
