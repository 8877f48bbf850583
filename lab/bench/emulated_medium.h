// A slower medium, for runs by the wall clock: what a persist takes is drawn out to what it takes
// on the medium of a profile, and all threads together write no faster than that medium does.
//
//   EmulatedMedium medium(builtin_profile("optane-100"));
//   pm::emulate_media(&medium);   // for the pools that are mapped from now on
//
// A fence after lines were written back takes fence_ns and flush_ns for each line; what flush and
// fence take here was measured before and is taken off. Lines fill the medium's units: what a
// thread writes into the units it wrote last is combined; each other unit costs its size in
// bandwidth, less where it follows the one before. Writes beyond what the medium's buffers hold
// wait in the next fence. Reads are not slowed. The other kind of medium, which papers emulated
// before there was one, is this memory with a stall for each line that is written back.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lab/bench/bench.h"
#include "lab/model/profile.h"
#include "pm/emulated_media.h"

namespace perdure::lab {

class EmulatedMedium final : public pm::EmulatedMedia {
 public:
  // Measures this machine's own flushes and fences (some milliseconds).
  explicit EmulatedMedium(const Profile& profile);
  // This machine's memory, where each line that is written back takes so much longer.
  explicit EmulatedMedium(double added_flush_ns);

  // Of `BenchOptions::emulated_medium`: "optane", a profile, or a time for each line, such as
  // "300ns". Throws Error(kInvalidArgument).
  static std::unique_ptr<EmulatedMedium> of_name(const std::string& name);

  void written_back(uintptr_t address, size_t bytes) override;
  void fenced() override;

  const EmulationReport& report() const { return report_; }
  // Since it was made, by all threads.
  PersistCounts counts() const {
    return {lines_.load(std::memory_order_relaxed), fences_.load(std::memory_order_relaxed)};
  }

 private:
  void measure_native();
  void write_unit(uintptr_t unit) const;
  // Queues so much writing behind that of all threads. Returns the tick at which what is left of it
  // fits the buffers.
  uint64_t queue(uint64_t now, double write_ns);

  EmulationReport report_;
  double ticks_per_ns_;
  double random_unit_ns_ = 0;  // 0: any bandwidth
  double following_unit_ns_ = 0;
  uint64_t buffered_ticks_ = 0;  // of writing that the medium's buffers hold
  alignas(64) std::atomic<uint64_t> busy_until_{0};
  std::atomic<uint64_t> lines_{0};
  std::atomic<uint64_t> fences_{0};
};

}  // namespace perdure::lab
