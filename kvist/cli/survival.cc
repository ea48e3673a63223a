// SPDX-License-Identifier: MIT
// Counts over layer-heads, and tokens joined to words.
#include "kvist/cli/survival.h"

#include <algorithm>
#include <cctype>

namespace kvist {
namespace {

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

std::string trimmed(const std::string& text) {
  const auto inside = [](char c) {
    return static_cast<unsigned char>(c) >= 0x80 || std::isalnum(static_cast<unsigned char>(c));
  };
  const auto begin = std::find_if(text.begin(), text.end(), inside);
  const auto end = std::find_if(text.rbegin(), std::make_reverse_iterator(begin), inside).base();
  return {begin, end};
}

}  // namespace

std::vector<double> Survival::share_by_position() const {
  std::vector<double> share(static_cast<size_t>(n_tokens), 0.0);
  size_t heads = 0;
  for (const auto& layer : kept) {
    for (const auto& head : layer) {
      ++heads;
      for (int32_t pos : head) share[static_cast<size_t>(pos)] += 1;
    }
  }
  for (double& s : share) s /= static_cast<double>(std::max<size_t>(1, heads));
  return share;
}

double Survival::share_of_layer(int layer) const {
  size_t n = 0;
  const auto& heads = kept[static_cast<size_t>(layer)];
  for (const auto& head : heads) n += head.size();
  const double all = static_cast<double>(n_tokens) * static_cast<double>(heads.size());
  return all > 0 ? static_cast<double>(n) / all : 0;
}

double Survival::share() const {
  double sum = 0;
  for (int layer = 0; layer < n_layers(); ++layer) sum += share_of_layer(layer);
  return kept.empty() ? 0 : sum / n_layers();
}

std::vector<Word> words_of(const std::vector<std::string>& pieces,
                           const std::vector<double>& share) {
  std::vector<Word> words;
  bool ended = true;
  for (int i = 0; i < static_cast<int>(std::min(pieces.size(), share.size())); ++i) {
    const std::string& piece = pieces[static_cast<size_t>(i)];
    if (ended || piece.empty() || is_space(piece.front())) words.push_back({i, i, "", 0});
    Word& word = words.back();
    word.end = i + 1;
    word.text += piece;
    word.share += share[static_cast<size_t>(i)];
    ended = piece.empty() || is_space(piece.back());
  }
  for (Word& word : words) {
    word.text = trimmed(word.text);
    word.share /= word.end - word.begin;
  }
  return words;
}

}  // namespace kvist
