// SPDX-License-Identifier: MIT
// Matching blocks of code points.
#include "kvist/eval/similarity.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

namespace kvist {
namespace {

constexpr size_t kLong = 200;  // code points from which frequent ones are left out

using Text = std::u32string;

// A byte that is no part of UTF-8 becomes U+FFFD.
Text decoded(std::string_view text) {
  Text out;
  for (size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    const int more = lead < 0x80       ? 0
                     : lead >> 5 == 6  ? 1
                     : lead >> 4 == 14 ? 2
                     : lead >> 3 == 30 ? 3
                                       : -1;
    char32_t point = more == 0 ? lead : static_cast<char32_t>(lead & (0x3F >> std::max(more, 0)));
    bool whole = more >= 0 && at + static_cast<size_t>(more) < text.size();
    for (int i = 1; whole && i <= more; ++i) {
      const auto next = static_cast<unsigned char>(text[at + static_cast<size_t>(i)]);
      whole = next >> 6 == 2;
      point = point << 6 | (next & 0x3F);
    }
    out.push_back(whole ? point : 0xFFFD);
    at += whole ? static_cast<size_t>(more) + 1 : 1;
  }
  return out;
}

struct Block {
  size_t a = 0, b = 0, size = 0;
};

class Matcher {
 public:
  Matcher(const Text& a, const Text& b) : a_(a), b_(b) {
    for (size_t i = 0; i < b.size(); ++i) places_[b[i]].push_back(i);
    if (b.size() < kLong) return;
    const size_t most = b.size() / 100 + 1;
    std::erase_if(places_, [&](const auto& entry) { return entry.second.size() > most; });
  }

  // Code points in all blocks of a[a0, a1) and b[b0, b1).
  size_t matches(size_t a0, size_t a1, size_t b0, size_t b1) const {
    const Block block = longest(a0, a1, b0, b1);
    if (block.size == 0) return 0;
    return block.size + matches(a0, block.a, b0, block.b) +
           matches(block.a + block.size, a1, block.b + block.size, b1);
  }

 private:
  Block longest(size_t a0, size_t a1, size_t b0, size_t b1) const {
    Block best{a0, b0, 0};
    std::map<size_t, size_t> ending;  // length of the run that ends at a place of b
    for (size_t i = a0; i < a1; ++i) {
      std::map<size_t, size_t> next;
      const auto found = places_.find(a_[i]);
      if (found != places_.end()) {
        for (size_t j : found->second) {
          if (j < b0) continue;
          if (j >= b1) break;
          const auto before = j == 0 ? ending.end() : ending.find(j - 1);
          const size_t size = before == ending.end() ? 1 : before->second + 1;
          next[j] = size;
          if (size > best.size) best = {i + 1 - size, j + 1 - size, size};
        }
      }
      ending = std::move(next);
    }
    while (best.a > a0 && best.b > b0 && a_[best.a - 1] == b_[best.b - 1])
      --best.a, --best.b, ++best.size;
    while (best.a + best.size < a1 && best.b + best.size < b1 &&
           a_[best.a + best.size] == b_[best.b + best.size])
      ++best.size;
    return best;
  }

  const Text &a_, &b_;
  std::map<char32_t, std::vector<size_t>> places_;  // in b, ascending; without the frequent ones
};

}  // namespace

std::string code_line(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    const bool code = line.find('`') == std::string_view::npos &&
                      line.find('#') == std::string_view::npos &&
                      line.find("//") == std::string_view::npos;
    if (code) return std::string(line);
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return "";
}

double similarity(std::string_view text, std::string_view gold) {
  if (text == gold) return 1;
  if (text.empty() || gold.empty()) return 0;
  const Text a = decoded(text), b = decoded(gold);
  const size_t found = Matcher(a, b).matches(0, a.size(), 0, b.size());
  const double ratio = 2.0 * static_cast<double>(found) / static_cast<double>(a.size() + b.size());
  return std::nearbyint(100 * ratio) / 100;
}

}  // namespace kvist
