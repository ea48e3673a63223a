// SPDX-License-Identifier: MIT
// Escape sequences, alignment and the progress line.
#include "kvist/cli/terminal.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "kvist/core/error.h"

namespace kvist {
namespace {

constexpr int kBarWidth = 24;
constexpr double kLineEverySeconds = 5;      // where stderr is not a terminal
constexpr double kRedrawEverySeconds = 0.1;  // where it is

const char* code_of(Shade shade) {
  switch (shade) {
    case Shade::plain:
      return "";
    case Shade::dim:
      return "\x1b[2m";
    case Shade::strong:
      return "\x1b[1m";
    case Shade::good:
      return "\x1b[32m";
    case Shade::error:
      return "\x1b[31m";
  }
  return "";
}

std::string padding(int n) { return std::string(static_cast<size_t>(std::max(0, n)), ' '); }

}  // namespace

bool is_terminal(int fd) { return isatty(fd) == 1; }

bool has_colour(int fd) {
  const char* no_colour = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  return is_terminal(fd) && (no_colour == nullptr || *no_colour == 0) &&
         (term == nullptr || std::string_view(term) != "dumb");
}

std::string paint(int fd, Shade shade, std::string_view text) {
  if (shade == Shade::plain || !has_colour(fd)) return std::string(text);
  return str(code_of(shade), text, "\x1b[0m");
}

std::string human_bytes(uint64_t bytes) {
  if (bytes < 1024) return str(bytes, " B");
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string human_seconds(double seconds) {
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 60) return str(whole, " s");
  return fmt::format("{} min {:02} s", whole / 60, whole % 60);
}

std::string human_count(uint64_t count) {
  std::string digits = str(count);
  for (size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

int display_width(std::string_view text) {
  int width = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      while (i < text.size() && text[i] != 'm') ++i;
    } else if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) {
      ++width;
    }
  }
  return width;
}

std::string Table::text() const {
  std::vector<int> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], display_width(row[c]));
  }
  std::string out;
  for (size_t r = 0; r < rows_.size(); ++r) {
    std::string line, rule;
    for (size_t c = 0; c < rows_[r].size(); ++c) {
      const std::string pad = padding(widths[c] - display_width(rows_[r][c]));
      const std::string gap = c == 0 ? "" : "  ";
      line += c == 0 ? rows_[r][c] + pad : gap + pad + rows_[r][c];
      for (int i = 0; i < widths[c]; ++i) rule += i == 0 ? gap + "─" : "─";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
    if (r == 0) out += rule + "\n";
  }
  return out;
}

std::string progress_line(std::string_view what, int done, int total, double seconds,
                          std::string_view unit) {
  const int filled = total > 0 ? static_cast<int>(int64_t{kBarWidth} * done / total) : kBarWidth;
  std::string bar;
  for (int i = 0; i < kBarWidth; ++i) bar += i < filled ? "━" : "┄";
  std::string line = str(what, " ", bar, " ", human_count(static_cast<uint64_t>(done)), " / ",
                         human_count(static_cast<uint64_t>(total)), " ", unit);
  if (done > 0 && seconds > 0) {
    const double rate = done / seconds;
    if (unit == "tokens") line += fmt::format(", {:.0f} tok/s", rate);
    if (done < total) line += str(", ", human_seconds((total - done) / rate), " left");
  }
  return line;
}

void ProgressBar::update(int done, int total, double seconds, std::string_view unit) {
  if (quiet_) return;
  const bool live = is_terminal(STDERR_FILENO);
  const double since = std::chrono::duration<double>(Clock::now() - last_).count();
  if (live ? drawn_ && since < kRedrawEverySeconds && done < total : since < kLineEverySeconds)
    return;
  last_ = Clock::now();
  const std::string line = progress_line(what_, done, total, seconds, unit);
  std::fprintf(stderr, live ? "\r%s\x1b[K" : "%s\n", line.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void ProgressBar::clear() {
  if (drawn_ && is_terminal(STDERR_FILENO)) std::fputs("\r\x1b[K", stderr);
  drawn_ = false;
}

}  // namespace kvist
