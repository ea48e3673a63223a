// SPDX-License-Identifier: MIT
// What people look at: colours where the stream is a terminal, tables that line up, sizes and times
// in words, progress.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvist {

enum class Shade { plain, dim, strong, good, error };

bool is_terminal(int fd);
// A terminal, and the environment asks for colour: NO_COLOR is unset or empty and TERM is not
// "dumb".
bool has_colour(int fd);
// `text` in that shade where `fd` has colour, else as it is.
std::string paint(int fd, Shade shade, std::string_view text);

std::string human_bytes(uint64_t bytes);    // "512 B", "1.5 KiB", "87.9 MiB"
std::string human_seconds(double seconds);  // "0.4 s", "12 s", "3 min 05 s"
std::string human_count(uint64_t count);    // "12,345"
int display_width(std::string_view text);   // code points; escape sequences take no room

// Columns that line up: the first to the left, the others to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> head) : rows_{std::move(head)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;  // head, rule, rows; each line ends in a newline

 private:
  std::vector<std::vector<std::string>> rows_;
};

// One line on stderr about long work over `total` tokens: redrawn in place on a terminal, else a
// line every few seconds. The line disappears with the object.
class ProgressBar {
 public:
  ProgressBar(std::string what, bool quiet) : what_(std::move(what)), quiet_(quiet) {}
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  // `unit` is what is counted: "tokens", "layers".
  void update(int done, int total, double seconds, std::string_view unit);
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_;
  bool quiet_;
  bool drawn_ = false;
  Clock::time_point last_ = Clock::now();
};

// "prefill [######......] 512 / 2,048 tokens, 1,012 tok/s, 1.5 s left"
std::string progress_line(std::string_view what, int done, int total, double seconds,
                          std::string_view unit);

}  // namespace kvist
