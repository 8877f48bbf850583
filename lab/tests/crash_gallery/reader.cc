// Two threads. What one has stored the other sees at once, and memory does not hold it yet: a
// reader that answers from it has promised something that a crash may still take back.
#include "crash_gallery/gallery.h"

namespace perdure::crash_gallery {
namespace {

using lab::crash::Answer;
using lab::crash::Step;
using lab::crash::Verb;

struct Map {
  struct Slot {
    alignas(64) uint64_t word;  // the value + 1; 0: nothing
    uint64_t version;           // how often it has been changed
  } slots[2];
};

// The twin's reader makes durable what it answers.
template <bool kRepaired>
class UnpersistedRead : public lab::crash::KeyedProgram {
 public:
  uint64_t region_bytes() const override { return lab::crash::kImagePageBytes; }
  void create(void* /*base*/) override {}
  std::vector<std::vector<Step>> steps() const override {
    std::vector<std::vector<Step>> all(2);
    for (uint32_t i = 0; i < 6; ++i) {
      all[0].push_back({Verb::kUpsert, i % 2, 10 + i});
      all[1].push_back({Verb::kLookup, (i + 1) % 2, 0});
    }
    return all;
  }

  Answer perform(void* base, const Step& step) override {
    auto& slot = static_cast<Map*>(base)->slots[step.key];
    if (step.verb == Verb::kUpsert) {
      pm::store_release(slot.word, uint64_t{step.value} + 1);  // lost in unpersisted_read
      std::atomic_ref<uint64_t>(slot.version).fetch_add(1);
      memory.persist(&slot, sizeof slot);
      return {};
    }
    const uint64_t word = pm::load_acquire(slot.word);
    if (kRepaired) memory.persist(&slot, sizeof slot);
    if (word == 0) return {.yes = false};
    return {.value = static_cast<uint32_t>(word - 1)};
  }

  Contents recover(void* base) override {
    Contents contents;
    for (uint32_t key = 0; key < 2; ++key) {
      const uint64_t word = static_cast<Map*>(base)->slots[key].word;
      if (word != 0) contents[key] = static_cast<uint32_t>(word - 1);
    }
    return contents;
  }
};

}  // namespace

void add_reader(std::vector<Entry>& entries) {
  entries.push_back(make_threaded_entry<UnpersistedRead>("unpersisted_read", "reader.cc"));
}

}  // namespace perdure::crash_gallery
