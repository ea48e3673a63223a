// SPDX-License-Identifier: MIT
// The one exception type of kvist, how its messages are put together, and the assertion for our own
// mistakes.
#pragma once

#include <fmt/format.h>
#include <fmt/ostream.h>

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

namespace kvist {

// What went wrong, as a front end needs it: an exit code, an HTTP status.
enum class ErrorKind {
  invalid_argument,
  unsupported,
  not_found,
  io,
  corrupt,
  exhausted,
  interrupted
};

// "invalid_argument", "unsupported", ...
const char* name(ErrorKind kind) noexcept;

// Thrown at the edges (files, options, models, requests). The message names the thing, the place,
// what was found and what was expected.
class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string message) : kind_(kind), message_(std::move(message)) {}
  ErrorKind kind() const noexcept { return kind_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  ErrorKind kind_;
  std::string message_;
};

// Joins its arguments as fmt's "{}" prints each: str("head ", 3, ": ", 0.5) is "head 3: 0.5".
template <typename... Args>
std::string str(const Args&... args) {
  std::string out;
  (fmt::format_to(std::back_inserter(out), "{}", args), ...);
  return out;
}

// Text of a file or a user as it goes into a message: in single quotes, bytes outside printable
// ASCII escaped, cut at 64 bytes.
std::string quoted(std::string_view text);

[[noreturn]] void assertion_failed(const char* condition, const char* file, int line) noexcept;

// a * b, or Error(corrupt) naming `what` where it does not fit in 63 bits. For sizes read from
// files.
uint64_t checked_mul(uint64_t a, uint64_t b, const char* what);

}  // namespace kvist

// For our own mistakes only: nothing a file, flag, model or client contains may reach it.
#define KVIST_ASSERT(condition) \
  ((condition) ? (void)0 : ::kvist::assertion_failed(#condition, __FILE__, __LINE__))
