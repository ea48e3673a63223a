// SPDX-License-Identifier: MIT
// Code points one after another; bytes that are no UTF-8 pass through as they are.
#include "kvist/eval/unicode.h"

#include <cstdint>

namespace kvist {
namespace {

struct Point {
  uint32_t value = 0;
  size_t n_bytes = 1;
};

bool continues(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

Point point_at(std::string_view text, size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  const size_t n = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC2 ? 2 : 1;
  if (n == 1 || at + n > text.size()) return {first < 0x80 ? first : UINT32_MAX, 1};
  uint32_t value = first & (0xFFu >> (n + 1));
  for (size_t i = 1; i < n; ++i) {
    if (!continues(text[at + i])) return {UINT32_MAX, 1};
    value = value << 6 | (static_cast<unsigned char>(text[at + i]) & 0x3Fu);
  }
  return {value, n};
}

bool is_blank(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

uint32_t lower(uint32_t c) {
  if ((c >= 'A' && c <= 'Z') || (c >= 0xC0 && c <= 0xDE && c != 0xD7)) return c + 32;
  if ((c >= 0x391 && c <= 0x3AB && c != 0x3A2) || (c >= 0x410 && c <= 0x42F)) return c + 32;
  if (c >= 0x400 && c <= 0x40F) return c + 80;
  if (c == 0x178) return 0xFF;
  if (c == 0x130 || c == 0x138 || c == 0x149) return c;
  // Latin Extended-A: capitals are even, but odd between U+0139 and U+0148 and from U+0179 on.
  const bool odd = (c >= 0x139 && c <= 0x148) || c >= 0x179;
  if (c >= 0x100 && c <= 0x17E && c % 2 == (odd ? 1u : 0u)) return c + 1;
  return c;
}

// Only code points of one and two bytes change, and none changes its length.
void append(std::string* out, uint32_t c) {
  if (c < 0x80) {
    *out += static_cast<char>(c);
  } else {
    *out += static_cast<char>(0xC0 | c >> 6);
    *out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

}  // namespace

std::string lower_case(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Point p = point_at(text, at);
    const uint32_t c = lower(p.value);
    if (c == p.value) {
      out += text.substr(at, p.n_bytes);
    } else {
      append(&out, c);
    }
    at += p.n_bytes;
  }
  return out;
}

std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words;
  size_t begin = 0;
  for (size_t at = 0; at <= text.size();) {
    const Point p = at < text.size() ? point_at(text, at) : Point{' ', 1};
    if (is_blank(p.value)) {
      if (at > begin) words.push_back(text.substr(begin, at - begin));
      begin = at + p.n_bytes;
    }
    at += p.n_bytes;
  }
  return words;
}

std::string_view stripped(std::string_view text) {
  const auto words = split_words(text);
  if (words.empty()) return {};
  return {words.front().data(),
          static_cast<size_t>(words.back().data() + words.back().size() - words.front().data())};
}

}  // namespace kvist
