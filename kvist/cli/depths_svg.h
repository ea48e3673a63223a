// SPDX-License-Identifier: MIT
// The picture of one query's reading: how many bits of each key channel and of each token's value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvist/cli/plot.h"

namespace kvist {

struct Depths {
  struct Layer {                     // both empty where the layer stays uncompressed
    std::vector<uint8_t> keys = {};  // [kv_heads][head_dim]
    std::vector<uint8_t> values =
        {};  // [kv_heads][n_tokens]; kExactDepth where a token is kept exact
  };
  int width = 8;  // W, the deepest
  int n_tokens = 0, kv_heads = 0, head_dim = 0;
  std::vector<Layer> layers = {};
  std::vector<std::string> pieces = {};  // [n_tokens] text of each token; may be empty as a whole

  // Mean depth of a head's key channels, and of its values that are not exact.
  double mean_keys(int layer, int head) const;
  double mean_values(int layer, int head) const;
  // [n_tokens] mean depth of a token's values over all heads of coded layers; exact ones count as
  // W.
  std::vector<double> by_position() const;
};

// A self-contained SVG. Above, a row is a layer and a cell one channel of one head; below, a row is
// one head of a layer and a cell a token, or from 961 tokens up one of 480 equal parts of the
// prompt, by its mean. Where layers and heads together are more than 160, a row is a layer's mean.
std::string depths_svg(const Depths& depths, const PictureText& text);

// The picture, and under it the text with each token shaded by its mean depth.
std::string depths_html(const Depths& depths, const PictureText& text);

}  // namespace kvist
