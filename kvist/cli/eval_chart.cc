// SPDX-License-Identifier: MIT
// Axes with few round numbers, lines, dots.
#include "kvist/cli/eval_chart.h"

#include <array>
#include <cmath>

#include "kvist/cli/svg.h"
#include "kvist/core/error.h"

namespace kvist {
namespace {

using namespace svg;

constexpr double kChartWidth = 400, kChartHeight = 280;
constexpr double kPlotLeft = 46, kPlotRight = 378, kPlotTop = 34, kPlotBottom = 238;

class Drawing {
 public:
  explicit Drawing(const Chart& chart) : chart_(chart) {}

  std::string text() const {
    std::string out = chart_open(kChartWidth, kChartHeight);
    out += label(8, 18, chart_.title, {.size = 13, .bold = true});
    out += ticks();
    for (const auto& [name, y] : chart_.levels) out += level(name, y);
    for (const ChartLine& one : chart_.lines) out += path(one);
    out += label(kPlotRight, kChartHeight - 8, chart_.x.name,
                 {.size = 11, .fill = kFaint, .anchor = "end"});
    return out + "</svg>\n";
  }

 private:
  static double place(const ChartAxis& axis, double value, double from, double to) {
    return from + (to - from) * (value - axis.least) / (axis.most - axis.least);
  }
  double x_of(double x) const { return place(chart_.x, x, kPlotLeft, kPlotRight); }
  double y_of(double y) const { return place(chart_.y, y, kPlotBottom, kPlotTop); }

  // 1, 2 or 5 times a power of ten, so that there are about five.
  static double step(const ChartAxis& axis) {
    if (axis.logarithm) return 1;
    const double rough = (axis.most - axis.least) / 5.5;
    const double power = std::pow(10, std::floor(std::log10(rough)));
    for (double factor : {1.0, 2.0, 5.0})
      if (factor * power >= rough) return factor * power;
    return 10 * power;
  }
  static std::string number(const ChartAxis& axis, double value) {
    if (axis.percent) return svg::percent(value);
    if (axis.logarithm) return fmt::format("{:g}", std::pow(10, value));
    return fmt::format("{:.3g}", std::abs(value) < 1e-12 ? 0.0 : value);
  }

  std::string ticks() const {
    std::string out;
    const double eps = 1e-9;
    for (double v = chart_.y.least; v <= chart_.y.most + eps; v += step(chart_.y)) {
      out += line(kPlotLeft, y_of(v), kPlotRight, y_of(v), "#e1e6eb", 1);
      out += label(kPlotLeft - 6, y_of(v) + 4, number(chart_.y, v),
                   {.size = 11, .fill = kFaint, .anchor = "end"});
    }
    for (double v = chart_.x.least; v <= chart_.x.most + eps; v += step(chart_.x)) {
      out += line(x_of(v), kPlotBottom, x_of(v), kPlotBottom + 4, kFaint, 1);
      out += label(x_of(v), kPlotBottom + 17, number(chart_.x, v),
                   {.size = 11, .fill = kFaint, .anchor = "middle"});
    }
    return out;
  }

  std::string level(const std::string& name, double y) const {
    const bool under = y_of(y) < kPlotTop + 14;
    return str("<path d=\"M", num(kPlotLeft), " ", num(y_of(y)), "H", num(kPlotRight),
               "\" stroke=\"", kFaint, "\" stroke-width=\"1\" stroke-dasharray=\"4 3\"/>\n") +
           label(kPlotRight, y_of(y) + (under ? 13 : -4), name,
                 {.size = 10, .fill = kFaint, .anchor = "end"});
  }

  std::string path(const ChartLine& one) const {
    if (one.points.empty()) return "";
    std::string d, dots;
    for (const ChartPoint& p : one.points) {
      d += str(d.empty() ? "M" : "L", num(x_of(p.x)), " ", num(y_of(p.y)));
      if (!chart_.dots) continue;
      dots += str("<circle cx=\"", num(x_of(p.x)), "\" cy=\"", num(y_of(p.y)), "\" r=\"4\" fill=\"",
                  one.colour, "\"><title>", escaped(p.hint), "</title></circle>\n");
    }
    return str("<path d=\"", d, "\" stroke=\"", one.colour,
               "\" stroke-width=\"1.6\" fill=\"none\"><title>", escaped(one.name),
               "</title></path>\n", dots);
  }

  const Chart& chart_;
};

}  // namespace

std::string chart_svg(const Chart& chart) { return Drawing(chart).text(); }

std::string chart_colour(size_t i) {
  static constexpr std::array<const char*, 12> kColours = {
      "#c8553d", "#1f5f8b", "#3a8f5c", "#b8860b", "#7b4fa3", "#16858f",
      "#d0488f", "#5b6b2f", "#8c4a2f", "#4b5fc4", "#8a8f98", "#1c2733"};
  return kColours[i % kColours.size()];
}

std::string chart_open(double width, double height) {
  return str("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", num(width), " ",
             num(height), "\" width=\"", num(width), "\" height=\"", num(height),
             "\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\">\n");
}

std::string legend(const std::vector<std::string>& names) {
  std::string out = "<p class=\"legend\">";
  for (size_t i = 0; i < names.size(); ++i) {
    out += str("<span><i style=\"background:", chart_colour(i), "\"></i>", escaped(names[i]),
               "</span>\n");
  }
  return out + "</p>\n";
}

std::string page_open(const std::string& title) {
  return str(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>",
      escaped(title),
      "</title>\n<style>"
      "body{margin:16px auto;padding:0 16px;max-width:1280px;background:#fff;color:#1c2733;"
      "font:15px/1.5 system-ui,'DejaVu Sans',sans-serif}"
      "h1{font-size:26px;margin:8px 0}h2{font-size:19px;margin:28px 0 8px}"
      "h3{font-size:15px;margin:20px 0 4px}"
      ".note{color:#6b7885;margin:6px 0;max-width:60em}"
      "figcaption{font-size:12px;font-weight:600;overflow-wrap:anywhere;max-width:200px}"
      "svg{max-width:100%;height:auto;display:block}figure{margin:0}"
      ".charts{display:grid;gap:16px;grid-template-columns:repeat(auto-fill,minmax(min(100%,400px),"
      "1fr))}"
      ".maps{display:grid;gap:12px;grid-template-columns:repeat(auto-fill,minmax(170px,1fr))}"
      ".legend{display:flex;flex-wrap:wrap;gap:4px 16px;margin:8px 0}"
      ".legend i{display:inline-block;width:11px;height:11px;border-radius:6px;margin-right:6px}"
      ".wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px;white-space:nowrap}"
      "td,th{padding:3px 9px;text-align:right;border-bottom:1px solid #e1e6eb}"
      "td:first-child,th:first-child{text-align:left;position:sticky;left:0;background:#fff;"
      "max-width:46vw;overflow-wrap:anywhere;white-space:normal;min-width:9em}"
      "dl{font-size:13px}dt{color:#6b7885}dd{margin:0 0 6px;overflow-wrap:anywhere}"
      "summary{cursor:pointer;color:#6b7885}"
      "</style></head><body>\n");
}

}  // namespace kvist
