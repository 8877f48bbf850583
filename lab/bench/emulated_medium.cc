#include "lab/bench/emulated_medium.h"

#include <fmt/core.h>
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <vector>

#include "common/ticks.h"
#include "perdure/error.h"
#include "pm/memory.h"

namespace perdure::lab {
namespace {

// What this thread wrote back since its last fence, and the units it wrote last.
struct Pending {
  uint64_t lines = 0;
  double write_ns = 0;
  std::array<uintptr_t, 4> recent_units{};
  size_t next = 0;
};
thread_local Pending pending;

// Nanoseconds to store, flush and fence `lines` lines at once: the median of many times.
double measure_persist_ns(const pm::Memory& memory, std::vector<std::byte>& area, size_t lines) {
  constexpr size_t kRounds = 2001;
  const TickClock& clock = TickClock::get();
  std::vector<double> ticks;
  size_t at = 0;
  for (size_t round = 0; round < kRounds; ++round) {
    if (at + (lines + 1) * pm::kLineBytes > area.size()) at = 0;
    const uint64_t start = clock.now();
    for (size_t line = 0; line < lines; ++line) {
      area[at + line * pm::kLineBytes] = static_cast<std::byte>(round);
    }
    memory.persist(area.data() + at, lines * pm::kLineBytes);
    ticks.push_back(static_cast<double>(clock.now() - start));
    at += lines * pm::kLineBytes;
  }
  return median(ticks) * clock.ns_per_tick();
}

}  // namespace

EmulatedMedium::EmulatedMedium(const Profile& profile)
    : ticks_per_ns_(1 / TickClock::get().ns_per_tick()) {
  measure_native();
  report_.medium = profile.name;
  report_.fence_ns = profile.fence_latency_ns;
  report_.flush_ns = profile.flush_ns;
  report_.write_gb_per_s = profile.random_write_gb_per_s;
  report_.unit_bytes = profile.media_unit_bytes;
  report_.added_flush_ns = std::max(report_.flush_ns - report_.native_flush_ns, 0.0);
  report_.added_fence_ns = std::max(report_.fence_ns - report_.native_fence_ns, 0.0);

  const auto unit_bytes = static_cast<double>(profile.media_unit_bytes);
  random_unit_ns_ = unit_bytes / profile.random_write_gb_per_s;  // bytes / (GB/s) are nanoseconds
  following_unit_ns_ = unit_bytes / profile.sequential_write_gb_per_s;
  const auto buffered_units = static_cast<double>(profile.write_buffer_units * profile.dimm_count);
  buffered_ticks_ = static_cast<uint64_t>(buffered_units * random_unit_ns_ * ticks_per_ns_);
}

EmulatedMedium::EmulatedMedium(double added_flush_ns)
    : ticks_per_ns_(1 / TickClock::get().ns_per_tick()) {
  measure_native();
  report_.medium = fmt::format("{:g} ns more for each line", added_flush_ns);
  report_.fence_ns = report_.native_fence_ns;
  report_.flush_ns = report_.native_flush_ns + added_flush_ns;
  report_.added_flush_ns = added_flush_ns;
  report_.unit_bytes = pm::kLineBytes;
}

std::unique_ptr<EmulatedMedium> EmulatedMedium::of_name(const std::string& name) {
  double stall_ns = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), stall_ns);
  if (error == std::errc() && std::string_view(end) == "ns") {
    if (stall_ns >= 0 && stall_ns <= 1e6) return std::make_unique<EmulatedMedium>(stall_ns);
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} for each line: give 0ns to 1000000ns", name));
  }
  const Profile profile = load_profile(name == "optane" ? "optane-100" : name);
  if (profile.domain != "line") {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} needs no flushes, so there is no persist to slow down: emulate a "
                            "medium of domain line, such as optane",
                            name));
  }
  return std::make_unique<EmulatedMedium>(profile);
}

void EmulatedMedium::measure_native() {
  constexpr size_t kLines = 8;
  std::vector<std::byte> area(size_t{4} << 20);
  const pm::Memory memory(Domain::kLine);
  const double one_ns = measure_persist_ns(memory, area, 1);
  const double several_ns = measure_persist_ns(memory, area, kLines);
  report_.native_flush_ns = std::max((several_ns - one_ns) / (kLines - 1), 0.0);
  report_.native_fence_ns = std::max(one_ns - report_.native_flush_ns, 0.0);
}

void EmulatedMedium::written_back(uintptr_t address, size_t bytes) {
  if (bytes == 0) return;
  const uintptr_t end = address + bytes - 1;
  pending.lines += end / pm::kLineBytes - address / pm::kLineBytes + 1;
  if (random_unit_ns_ == 0) return;
  for (uintptr_t unit = address / report_.unit_bytes; unit <= end / report_.unit_bytes; ++unit) {
    write_unit(unit);
  }
}

void EmulatedMedium::write_unit(uintptr_t unit) const {
  auto& recent = pending.recent_units;
  if (std::find(recent.begin(), recent.end(), unit) != recent.end()) return;
  const bool follows = std::find(recent.begin(), recent.end(), unit - 1) != recent.end();
  pending.write_ns += follows ? following_unit_ns_ : random_unit_ns_;
  recent[pending.next++ % recent.size()] = unit;
}

uint64_t EmulatedMedium::queue(uint64_t now, double write_ns) {
  const auto ticks = static_cast<uint64_t>(write_ns * ticks_per_ns_);
  uint64_t busy_until = busy_until_.load(std::memory_order_relaxed);
  uint64_t done_at = 0;
  do {
    done_at = std::max(busy_until, now) + ticks;
  } while (!busy_until_.compare_exchange_weak(busy_until, done_at, std::memory_order_relaxed));
  return done_at - std::min(done_at, buffered_ticks_);
}

void EmulatedMedium::fenced() {
  fences_.fetch_add(1, std::memory_order_relaxed);
  if (pending.lines == 0) return;
  lines_.fetch_add(pending.lines, std::memory_order_relaxed);
  const TickClock& clock = TickClock::get();
  const uint64_t now = clock.now();
  const double added_ns =
      report_.added_fence_ns + report_.added_flush_ns * static_cast<double>(pending.lines);
  uint64_t until = now + static_cast<uint64_t>(added_ns * ticks_per_ns_);
  if (random_unit_ns_ != 0) until = std::max(until, queue(now, pending.write_ns));
  pending.lines = 0;
  pending.write_ns = 0;
  while (clock.now() < until) _mm_pause();
}

}  // namespace perdure::lab
