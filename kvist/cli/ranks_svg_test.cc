// SPDX-License-Identifier: MIT
// The picture says which rank every token has: its strokes are decoded again and compared.
#include "kvist/cli/ranks_svg.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <regex>

#include "kvist/core/rng.h"

namespace kvist {
namespace {

constexpr const char* kColours[] = {"#f2f4f7", "#d9e2eb", "#c0cfde", "#a3b9cf", "#84a0bf",
                                    "#6387ad", "#436d98", "#28527e", "#0f2f52", "#e0a08f"};

Ranks sample(int n_layers, int n_tokens) {
  Ranks ranks{.n_tokens = n_tokens, .most = 384, .layers = {}, .anchors = {}};
  Rng rng(4);
  for (int i = 0; i < n_layers; ++i) {
    std::vector<int>& layer = ranks.layers.emplace_back();
    std::vector<int>& anchors = ranks.anchors.emplace_back();
    for (int t = 0; t < n_tokens; ++t) {
      const bool exact = t % 16 == 0 || t >= n_tokens - 64;
      if (t % 16 == 0) anchors.push_back(t);
      layer.push_back(exact ? Ranks::kExact : static_cast<int>(rng.below(385)));
    }
  }
  return ranks;
}

// By row, then column, the shade.
std::map<int, std::map<int, int>> cells(const std::string& svg) {
  const size_t begin = svg.find("<g id=\"ranks\"");
  const std::string body = svg.substr(begin, svg.find("</g>", begin) - begin);
  std::map<double, std::map<int, int>> by_y;
  for (int shade = 0; shade < 10; ++shade) {
    const std::string stroke = std::string("stroke=\"") + kColours[shade] + "\" d=\"";
    const size_t at = body.find(stroke);
    if (at == std::string::npos) continue;
    const size_t from = at + stroke.size();
    const std::string d = body.substr(from, body.find('"', from) - from);
    const std::regex step("M([0-9]+) ([0-9.]+)h([0-9]+)");
    for (auto it = std::sregex_iterator(d.begin(), d.end(), step); it != std::sregex_iterator();
         ++it) {
      const int first = std::atoi((*it)[1].str().c_str()), n = std::atoi((*it)[3].str().c_str());
      for (int i = first; i < first + n; ++i) {
        auto& row = by_y[std::atof((*it)[2].str().c_str())];
        EXPECT_FALSE(row.contains(i)) << "two shades in one cell";
        row[i] = shade;
      }
    }
  }
  std::map<int, std::map<int, int>> out;
  for (const auto& [y, row] : by_y) out[static_cast<int>(out.size())] = row;
  return out;
}

TEST(RanksSvg, CellsAreTheRanks) {
  const Ranks ranks = sample(3, 300);
  const auto found = cells(ranks_svg(ranks, {"title", "subtitle"}));
  ASSERT_EQ(found.size(), 3u);
  for (int layer = 0; layer < 3; ++layer)
    for (int t = 0; t < 300; ++t) {
      const int rank = ranks.layers[static_cast<size_t>(layer)][static_cast<size_t>(t)];
      const int want =
          rank == Ranks::kExact
              ? 9
              : static_cast<int>(std::lround(8 * std::log2(1 + rank) / std::log2(385)));
      ASSERT_EQ(found.at(layer).at(t), want) << layer << " " << t;
    }
}

TEST(RanksSvg, LongPromptsAreDrawnInParts) {
  const auto found = cells(ranks_svg(sample(2, 5000), {"title", "subtitle"}));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found.at(0).size(), 480u);
}

TEST(RanksSvg, EveryAnchorHasATick) {
  const std::string svg = ranks_svg(sample(2, 300), {"title", "subtitle"});
  const size_t begin = svg.find("id=\"anchors\"");
  const std::string path = svg.substr(begin, svg.find("/>", begin) - begin);
  EXPECT_EQ(std::count(path.begin(), path.end(), 'M'), 19);
}

TEST(Ranks, MeansLeaveOutExactTokens) {
  Ranks ranks{.n_tokens = 4,
              .most = 10,
              .layers = {{Ranks::kExact, 2, 4, Ranks::kExact}},
              .anchors = {{0}}};
  EXPECT_EQ(ranks.mean(0), 3);
  EXPECT_EQ(ranks.by_position(), (std::vector<double>{10, 2, 4, 10}));
}

}  // namespace
}  // namespace kvist
