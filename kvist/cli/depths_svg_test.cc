// SPDX-License-Identifier: MIT
// The picture says how deep everything was read: its strokes are decoded again and compared.
#include "kvist/cli/depths_svg.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <regex>

#include "kvist/cli/query_row.h"
#include "kvist/core/rng.h"

namespace kvist {
namespace {

Depths sample(int n_layers, int kv_heads, int head_dim, int n_tokens, uint64_t seed) {
  Depths d{.n_tokens = n_tokens, .kv_heads = kv_heads, .head_dim = head_dim};
  Rng rng(seed);
  for (int i = 0; i < n_layers; ++i) {
    Depths::Layer& layer = d.layers.emplace_back();
    for (int c = 0; c < kv_heads * head_dim; ++c)
      layer.keys.push_back(static_cast<uint8_t>(rng.below(9)));
    for (int t = 0; t < kv_heads * n_tokens; ++t)
      layer.values.push_back(static_cast<uint8_t>(rng.below(9)));
  }
  for (int t = 0; t < n_tokens; ++t) d.pieces.push_back(t % 2 ? " <word>" : " a&b");
  return d;
}

constexpr const char* kColours[] = {"#f2f4f7", "#d9e2eb", "#c0cfde", "#a3b9cf", "#84a0bf",
                                    "#6387ad", "#436d98", "#28527e", "#0f2f52", "#e0a08f"};

// The cells of one of the two maps, 0 keys, 1 values: by height, then column, its shade.
std::map<double, std::map<int, int>> cells(const std::string& svg, int map) {
  size_t begin = 0;
  for (int i = 0; i <= map; ++i) begin = svg.find("<g transform", begin + 1);
  const std::string body = svg.substr(begin, svg.find("</g>", begin) - begin);
  std::map<double, std::map<int, int>> out;
  for (int shade = 0; shade < 10; ++shade) {
    const std::string stroke = std::string("stroke=\"") + kColours[shade] + "\" d=\"";
    const size_t at = body.find(stroke);
    if (at == std::string::npos) continue;
    const size_t from = at + stroke.size();
    const std::string d = body.substr(from, body.find('"', from) - from);
    const std::regex step("([Mm])(-?[0-9.]+) ([0-9.]+)h([0-9]+)");
    double y = 0;
    int pen = 0;
    for (auto it = std::sregex_iterator(d.begin(), d.end(), step); it != std::sregex_iterator();
         ++it) {
      const bool absolute = (*it)[1] == "M";
      if (absolute) y = std::atof((*it)[3].str().c_str());
      pen = (absolute ? 0 : pen) + std::atoi((*it)[2].str().c_str());
      const int width = std::atoi((*it)[4].str().c_str());
      for (int i = 0; i < width; ++i) {
        EXPECT_FALSE(out[y].contains(pen + i)) << "two shades in one cell";
        out[y][pen + i] = shade;
      }
      pen += width;
    }
  }
  return out;
}

TEST(DepthsSvg, DrawsEveryDepth) {
  Depths d = sample(3, 2, 16, 50, 11);
  d.layers[1] = {};                     // uncompressed
  d.layers[2].values[3] = kExactDepth;  // of head 0
  const std::string svg = depths_svg(d, {"title", "subtitle"});
  const auto keys = cells(svg, 0);
  ASSERT_EQ(keys.size(), 3u);
  size_t i = 0;
  for (const auto& [y, row] : keys) {
    ASSERT_EQ(row.size(), 32u);
    size_t c = 0;
    for (const auto& [column, shade] : row)  // the heads stand apart, in order
      EXPECT_EQ(shade, i == 1 ? 9 : int{d.layers[i].keys[c++]}) << i << " " << column;
    ++i;
  }
  const auto values = cells(svg, 1);
  ASSERT_EQ(values.size(), 6u);
  i = 0;
  for (const auto& [y, row] : values) {
    ASSERT_EQ(row.size(), 50u);
    for (const auto& [token, shade] : row) {
      const size_t at = i % 2 * 50 + static_cast<size_t>(token);
      const int want = i / 2 == 1 ? 9 : std::min<int>(9, d.layers[i / 2].values[at]);
      EXPECT_EQ(shade, want) << i << " " << token;
    }
    ++i;
  }
}

TEST(DepthsSvg, ShadesSpanWhatIsStored) {
  Depths d = sample(1, 1, 4, 4, 1);
  d.width = 4;
  d.layers[0].keys = {0, 1, 2, 4};
  const auto rows = cells(depths_svg(d, {"", ""}), 0);
  const std::map<int, int> want{{0, 0}, {1, 2}, {2, 4}, {3, 8}};
  EXPECT_EQ(rows.begin()->second, want);
}

TEST(DepthsSvg, LongPromptsShowMeansAndStaySmall) {
  Depths d = sample(30, 3, 64, 4800, 5);
  std::fill_n(d.layers[7].values.begin(), 4800, uint8_t{3});
  d.layers[7].values[0] = 0, d.layers[7].values[1] = 0;  // 24 / 10 and not 3
  const std::string svg = depths_svg(d, {"noise is the worst case", ""});
  EXPECT_LT(svg.size(), 600'000u);
  const auto values = cells(svg, 1);
  const auto row = std::next(values.begin(), 7 * 3);
  ASSERT_EQ(row->second.size(), 480u);
  EXPECT_EQ(row->second.at(0), 2);
  EXPECT_EQ(row->second.at(1), 3);
  // Many heads share a row.
  EXPECT_EQ(cells(depths_svg(sample(36, 8, 8, 10, 2), {"", ""}), 1).size(), 36u);
}

TEST(DepthsSvg, EscapesTextAndDrawsEmptyCases) {
  const Depths d = sample(2, 1, 8, 40, 9);
  const std::string html = depths_html(d, {"a < b & \"c\"", "x"});
  EXPECT_NE(html.find("a &lt; b &amp; &quot;c&quot;"), std::string::npos);
  EXPECT_NE(html.find("&lt;word&gt;"), std::string::npos);
  EXPECT_EQ(html.find("<word>"), std::string::npos);
  const Depths dense{.n_tokens = 1, .kv_heads = 1, .head_dim = 8, .layers = {{}}};
  const std::string svg = depths_svg(dense, {"", ""});
  EXPECT_NE(svg.find("</svg>"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(Depths, MeansLeaveExactTokensOut) {
  const Depths d{.n_tokens = 3,
                 .kv_heads = 2,
                 .head_dim = 2,
                 .layers = {{{1, 3, 0, 0}, {16, 2, 4, 16, 8, 0}}, {}}};
  EXPECT_DOUBLE_EQ(d.mean_keys(0, 0), 2);
  EXPECT_DOUBLE_EQ(d.mean_values(0, 0), 3);
  EXPECT_DOUBLE_EQ(d.mean_values(1, 0), 0);
  EXPECT_EQ(d.by_position(), (std::vector<double>{8, 5, 2}));
}

}  // namespace
}  // namespace kvist
