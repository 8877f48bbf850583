// A hash table in which every key has two buckets, and an insertion into a full one moves somebody
// to its other bucket: first copied, then erased. A crash between leaves the record there twice,
// which lookups do not mind. Deletion must.
#include <fmt/core.h>

#include <map>

#include "crash_gallery/gallery.h"

namespace perdure::crash_gallery {
namespace {

constexpr uint64_t kBuckets = 4;
constexpr uint64_t kSlots = 2;

struct Slot {
  uint64_t key;  // 0: empty
  uint64_t value;
};

struct Table {
  struct alignas(64) Bucket {
    Slot slots[kSlots];
  } buckets[kBuckets];
};
static_assert(sizeof(Table::Bucket) == 64);

uint64_t bucket_of(uint64_t key, bool second) {
  const uint64_t first = key % kBuckets;
  return second ? (first + 1 + key / kBuckets % (kBuckets - 1)) % kBuckets : first;
}

// Value and key are in one line: the key, which reveals it, cannot come first.
void put(Slot& slot, uint64_t key, uint64_t value) {
  pm::store_relaxed(slot.value, value);
  pm::store_release(slot.key, key);
  memory.persist(&slot, sizeof slot);
}

void erase(Slot& slot) {
  slot.key = 0;
  memory.persist(&slot.key, sizeof slot.key);  // crash in forgotten_duplicate
}

Slot* find(Table& table, uint64_t bucket, uint64_t key) {
  for (Slot& slot : table.buckets[bucket].slots) {
    if (slot.key == key) return &slot;
  }
  return nullptr;
}

Slot* find(Table& table, uint64_t key) {
  Slot* slot = find(table, bucket_of(key, false), key);
  return slot != nullptr ? slot : find(table, bucket_of(key, true), key);
}

void insert(Table& table, uint64_t key, uint64_t value) {
  const uint64_t home = bucket_of(key, false);
  Slot* room = find(table, home, 0);
  if (room == nullptr) {
    for (Slot& slot : table.buckets[home].slots) {
      const uint64_t away = bucket_of(slot.key, home == bucket_of(slot.key, false));
      Slot* other = find(table, away, 0);
      if (other == nullptr) continue;
      put(*other, slot.key, slot.value);
      erase(slot);
      room = &slot;
      break;
    }
  }
  if (room == nullptr) damaged("the table is full");
  put(*room, key, value);
}

// Removes the first copy that it finds. The second comes to light when the first is gone.
template <bool kRepaired>
class ForgottenDuplicate : public RootProgram<Table> {
 public:
  uint32_t operation_count() const override { return 5; }
  uint32_t further_count() const override { return 5; }
  std::string operation_text(uint32_t number) const override {
    return fmt::format("{}({})", number < 5 ? "insert" : "remove", key_of(number));
  }

 protected:
  void perform(Table& root, uint32_t number) override {
    const uint64_t key = key_of(number);
    if (number < 5) {
      insert(root, key, 300 + number);
      return;
    }
    while (Slot* slot = find(root, key)) {
      erase(*slot);
      if (!kRepaired) break;
    }
    if (find(root, key) != nullptr) damaged("the key is still there");
  }
  std::string restore(Table& root) override {
    std::map<uint64_t, uint64_t> records;
    for (const auto& bucket : root.buckets) {
      for (const Slot& slot : bucket.slots) {
        if (slot.key != 0) records[slot.key] = slot.value;
      }
    }
    std::string text;
    for (const auto& [key, value] : records) text += fmt::format("{}={} ", key, value);
    return text;
  }

 private:
  // All of one bucket, so that the third and the following push others away.
  static uint64_t key_of(uint32_t number) { return 1 + kBuckets * (number % 5); }
};

}  // namespace

void add_table(std::vector<Entry>& entries) {
  entries.push_back(make_entry<ForgottenDuplicate>("forgotten_duplicate", "table.cc"));
}

}  // namespace perdure::crash_gallery
