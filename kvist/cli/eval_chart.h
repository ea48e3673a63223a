// SPDX-License-Identifier: MIT
// Line charts small enough for a phone, and the page they stand on.
#pragma once

#include <string>
#include <vector>

namespace kvist {

struct ChartPoint {
  double x = 0, y = 0;
  std::string hint;  // shown where a mouse rests on it
};
struct ChartLine {
  std::string name;
  std::string colour;
  std::vector<ChartPoint> points;  // x ascending
};
struct ChartAxis {
  std::string name;
  double least = 0, most = 1;
  bool percent = false;
  bool logarithm = false;  // values are powers of ten
};
struct Chart {
  std::string title;
  ChartAxis x, y;
  std::vector<ChartLine> lines;
  std::vector<std::pair<std::string, double>> levels;  // dashed, across: y and its name
  bool dots = true;
};

std::string chart_svg(const Chart& chart);
// Colours that people can tell apart, again from the first after the last.
std::string chart_colour(size_t i);

// "<svg ...>" of that size, which shrinks with the page.
std::string chart_open(double width, double height);
// Names in their colours.
std::string legend(const std::vector<std::string>& names);
// Head and style; the caller closes body and html.
std::string page_open(const std::string& title);

}  // namespace kvist
