// What the model counts. Plain numbers that add and subtract; two equal runs give equal ones.
//
// Units: "lines" are 64 bytes. Media writes and reads are given as the papers do, in 64-byte units:
// a media unit (256-byte XPLine) written or read adds 4. Where several operations or call sites
// share one media write, each takes the part of its lines; so that this stays exact, shares are
// counted in twelfths of a 64-byte unit (an XPLine is 48 of them: 12 to each of four lines, 16 to
// each of three, 24 to each of two).
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>

namespace perdure::lab {

inline constexpr uint64_t kTwelfths = 12;

struct Counters {
  uint64_t operations = 0;
  uint64_t payload_bytes = 0;
  uint64_t allocations = 0;
  uint64_t allocation_bytes = 0;

  // Instructions, as the program issued them. An atomic read-modify-write is a load, a store and
  // one in `locked`. Flushes are counted by line.
  uint64_t loads = 0;
  uint64_t stores = 0;
  uint64_t locked = 0;
  uint64_t streams = 0;        // non-temporal stores
  uint64_t flushes = 0;        // lines of PM flushed
  uint64_t flushes_clean = 0;  // of these, wasted: the line was clean or not in the cache
  uint64_t fences = 0;
  uint64_t fences_waiting = 0;  // of these, with a flush or non-temporal store to wait for

  // Lines of PM, counted once by access: touched by loads, touched by stores (of both kinds), and
  // turned from clean to dirty in the cache.
  uint64_t pm_lines_read = 0;
  uint64_t pm_lines_written = 0;
  uint64_t pm_lines_dirtied = 0;

  // The CPU cache. Every miss reads a line, also that of a store (write-allocate).
  uint64_t pm_read_misses = 0;
  uint64_t pm_write_misses = 0;
  uint64_t pm_misses_buffered = 0;  // of both, served by a DIMM's buffers
  uint64_t dram_hits = 0;
  uint64_t dram_misses = 0;
  uint64_t dram_writebacks = 0;

  // 64-byte writes reaching the memory controller, by cause.
  uint64_t wpq_flush = 0;
  uint64_t wpq_nontemporal = 0;
  uint64_t wpq_eviction = 0;

  // Media writes, and the parts of them that were of incomplete units, that did not belong to a
  // sequential stream (the DIMM's own included), and that were the DIMM's own.
  uint64_t media_write_twelfths = 0;
  uint64_t media_write_partial_twelfths = 0;
  uint64_t media_write_random_twelfths = 0;
  uint64_t media_write_controller_twelfths = 0;

  // Media reads in 64-byte units, and the parts of them that did not follow the media read before,
  // and that were only made to complete a partial write.
  uint64_t media_read_units = 0;
  uint64_t media_read_random_units = 0;
  uint64_t media_read_for_write_units = 0;

  uint64_t wpq_inserts() const { return wpq_flush + wpq_nontemporal + wpq_eviction; }
  uint64_t pm_misses() const { return pm_read_misses + pm_write_misses; }
  double media_write_units() const { return static_cast<double>(media_write_twelfths) / kTwelfths; }
  double media_write_bytes() const { return media_write_units() * 64; }
  uint64_t media_read_bytes() const { return media_read_units * 64; }

  // Ratios; 0 where the divisor is 0.
  double media_writes_per_wpq_insert() const;
  double write_amplification() const;    // media bytes written / payload bytes
  double effective_write_ratio() const;  // payload bytes / media bytes written

  Counters& operator+=(const Counters& other);
  Counters& operator-=(const Counters& other);
  friend Counters operator+(Counters a, const Counters& b) { return a += b; }
  friend Counters operator-(Counters a, const Counters& b) { return a -= b; }
  bool operator==(const Counters&) const = default;
};

// Every member with its name: for tables, JSON and arithmetic.
struct CounterField {
  const char* name;
  uint64_t Counters::* member;
};
inline constexpr std::array kCounterFields = {
    CounterField{"operations", &Counters::operations},
    CounterField{"payload_bytes", &Counters::payload_bytes},
    CounterField{"allocations", &Counters::allocations},
    CounterField{"allocation_bytes", &Counters::allocation_bytes},
    CounterField{"loads", &Counters::loads},
    CounterField{"stores", &Counters::stores},
    CounterField{"locked", &Counters::locked},
    CounterField{"streams", &Counters::streams},
    CounterField{"flushes", &Counters::flushes},
    CounterField{"flushes_clean", &Counters::flushes_clean},
    CounterField{"fences", &Counters::fences},
    CounterField{"fences_waiting", &Counters::fences_waiting},
    CounterField{"pm_lines_read", &Counters::pm_lines_read},
    CounterField{"pm_lines_written", &Counters::pm_lines_written},
    CounterField{"pm_lines_dirtied", &Counters::pm_lines_dirtied},
    CounterField{"pm_read_misses", &Counters::pm_read_misses},
    CounterField{"pm_write_misses", &Counters::pm_write_misses},
    CounterField{"pm_misses_buffered", &Counters::pm_misses_buffered},
    CounterField{"dram_hits", &Counters::dram_hits},
    CounterField{"dram_misses", &Counters::dram_misses},
    CounterField{"dram_writebacks", &Counters::dram_writebacks},
    CounterField{"wpq_flush", &Counters::wpq_flush},
    CounterField{"wpq_nontemporal", &Counters::wpq_nontemporal},
    CounterField{"wpq_eviction", &Counters::wpq_eviction},
    CounterField{"media_write_twelfths", &Counters::media_write_twelfths},
    CounterField{"media_write_partial_twelfths", &Counters::media_write_partial_twelfths},
    CounterField{"media_write_random_twelfths", &Counters::media_write_random_twelfths},
    CounterField{"media_write_controller_twelfths", &Counters::media_write_controller_twelfths},
    CounterField{"media_read_units", &Counters::media_read_units},
    CounterField{"media_read_random_units", &Counters::media_read_random_units},
    CounterField{"media_read_for_write_units", &Counters::media_read_for_write_units},
};
static_assert(kCounterFields.size() * sizeof(uint64_t) == sizeof(Counters));

// The counts under their names, then wpq_inserts; media_writes and media_reads in 64-byte units;
// media_write_bytes, media_read_bytes and the ratios.
nlohmann::json to_json(const Counters& counters);

// The part that is told apart by call site. A write is charged to the site that flushed or streamed
// the line; an eviction to the last site that stored to it.
struct SiteCounters {
  uint64_t flushes = 0;
  uint64_t flushes_clean = 0;
  uint64_t fences = 0;
  uint64_t pm_lines_written = 0;
  uint64_t pm_lines_dirtied = 0;
  uint64_t wpq_flush = 0;
  uint64_t wpq_nontemporal = 0;
  uint64_t wpq_eviction = 0;
  uint64_t media_write_twelfths = 0;
  uint64_t pm_misses = 0;

  uint64_t wpq_inserts() const { return wpq_flush + wpq_nontemporal + wpq_eviction; }
  double media_write_units() const { return static_cast<double>(media_write_twelfths) / kTwelfths; }
  SiteCounters& operator+=(const SiteCounters& other);
  SiteCounters& operator-=(const SiteCounters& other);
  bool operator==(const SiteCounters&) const = default;
};

struct SiteCounterField {
  const char* name;
  uint64_t SiteCounters::* member;
};
inline constexpr std::array kSiteCounterFields = {
    SiteCounterField{"flushes", &SiteCounters::flushes},
    SiteCounterField{"flushes_clean", &SiteCounters::flushes_clean},
    SiteCounterField{"fences", &SiteCounters::fences},
    SiteCounterField{"pm_lines_written", &SiteCounters::pm_lines_written},
    SiteCounterField{"pm_lines_dirtied", &SiteCounters::pm_lines_dirtied},
    SiteCounterField{"wpq_flush", &SiteCounters::wpq_flush},
    SiteCounterField{"wpq_nontemporal", &SiteCounters::wpq_nontemporal},
    SiteCounterField{"wpq_eviction", &SiteCounters::wpq_eviction},
    SiteCounterField{"media_write_twelfths", &SiteCounters::media_write_twelfths},
    SiteCounterField{"pm_misses", &SiteCounters::pm_misses},
};
static_assert(kSiteCounterFields.size() * sizeof(uint64_t) == sizeof(SiteCounters));

nlohmann::json to_json(const SiteCounters& counters);

}  // namespace perdure::lab
