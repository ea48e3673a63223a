// SPDX-License-Identifier: MIT
// A line for each method, the nearest to the uncompressed answers first.
#include "kvist/cli/comparison_svg.h"

#include <algorithm>
#include <cmath>

#include "kvist/cli/svg.h"
#include "kvist/cli/terminal.h"
#include "kvist/core/error.h"

namespace kvist {
namespace {

using namespace svg;

constexpr double kLeft = 24, kPlotWidth = 400, kRightText = 300, kTop = 112, kRow = 26;
constexpr double kLetter = 7;      // width of one at size 12
constexpr double kLeastKl = 1e-5;  // what is below lies at the edge

class Plot {
 public:
  explicit Plot(const Comparison& c) : c_(c) {
    for (size_t i = 1; i < c.rows.size(); ++i) {
      rows_.push_back(&c.rows[i]);
      const double power = std::log10(std::max(kLeastKl, c.rows[i].distance.kl));
      low_ = std::min(low_, std::floor(power));
      high_ = std::max(high_, std::ceil(power));
      names_ = std::max(names_, kLetter * display_width(c.rows[i].method));
    }
    std::stable_sort(rows_.begin(), rows_.end(), [](const ComparedRow* x, const ComparedRow* y) {
      return x->distance.kl < y->distance.kl;
    });
  }

  std::string draw() const {
    const double width = right() + kRightText, height = bottom() + 52;
    std::string out = str("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", num(width),
                          " ", num(height), "\" width=\"", num(width), "\" height=\"", num(height),
                          "\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\">\n");
    out += rect(0, 0, width, height, "#ffffff");
    out +=
        label(kLeft, 34, str(rows_.size(), " methods, one document"), {.size = 20, .bold = true});
    out += label(kLeft, 56,
                 str(human_count(static_cast<uint64_t>(c_.n_prompt)), " tokens, ", c_.model),
                 {.size = 13, .fill = kFaint});
    out += heads() + axis();
    for (size_t i = 0; i < rows_.size(); ++i) out += row(*rows_[i], i);
    return out + "</svg>\n";
  }

 private:
  double left() const { return kLeft + names_ + 16; }
  double right() const { return left() + kPlotWidth; }
  double bottom() const { return kTop + kRow * static_cast<double>(rows_.size()); }
  double x_of(double kl) const {
    return left() + kPlotWidth * (std::log10(std::max(kl, kLeastKl)) - low_) / (high_ - low_);
  }
  double column(int i) const { return right() + 80 + 95 * i; }

  std::string heads() const {
    const Style style{.fill = kFaint, .anchor = "end"};
    return label(column(0), kTop - 12, "smaller", style) +
           label(column(1), kTop - 12, "same top", style) +
           label(column(2), kTop - 12, "of a prefill", style);
  }

  std::string axis() const {
    std::string out;
    for (double power = low_; power <= high_; ++power) {
      const double x = x_of(std::pow(10, power));
      out += line(x, kTop, x, bottom(), "#e1e6eb", 1);
      out += label(x, bottom() + 18, fmt::format("{:g}", std::pow(10, power)),
                   {.size = 11, .fill = kFaint, .anchor = "middle"});
    }
    return out + label(right(), bottom() + 38,
                       "divergence from the uncompressed answers, in nats: less is better",
                       {.fill = kFaint, .anchor = "end"});
  }

  std::string row(const ComparedRow& r, size_t i) const {
    const double y = kTop + kRow * (static_cast<double>(i) + 0.5), x = x_of(r.distance.kl);
    const Style number{.anchor = "end"};
    return label(kLeft, y + 4, r.method, {}) + line(left(), y, x, y, kAccent, 1.5) +
           dot(x, y, 5, kAccent) +
           label(column(0), y + 4, fmt::format("{:.2f}x", r.factor), number) +
           label(column(1), y + 4, percent(r.distance.same_top), number) +
           label(column(2), y + 4, fmt::format("{:.1f} %", 100 * r.construct_ms / c_.prefill_ms),
                 number);
  }

  const Comparison& c_;
  std::vector<const ComparedRow*> rows_;  // nearest first
  double low_ = -3, high_ = 0, names_ = 0;
};

std::string cells(std::initializer_list<std::string> texts) {
  std::string out = "<tr>";
  for (const std::string& text : texts) out += str("<td>", escaped(text), "</td>");
  return out + "</tr>\n";
}

}  // namespace

std::string comparison_svg(const Comparison& comparison) { return Plot(comparison).draw(); }

std::string comparison_html(const Comparison& c) {
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>kvist compare</title>\n"
      "<style>body{margin:24px;background:#fff;color:#1c2733;font:15px/1.5 system-ui,sans-serif}"
      "svg{max-width:100%;height:auto}table{border-collapse:collapse;margin:24px 0}"
      "td,th{padding:4px 14px;text-align:right;border-bottom:1px solid #e1e6eb}"
      "td:first-child,th:first-child{text-align:left}dt{color:#6b7885}dd{margin:0 0 10px 0}"
      "</style>\n";
  out += comparison_svg(c);
  out +=
      str("<table><tr><th>method</th><th>factor</th><th>bytes</th><th>bits read</th><th>construct "
          "ms</th>"
          "<th>tok/s</th><th>KL</th><th>same top</th></tr>\n");
  for (const ComparedRow& row : c.rows) {
    out += cells({row.method, fmt::format("{:.2f}x", row.factor), human_bytes(row.bytes.stored()),
                  fmt::format("{:.2f}", row.read_bits()), fmt::format("{:.0f}", row.construct_ms),
                  fmt::format("{:.1f}", row.decode_tok_s), fmt::format("{:.4f}", row.distance.kl),
                  percent(row.distance.same_top)});
  }
  out += "</table>\n";
  for (size_t question = 0; question < c.rows.front().answers.size(); ++question) {
    out += str("<h2>", escaped(c.rows.front().answers[question].question), "</h2>\n<dl>\n");
    for (const ComparedRow& row : c.rows) {
      out += str("<dt>", escaped(row.method), "</dt><dd>", escaped(row.answers[question].text),
                 "</dd>\n");
    }
    out += "</dl>\n";
  }
  return out + "</html>\n";
}

}  // namespace kvist
