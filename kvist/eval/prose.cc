// SPDX-License-Identifier: MIT
// Files, blanks and full stops.
#include "kvist/eval/prose.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>

#include "kvist/core/error.h"
#include "kvist/eval/unicode.h"

namespace kvist {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 30> kAbbreviations = {
    "Mr",  "Mrs",  "Ms",  "Dr",  "St",  "Gen", "Col", "Rev", "Hon", "No",
    "Vol", "Sec",  "Art", "Jan", "Feb", "Mar", "Apr", "Jun", "Jul", "Aug",
    "Sep", "Sept", "Oct", "Nov", "Dec", "vs",  "etc", "e.g", "i.e", "U.S"};
constexpr std::string_view kOpening[] = {"\"", "'", "(", "[", "\xE2\x80\x9C", "\xE2\x80\x98"};
constexpr std::string_view kClosing[] = {"\"", "'", ")", "]", "\xE2\x80\x9D", "\xE2\x80\x99"};

bool begins_sentence(std::string_view rest) {
  if (rest.empty()) return false;
  const char c = rest.front();
  if ((c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) return true;
  return std::any_of(std::begin(kOpening), std::end(kOpening),
                     [&](std::string_view mark) { return rest.starts_with(mark); });
}

size_t closing_length(std::string_view rest) {
  for (std::string_view mark : kClosing)
    if (rest.starts_with(mark)) return mark.size();
  return 0;
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// The word that ends before the dot at `dot` keeps a sentence going.
bool is_abbreviation(std::string_view text, size_t dot) {
  size_t begin = dot;
  while (begin > 0 && (is_letter(text[begin - 1]) || text[begin - 1] == '.')) --begin;
  const std::string_view word = text.substr(begin, dot - begin);
  if (word.size() == 1) return true;
  return std::find(kAbbreviations.begin(), kAbbreviations.end(), word) != kAbbreviations.end();
}

std::string one_spaced(std::string_view text) {
  std::string out;
  for (std::string_view word : split_words(text)) {
    if (!out.empty()) out += ' ';
    out += word;
  }
  return out;
}

}  // namespace

std::vector<ProseDocument> prose_documents(const std::string& data) {
  for (const char* folder : {"sotu/test", "prose"}) {
    const fs::path path = fs::path(data) / folder;
    if (!fs::is_directory(path)) continue;
    std::vector<ProseDocument> documents;
    for (const auto& entry : fs::directory_iterator(path)) {
      if (!entry.is_regular_file() || entry.path().extension() != ".txt") continue;
      std::ifstream in(entry.path(), std::ios::binary);
      std::ostringstream text;
      text << in.rdbuf();
      if (!in) throw Error(ErrorKind::io, str(entry.path().string(), ": cannot be read"));
      documents.push_back({entry.path().stem().string(), one_spaced(text.str())});
    }
    std::sort(documents.begin(), documents.end(),
              [](const ProseDocument& a, const ProseDocument& b) { return a.name < b.name; });
    if (!documents.empty()) return documents;
  }
  throw Error(ErrorKind::not_found,
              str(data, ": no prose; run tools/texts.py for data/sotu, or put .txt files into ",
                  data, "/prose (--data DIR)"));
}

std::vector<std::string_view> sentences(std::string_view text) {
  std::vector<std::string_view> out;
  size_t begin = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '.' && text[at] != '!' && text[at] != '?') continue;
    size_t end = at + 1;
    while (const size_t n = closing_length(text.substr(end))) end += n;
    if (end >= text.size() || text[end] != ' ' || !begins_sentence(text.substr(end + 1))) continue;
    if (text[at] == '.' && is_abbreviation(text, at)) continue;
    out.push_back(text.substr(begin, end - begin));
    begin = end + 1;
    at = end;
  }
  if (begin < text.size()) out.push_back(text.substr(begin));
  return out;
}

std::vector<std::string> haystack(const std::vector<ProseDocument>& documents, Rng& rng,
                                  size_t n_bytes) {
  std::vector<size_t> order(documents.size());
  std::iota(order.begin(), order.end(), size_t{0});
  shuffle(std::span(order), rng);
  std::vector<std::string> out;
  for (size_t i = 0, size = 0; size < n_bytes; ++i) {
    for (std::string_view sentence : sentences(documents[order[i % order.size()]].text)) {
      out.emplace_back(sentence);
      size += sentence.size() + 1;
    }
  }
  return out;
}

std::string joined(const std::vector<std::string>& parts, std::string_view between) {
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out += between;
    out += parts[i];
  }
  return out;
}

}  // namespace kvist
