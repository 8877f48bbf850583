// What an earlier crash left behind, and is believed when its place is used again: lost is what was
// written between two crashes.
#include "crash_gallery/gallery.h"

namespace perdure::crash_gallery {
namespace {

constexpr uint64_t kSlots = 4;

struct Ring {
  alignas(64) uint64_t pass;      // its lowest bit is the flag of the records that count
  alignas(64) uint64_t all_past;  // the last value of the passes before
  struct Slot {
    alignas(64) uint64_t word;  // value << 1 | flag; value 0 is padding
  } slots[kSlots];
};

// One key, whose values are appended to a ring. A pass ends when a slot is not used by the next, of
// even number: that slot must be filled, or it holds a whole record of the pass before, whose flag
// is right again in the pass after. Filler and header share a fence; a crash keeps the header
// alone, and the next crash finds the old record behind those of the new pass. The twin fences in
// between.
template <bool kRepaired>
class StalePass : public lab::crash::KeyedProgram {
 public:
  uint64_t region_bytes() const override { return lab::crash::kImagePageBytes; }
  void create(void* base) override {
    auto& root = *static_cast<Ring*>(base);
    root.pass = 1;
    memory.persist(&root, sizeof root);
  }
  std::vector<std::vector<lab::crash::Step>> steps() const override { return {upserts(1, 8)}; }
  std::vector<lab::crash::Step> work_steps(uint32_t crashes) const override {
    return upserts(100 * crashes, 4);
  }
  lab::crash::Answer perform(void* base, const lab::crash::Step& step) override {
    auto& root = *static_cast<Ring*>(base);
    if (position_ == (root.pass % 2 == 1 ? kSlots : kSlots - 1)) advance(root);
    Ring::Slot& slot = root.slots[position_++];
    slot.word = uint64_t{step.value} << 1 | (root.pass & 1);
    memory.persist(&slot, sizeof slot);
    return {};
  }
  Contents recover(void* base) override {
    auto& root = *static_cast<Ring*>(base);
    uint64_t last = root.all_past;
    for (position_ = 0; position_ < kSlots; ++position_) {
      const uint64_t word = root.slots[position_].word;
      if ((word & 1) != (root.pass & 1) || word >> 1 == 0) break;
      last = word >> 1;
    }
    return last == 0 ? Contents() : Contents{{0, static_cast<uint32_t>(last)}};
  }

 private:
  static std::vector<lab::crash::Step> upserts(uint32_t value, uint32_t count) {
    std::vector<lab::crash::Step> all;
    for (uint32_t i = 0; i < count; ++i) {
      all.push_back({lab::crash::Verb::kUpsert, 0, value + i});
    }
    return all;
  }
  static void order_filler() { memory.fence(); }
  void advance(Ring& root) {
    root.all_past = root.slots[position_ - 1].word >> 1;
    memory.persist(&root.all_past, sizeof root.all_past);
    for (; position_ < kSlots; ++position_) {
      root.slots[position_].word = root.pass & 1;  // lost in stale_pass
      memory.flush(&root.slots[position_], sizeof root.slots[position_]);
    }
    if (kRepaired) order_filler();
    root.pass += 1;
    memory.persist(&root.pass, sizeof root.pass);
    position_ = 0;
  }

  uint64_t position_ = 0;
};

}  // namespace

void add_stale(std::vector<Entry>& entries) {
  entries.push_back(make_threaded_entry<StalePass>("stale_pass", "stale.cc"));
  entries.back().schedules = 1;
  entries.back().crashes = 2;
}

}  // namespace perdure::crash_gallery
