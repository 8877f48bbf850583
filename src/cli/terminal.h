// What the command shows people: colour, aligned facts and a progress bar, on terminals only.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "common/progress.h"

namespace perdure::cli {

// Wraps text in colour if `stream` is a terminal and NO_COLOR is not set.
class Palette {
 public:
  explicit Palette(std::FILE* stream);
  std::string bold(std::string_view text) const { return wrap("1", text); }
  std::string dim(std::string_view text) const { return wrap("2", text); }
  std::string good(std::string_view text) const { return wrap("1;32", text); }
  std::string bad(std::string_view text) const { return wrap("1;31", text); }
  std::string accent(std::string_view text) const { return wrap("36", text); }

 private:
  std::string wrap(const char* code, std::string_view text) const;
  bool colour_;
};

// A line on standard error that is drawn over and over, with what is done, the rate and the time
// left. Shows nothing where standard error is not a terminal.
class ProgressBar {
 public:
  explicit ProgressBar(std::string unit);
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  bool visible() const { return visible_; }
  void show(const Progress& progress);
  // Takes the line away, so that other output can be written.
  void clear();
  // Calls show(); empty where nothing would be shown, so that the work need not count.
  ProgressSink sink();

 private:
  std::string draw(const Progress& progress, double elapsed_s, size_t width) const;

  std::string unit_;
  bool visible_;
  bool drawn_ = false;
  std::string phase_;
  double phase_start_s_ = 0;
  double phase_start_items_ = 0;
  double phase_start_fraction_ = 0;
  double last_drawn_s_ = 0;
  Palette palette_{stderr};
};

}  // namespace perdure::cli
