// SPDX-License-Identifier: MIT
// A request for each chunk.
#include "kvist/cli/repeat.h"

#include <algorithm>

namespace kvist {
namespace {

constexpr size_t kLead = 8;  // tokens of the chunk before, which say where to begin

}  // namespace

std::vector<Repeat> repeat_requests(const Tokenizer& tokenizer, const Prompt& prompt,
                                    std::span<const int32_t> ids, int chunk) {
  const std::vector<int32_t> whole =
      tokenizer.encode("\n\nRepeat the previous context exactly.", false);
  const std::vector<int32_t> part =
      tokenizer.encode("\n\nRepeat the part of the previous context exactly, starting with", false);
  const std::vector<int32_t> turn = prompt.question("", "");
  const std::vector<int32_t> head = prompt.document("");  // the template's, and no word of the user
  const auto first = static_cast<size_t>(
      std::mismatch(head.begin(), head.end(), ids.begin(), ids.end()).first - head.begin());
  std::vector<Repeat> repeats;
  for (size_t begin = first; begin < ids.size(); begin += static_cast<size_t>(chunk)) {
    const size_t end = std::min(begin + static_cast<size_t>(chunk), ids.size());
    Repeat& r = repeats.emplace_back();
    r.begin = static_cast<int>(begin);
    r.end = static_cast<int>(end);
    r.input = repeats.size() == 1 ? whole : part;
    if (repeats.size() > 1) {
      const size_t lead = std::min(kLead, begin);
      r.input.insert(r.input.end(), ids.begin() + static_cast<std::ptrdiff_t>(begin - lead),
                     ids.begin() + static_cast<std::ptrdiff_t>(begin));
    }
    r.input.insert(r.input.end(), turn.begin(), turn.end());
    r.input.insert(r.input.end(), ids.begin() + r.begin, ids.begin() + r.end);
  }
  return repeats;
}

}  // namespace kvist
