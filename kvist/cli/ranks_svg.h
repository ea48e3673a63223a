// SPDX-License-Identifier: MIT
// The picture of a ranked prefix: how many coefficients each token has in each layer, and where the
// anchors lie.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvist/cli/plot.h"

namespace kvist {

struct Ranks {
  static constexpr int kExact = -1;
  int n_tokens = 0;
  int most = 0;                           // rows of the basis
  std::vector<std::vector<int>> layers;   // [layers][n_tokens] ranks; kExact where nothing is coded
  std::vector<std::vector<int>> anchors;  // [layers] positions, ascending
  std::vector<std::string> pieces = {};   // [n_tokens] text of each token; may be empty as a whole

  // Of the coded tokens of a layer; 0 where there are none.
  double mean(int layer) const;
  // [n_tokens] mean rank over all layers; exact ones count as `most`.
  std::vector<double> by_position() const;
};

// A self-contained SVG. A row is a layer and a cell a token, or from 961 tokens up one of 480 equal
// parts of the prompt, by the mean rank of its coded tokens; shades are by the logarithm. Ticks
// over the rows mark the first layer's anchors.
std::string ranks_svg(const Ranks& ranks, const PictureText& text);

// The picture, and under it the text with each token shaded by its mean rank.
std::string ranks_html(const Ranks& ranks, const PictureText& text);

}  // namespace kvist
