// Feeds the memory model with what an observed program does.
//
//   ModelSink sink(load_profile("optane-100"));
//   lab::install(&sink);
//   ... run observed code ...
//   lab::install(nullptr);
//   print(sink.report());
//
// Two runs that make the same accesses give the same counts, wherever the system has put the
// program: regions of PM lie one after another in the order of their first access, and pages of
// DRAM are numbered in the order in which they are first touched, as a system hands out frames.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "lab/model/model.h"
#include "lab/seam/event.h"

namespace perdure::lab {

// Small numbers for large ones, in the order in which they come. A direct-mapped table in front of
// a hash map makes the usual question a comparison.
class DenseNumbers {
 public:
  uint32_t of(uint64_t value) {
    const Slot& slot = slots_[slot_of(value)];
    return slot.value == value ? slot.number : look_up(value);
  }
  // By number.
  const std::vector<uint64_t>& values() const { return values_; }

 private:
  static constexpr size_t kSlots = 4096;
  static constexpr uint64_t kNothing = ~uint64_t{0};
  struct Slot {
    uint64_t value = kNothing;
    uint32_t number = 0;
  };

  static size_t slot_of(uint64_t value) { return (value ^ value >> 12 ^ value >> 45) % kSlots; }
  uint32_t look_up(uint64_t value);

  std::array<Slot, kSlots> slots_;
  std::unordered_map<uint64_t, uint32_t> numbers_;
  std::vector<uint64_t> values_;
};

class ModelSink : public Sink {
 public:
  // Throws Error(kInvalidArgument) if the profile does not validate.
  explicit ModelSink(const Profile& profile);

  void on(const Event& event) override;
  bool wants_dram() const override { return true; }

  MemoryModel& model() { return model_; }
  // {"operations": {"insert": {counters}, ...}, "sites": [{"module", "offset", counters}, ...],
  // "pending": {...}, "profile": {...}, "regions": [...]}. A site is where its module (a program or
  // library) was told to be loaded from, and an offset that addr2line understands; those of flushes
  // and fences have the same of the calls that led there, the innermost first, as "callers".
  // Operation types and sites of which nothing was counted are left out.
  nlohmann::json report() const;

 private:
  struct Thread {
    uint16_t operation = 0;
    uint64_t payload_bytes = 0;
  };

  Thread& thread(uint16_t number) {
    if (number >= threads_.size()) [[unlikely]]
      threads_.resize(size_t{number} + 1);
    return threads_[number];
  }
  // Calls visit(access) for each part of the event that is contiguous in the model.
  template <class Visit>
  void for_each_part(const Event& event, Visit visit);
  uint64_t base_of(uint32_t region);
  uint32_t site_with_callers(uint64_t pc);
  uint64_t function_of(uint64_t pc);
  nlohmann::json place_of_site(uint32_t number) const;

  MemoryModel model_;
  DenseNumbers pages_;
  // By the number that the model knows a site by: the address after the call, and above its kPcBits
  // the number of the site that called. 0 is no site.
  DenseNumbers sites_;
  std::unordered_map<uint64_t, uint64_t> functions_;  // by an address in them: their beginnings
  std::vector<Thread> threads_;
  std::vector<std::string> region_names_;  // in the order in which they were first accessed
  std::vector<uint32_t> region_places_;    // by the runtime's number, one more than the place
  uint32_t last_region_ = 0;
  uint64_t last_base_ = 0;
};

}  // namespace perdure::lab
