// SPDX-License-Identifier: MIT
// The few marks that our pictures are drawn with, as text of an SVG file.
#pragma once

#include <string>
#include <string_view>

namespace kvist::svg {

inline constexpr const char* kInk = "#1c2733";
inline constexpr const char* kFaint = "#6b7885";
inline constexpr const char* kAccent = "#c8553d";

// For text and attributes of SVG and HTML; control characters are left out.
std::string escaped(std::string_view text);
// At most two decimals, without zeros at the end.
std::string num(double x);
std::string percent(double share);  // "50 %"

struct Style {
  double size = 12;
  const char* fill = kInk;
  const char* anchor = "start";
  bool bold = false;
};
std::string label(double x, double y, std::string_view text, const Style& style);
std::string rect(double x, double y, double width, double height, std::string_view fill);
std::string line(double x1, double y1, double x2, double y2, std::string_view stroke, double width);
std::string dot(double x, double y, double radius, std::string_view fill);

}  // namespace kvist::svg
