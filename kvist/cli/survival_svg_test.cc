// SPDX-License-Identifier: MIT
// The picture says what was kept: its strokes are decoded again and compared.
#include "kvist/cli/survival_svg.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <regex>
#include <set>
#include <string>

#include "kvist/core/rng.h"

namespace kvist {
namespace {

// Every third token of layer l, head h, shifted by l + h, and all of head 0 of layer 1.
Survival sample(int n_tokens) {
  Survival s;
  s.n_tokens = n_tokens;
  s.kept.resize(3);
  for (int layer = 0; layer < 3; ++layer) {
    for (int head = 0; head < 2; ++head) {
      auto& kept = s.kept[static_cast<size_t>(layer)].emplace_back();
      for (int i = 0; i < n_tokens; ++i) {
        if ((layer == 1 && head == 0) || (i + layer + head) % 3 == 0) kept.push_back(i);
      }
    }
  }
  for (int i = 0; i < n_tokens; ++i) s.pieces.push_back(i % 2 ? " <word>" : " a&b");
  return s;
}

// Columns that the path of the darkest shade covers, per row in order of appearance ("M" starts a
// row).
std::vector<std::set<int>> dark_rows(const std::string& svg) {
  std::smatch found;
  std::regex_search(svg, found, std::regex("<path stroke=\"#0f2f52\" d=\"([^\"]*)\""));
  const std::string d = found[1];
  std::vector<std::set<int>> rows;
  const std::regex step("([Mm])(-?[0-9.]+) ([0-9.]+)h([0-9]+)");
  int pen = 0;
  for (auto it = std::sregex_iterator(d.begin(), d.end(), step); it != std::sregex_iterator();
       ++it) {
    const bool absolute = (*it)[1] == "M";
    if (absolute) rows.emplace_back();
    pen = (absolute ? 0 : pen) + std::atoi((*it)[2].str().c_str());
    const int width = std::atoi((*it)[4].str().c_str());
    for (int i = 0; i < width; ++i) rows.back().insert(pen + i);
    pen += width;
  }
  return rows;
}

TEST(SurvivalSvg, DrawsEveryKeptPositionDarkAndNoOther) {
  const Survival s = sample(100);
  const auto rows = dark_rows(survival_svg(s, {"title", "subtitle"}));
  ASSERT_EQ(rows.size(), 6u);
  for (size_t layer = 0; layer < 3; ++layer) {
    for (size_t head = 0; head < 2; ++head) {
      const auto& kept = s.kept[layer][head];
      EXPECT_EQ(rows[layer * 2 + head], std::set<int>(kept.begin(), kept.end()))
          << layer << " " << head;
    }
  }
}

TEST(SurvivalSvg, BinsLongPromptsAndStaysSmall) {
  Survival s;
  s.n_tokens = 8192;
  s.kept.resize(30);
  Rng rng(7);
  for (auto& layer : s.kept) {
    for (int head = 0; head < 3; ++head) {
      auto& kept = layer.emplace_back();
      for (int i = 0; i < s.n_tokens; ++i) {
        if (rng.next() % 2 == 0) kept.push_back(i);
      }
    }
  }
  EXPECT_LT(survival_svg(s, {"noise is the worst case", ""}).size(), 600'000u);
  const auto rows = dark_rows(survival_svg(sample(8192), {"", ""}));
  ASSERT_EQ(rows.size(), 1u);  // only the head that keeps all has whole cells
  EXPECT_EQ(rows[0].size(), 640u);
}

TEST(SurvivalSvg, EscapesTextAndDrawsEmptyCases) {
  Survival s = sample(40);
  const std::string html = survival_html(s, {"a < b & \"c\"", "x"});
  EXPECT_NE(html.find("a &lt; b &amp; &quot;c&quot;"), std::string::npos);
  EXPECT_NE(html.find("&lt;word&gt;"), std::string::npos);
  EXPECT_EQ(html.find("<word>"), std::string::npos);
  s.n_tokens = 0;
  s.kept.assign(1, {{}});
  s.pieces.clear();
  EXPECT_NE(survival_svg(s, {"", ""}).find("</svg>"), std::string::npos);
  EXPECT_EQ(survival_svg(s, {"", ""}).find("nan"), std::string::npos);
}

TEST(Survival, SharesCountLayerHeads) {
  Survival s;
  s.n_tokens = 4;
  s.kept = {{{0, 1}, {0}}, {{0, 3}, {3}}};
  EXPECT_EQ(s.share_by_position(), (std::vector<double>{0.75, 0.25, 0, 0.5}));
  EXPECT_DOUBLE_EQ(s.share_of_layer(0), 3.0 / 8);
  EXPECT_DOUBLE_EQ(s.share(), 3.0 / 8);
}

TEST(Survival, JoinsPiecesToWords) {
  Survival s;
  s.n_tokens = 6;
  s.pieces = {"The", " pass", "key", ",", "\n", "\"gold\""};
  s.kept = {{{1, 2}, {1}}};
  const std::vector<Word> words = words_of(s.pieces, s.share_by_position());
  ASSERT_EQ(words.size(), 4u);
  EXPECT_EQ(words[0].text, "The");
  EXPECT_EQ(words[1].text, "passkey");
  EXPECT_DOUBLE_EQ(words[1].share, 0.5);
  EXPECT_EQ(words[3].text, "gold");
}

}  // namespace
}  // namespace kvist
