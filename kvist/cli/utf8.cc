// SPDX-License-Identifier: MIT
// A plain decoder of UTF-8, one character at a time.
#include "kvist/cli/utf8.h"

#include <cstdint>
#include <utility>

namespace kvist {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Length of the character at the start of `text`; 0 where it is malformed, -1 where it is
// well-formed but cut off.
int character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const int length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) == text.size()) return -1;
    unsigned char least = 0x80, most = 0xBF;
    if (i == 1) {
      if (first == 0xE0) least = 0xA0;
      if (first == 0xED) most = 0x9F;
      if (first == 0xF0) least = 0x90;
      if (first == 0xF4) most = 0x8F;
    }
    if (byte(static_cast<size_t>(i)) < least || byte(static_cast<size_t>(i)) > most) return 0;
  }
  return length;
}

}  // namespace

std::optional<size_t> first_invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const int length = character(text.substr(at));
    if (length <= 0) return at;
    at += static_cast<size_t>(length);
  }
  return std::nullopt;
}

std::string Utf8Stream::push(std::string_view bytes) {
  held_ += bytes;
  std::string out;
  size_t at = 0;
  while (at < held_.size()) {
    const int length = character(std::string_view(held_).substr(at));
    if (length < 0) break;
    if (length == 0) {
      out += kReplacement;
      ++at;
    } else {
      out.append(held_, at, static_cast<size_t>(length));
      at += static_cast<size_t>(length);
    }
  }
  held_.erase(0, at);
  return out;
}

std::string Utf8Stream::finish() {
  const bool unfinished = !held_.empty();
  held_.clear();
  return unfinished ? std::string(kReplacement) : std::string();
}

}  // namespace kvist
