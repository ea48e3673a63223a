// SPDX-License-Identifier: MIT
// What our pictures of a prompt have in common: the frame, the axis, words over a curve, the page
// around them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kvist/cli/svg.h"

namespace kvist {

struct PictureText {
  std::string title;     // "twinkv(ratio=0.5) keeps half of 2,048 tokens"
  std::string subtitle;  // model, bytes
};

using svg::escaped;
using svg::kAccent;
using svg::kFaint;
using svg::kInk;
using svg::label;
using svg::line;
using svg::num;
using svg::rect;

// Whether a picture at `path` is to be a page.
bool is_html(std::string_view path);
// Writes it and says so on stderr; throws io naming the path.
void write_picture(const std::string& path, const std::string& picture);

// Every picture is a plot with room for labels at its left and bars at its right.
constexpr double kLeft = 64, kPlotWidth = 960, kSideGap = 14, kSideWidth = 120, kRight = 64;
constexpr double kWidth = kLeft + kPlotWidth + kSideGap + kSideWidth + kRight;

// The opening tag, a white ground, title and subtitle; the caller closes "</svg>".
std::string svg_head(double height, const PictureText& text);
// Ticks and positions under a plot of n_tokens whose bottom is y.
std::string token_axis(int n_tokens, double y);

// A word over a curve that is at y where the word is, x its middle.
struct CurveLabel {
  double x = 0, y = 0;
  std::string text;
};
constexpr double kCurveLabelRoom = 36;  // over the top of a curve
// Those that find room in the two lines over a curve whose 100 % is at `top`; the first come first,
// and none comes more than twice.
std::string curve_labels(const std::vector<CurveLabel>& wanted, double top);

// A page of the picture, and under it the text in five shades of each token's share, 0 to 1.
std::string html_page(const std::string& svg, std::string_view title,
                      const std::vector<std::string>& pieces, const std::vector<double>& share);

}  // namespace kvist
