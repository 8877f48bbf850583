#include "cli/terminal.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "common/ticks.h"
#include "common/units.h"

namespace perdure::cli {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr size_t kBarWidth = 24;

bool is_terminal(std::FILE* stream) {
  const char* term = std::getenv("TERM");
  return isatty(fileno(stream)) != 0 && term != nullptr && std::string_view(term) != "dumb";
}

size_t terminal_width() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace

Palette::Palette(std::FILE* stream) {
  const char* no_color = std::getenv("NO_COLOR");
  colour_ = is_terminal(stream) && (no_color == nullptr || *no_color == '\0');
}

std::string Palette::wrap(const char* code, std::string_view text) const {
  return colour_ ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : std::string(text);
}

ProgressBar::ProgressBar(std::string unit)
    : unit_(std::move(unit)), visible_(is_terminal(stderr)) {}

ProgressSink ProgressBar::sink() {
  if (!visible_) return {};
  return [this](const Progress& progress) { show(progress); };
}

void ProgressBar::show(const Progress& progress) {
  if (!visible_) return;
  const double now_s = steady_seconds();
  if (progress.phase != phase_) {
    phase_ = progress.phase;
    phase_start_s_ = now_s;
    phase_start_items_ = static_cast<double>(progress.items);
    phase_start_fraction_ = std::max(progress.fraction, 0.0);
  } else if (now_s - last_drawn_s_ < kRedrawSeconds) {
    return;
  }
  last_drawn_s_ = now_s;
  const std::string line = draw(progress, now_s - phase_start_s_, terminal_width());
  fmt::print(stderr, "\r\x1b[2K{}", line);
  std::fflush(stderr);
  drawn_ = true;
}

void ProgressBar::clear() {
  if (drawn_) fmt::print(stderr, "\r\x1b[2K");
  drawn_ = false;
}

std::string ProgressBar::draw(const Progress& progress, double elapsed_s, size_t width) const {
  std::string bar;
  std::string percent;
  std::string left;
  if (progress.fraction >= 0) {
    const double fraction = std::min(progress.fraction, 1.0);
    const auto full = static_cast<size_t>(std::lround(fraction * double{kBarWidth}));
    bar = fmt::format("[{}{}] ", std::string(full, '#'), std::string(kBarWidth - full, '-'));
    percent = fmt::format("{:3.0f} % ", fraction * 100);
    const double advanced = fraction - phase_start_fraction_;
    if (advanced > 0 && elapsed_s > 0.3) {
      left = fmt::format(", {} left", format_clock(elapsed_s * (1 - fraction) / advanced));
    }
  }
  const double done = static_cast<double>(progress.items) - phase_start_items_;
  std::string rate;
  if (elapsed_s > 0.3 && progress.items > 0) rate = ", " + format_rate(done / elapsed_s);
  const std::string counts = progress.items == 0
                                 ? std::string()
                                 : fmt::format("{} {}", format_count(progress.items), unit_);
  const std::string detail = progress.detail.empty() ? "" : "; " + progress.detail;
  std::string plain =
      fmt::format("{}  {}{}{}{}{}{}", progress.phase, bar, percent, counts, rate, left, detail);
  if (plain.size() >= width) {  // a line that wraps could not be drawn over
    plain = fmt::format("{}  {}{}{}{}", progress.phase, percent, rate, left, detail);
    return plain.substr(0, width - 1);
  }
  return fmt::format("{}  {}{}{}{}{}{}", palette_.bold(progress.phase), palette_.accent(bar),
                     percent, counts, rate, left, detail);
}

}  // namespace perdure::cli
