// What published implementations of persistent hash tables got wrong, each reduced to a few lines.
// Others of their faults are elsewhere: stack_copy_flushed in flushes.cc, trusted_lock in
// recovery.cc, forgotten_duplicate in table.cc.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "crash_gallery/gallery.h"

namespace perdure::crash_gallery {
namespace {

struct Slot {
  uint64_t key;
  uint64_t value;
};

// ---- tokens: a bit for each slot says whether it counts

struct Node {
  struct alignas(64) Line {
    Slot slots[4];
  } lines[2];
  alignas(64) uint64_t tokens;
};

class TokenProgram : public RootProgram<Node> {
 protected:
  static Slot& slot_of(Node& root, uint32_t number) {
    return root.lines[number / 4].slots[number % 4];
  }
  static uint64_t bit(uint32_t number) { return uint64_t{1} << number; }
  static void set_tokens(Node& root, uint64_t tokens) {
    root.tokens = tokens;
    memory.persist(&root.tokens, sizeof root.tokens);
  }
  std::string restore(Node& root) override {
    std::string text;
    for (uint32_t i = 0; i < 8; ++i) {
      const Slot& slot = slot_of(root, i);
      if ((root.tokens & bit(i)) != 0) text += fmt::format("{}={} ", slot.key, slot.value);
    }
    return text;
  }
};

template <bool kRepaired>
class TokenBeforeRecord : public TokenProgram {
 public:
  uint32_t operation_count() const override { return 4; }

 protected:
  void perform(Node& root, uint32_t number) override {
    if (!kRepaired) set_tokens(root, root.tokens | bit(number));
    slot_of(root, number) = {10 + number, 20 + number};
    memory.persist(&slot_of(root, number), sizeof(Slot));  // crash in token_before_record
    if (kRepaired) set_tokens(root, root.tokens | bit(number));
  }
};

// An update writes the record to another slot, and moves the token.
template <bool kRepaired, bool kClearsFirst>
class MovedToken : public TokenProgram {
 public:
  uint32_t operation_count() const override { return 4; }

 protected:
  void set_up(Node& root) override {
    slot_of(root, 0) = {10, 20};
    root.tokens = bit(0);
  }
  void perform(Node& root, uint32_t number) override {
    slot_of(root, number + 1) = {10, 21 + number};
    memory.persist(&slot_of(root, number + 1), sizeof(Slot));
    const uint64_t from = bit(number);
    const uint64_t to = bit(number + 1);
    if (kRepaired) return set_tokens(root, root.tokens ^ from ^ to);
    set_tokens(root, root.tokens ^ (kClearsFirst ? from : to));
    root.tokens ^= kClearsFirst ? to : from;
    memory.persist(&root.tokens, 8);  // crash in old_token_cleared_first, two_tokens
  }
};

// Between the two stores the key is gone.
template <bool kRepaired>
using OldTokenClearedFirst = MovedToken<kRepaired, true>;

// Between the two stores the key is there twice.
template <bool kRepaired>
using TwoTokens = MovedToken<kRepaired, false>;

// ---- expansion: capacity and table change together, or not at all

constexpr uint64_t kTables = 3;

struct Growing {
  alignas(64) uint64_t capacity;
  alignas(64) uint64_t table;
  struct Table {
    alignas(64) uint64_t capacity;
    alignas(64) std::array<uint64_t, 16> keys;  // 0: free
  } tables[kTables];
};

// Lookups divide by the new capacity and look into the old table. The twin keeps a table's capacity
// with it, so that one word changes both.
template <bool kRepaired>
class CapacityBeforeTable : public RootProgram<Growing> {
 public:
  uint32_t operation_count() const override { return 6; }

 protected:
  void set_up(Growing& root) override {
    for (uint64_t i = 0; i < kTables; ++i) root.tables[i].capacity = uint64_t{4} << i;
    root.capacity = 4;
  }
  void perform(Growing& root, uint32_t number) override {
    while (!put(root.tables[root.table], capacity(root), key_of(number))) grow(root);
  }
  std::string restore(Growing& root) override {
    std::string text;
    for (uint32_t i = 0; i < operation_count(); ++i) {
      const uint64_t key = key_of(i);
      if (root.tables[root.table].keys[key % capacity(root)] == key)
        text += fmt::format("{} ", key);
    }
    return text;
  }

 private:
  static uint64_t key_of(uint32_t number) { return 1 + 3 * number; }
  static uint64_t capacity(const Growing& root) {
    return kRepaired ? root.tables[root.table].capacity : root.capacity;
  }
  static bool put(Growing::Table& table, uint64_t capacity, uint64_t key) {
    uint64_t& slot = table.keys[key % capacity];
    if (slot != 0) return false;
    slot = key;
    memory.persist(&slot, sizeof slot);
    return true;
  }
  static void grow(Growing& root) {
    const uint64_t next = root.table + 1;
    if (next == kTables) damaged("the table is full");
    Growing::Table& to = root.tables[next];
    for (const uint64_t key : root.tables[root.table].keys) {
      if (key != 0) to.keys[key % to.capacity] = key;
    }
    memory.persist(&to.keys, sizeof to.keys);
    root.capacity = to.capacity;
    memory.persist(&root.capacity, sizeof root.capacity);
    root.table = next;
    memory.persist(&root.table, sizeof root.table);  // crash in capacity_before_table
  }
};

// ---- a split: the half that goes, and the half that stays

struct Segments {
  alignas(64) uint64_t directory[2];
  struct Segment {
    alignas(64) uint64_t depth;  // so many low bits of its keys are those of its number
    uint64_t keys[6];            // 0: free; those that do not belong here are as good as free
  } segments[2];
};

bool belongs(const Segments::Segment& segment, uint64_t number, uint64_t key) {
  return key != 0 && (segment.depth == 0 || key % 2 == number);
}

// The half that goes does not count in the old segment any more, and no entry leads to its new
// place.
template <bool kRepaired>
class DepthBeforeDirectory : public RootProgram<Segments> {
 public:
  uint32_t operation_count() const override { return 8; }

 protected:
  void perform(Segments& root, uint32_t number) override {
    while (!put(root, 1 + number)) split(root);
  }
  std::string restore(Segments& root) override {
    if (kRepaired && root.directory[1] == 1) set_depth(root);
    std::string text;
    for (uint64_t key = 1; key <= operation_count(); ++key) {
      const uint64_t at = root.directory[key % 2];
      const auto& keys = root.segments[at].keys;
      const bool found = std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
      if (found && belongs(root.segments[at], at, key)) text += fmt::format("{} ", key);
    }
    return text;
  }

 private:
  static bool put(Segments& root, uint64_t key) {
    const uint64_t at = root.directory[key % 2];
    for (uint64_t& slot : root.segments[at].keys) {
      if (belongs(root.segments[at], at, slot)) continue;
      slot = key;
      memory.persist(&slot, sizeof slot);
      return true;
    }
    return false;
  }
  static void set_depth(Segments& root) {
    root.segments[0].depth = 1;
    memory.persist(&root.segments[0].depth, sizeof root.segments[0].depth);
  }
  static void split(Segments& root) {
    if (root.segments[0].depth == 1) damaged("the table is full");
    auto& to = root.segments[1];
    to.depth = 1;
    std::copy(std::begin(root.segments[0].keys), std::end(root.segments[0].keys), to.keys);
    memory.persist(&to, sizeof to);
    if (!kRepaired) set_depth(root);
    root.directory[1] = 1;
    memory.persist(&root.directory[1], 8);  // crash in depth_before_directory
    if (kRepaired) set_depth(root);
  }
};

// ---- a value that means "somebody is at work here"

constexpr uint64_t kSentinel = ~uint64_t{0};

struct Bucket {
  alignas(64) Slot slots[4];
};

// Whatever evicts the line makes the sentinel durable; after a crash nobody takes the slot, nobody
// frees it. The twin's recovery does.
template <bool kRepaired>
class PersistentSentinel : public RootProgram<Bucket> {
 public:
  uint32_t operation_count() const override { return 3; }
  uint32_t further_count() const override { return 4; }

 protected:
  void perform(Bucket& root, uint32_t number) override {
    if (live(root) < 4) insert(root, 1 + number);  // the bucket takes as many as it has slots
  }
  std::string restore(Bucket& root) override {
    std::string text;
    for (Slot& slot : root.slots) {
      if (kRepaired && slot.key == kSentinel) {
        slot.key = 0;
        memory.persist(&slot.key, sizeof slot.key);
      }
      if (slot.key != 0 && slot.key != kSentinel) text += fmt::format("{} ", slot.key);
    }
    return text;
  }

 private:
  static int64_t live(const Bucket& root) {
    return std::count_if(std::begin(root.slots), std::end(root.slots),
                         [](const Slot& slot) { return slot.key != 0 && slot.key != kSentinel; });
  }
  static void insert(Bucket& root, uint64_t key) {
    for (Slot& slot : root.slots) {
      if (slot.key != 0) continue;
      pm::store_release(slot.key, kSentinel);
      pm::store_release(slot.value, key + 10);
      pm::store_release(slot.key, key);
      memory.persist(&slot, sizeof slot);  // crash in persistent_sentinel
      return;
    }
    damaged("no slot is free, but the bucket is not full");
  }
};

// ---- chains

struct Chain {
  struct Bucket {
    alignas(64) uint64_t keys[3];
    uint64_t next;  // number of the next bucket; 0: none
  } buckets[4];
};

// The link is flushed, the bucket that it leads to is not.
template <bool kRepaired>
class ChainedBucketUnflushed : public RootProgram<Chain> {
 public:
  uint32_t operation_count() const override { return 8; }

 protected:
  void perform(Chain& root, uint32_t number) override {
    const uint64_t key = 1 + number;
    uint64_t last = 0;
    while (root.buckets[last].next != 0) last = root.buckets[last].next;
    for (uint64_t& slot : root.buckets[last].keys) {
      if (slot != 0) continue;
      slot = key;
      memory.persist(&slot, sizeof slot);
      return;
    }
    Chain::Bucket& chained = root.buckets[last + 1];
    chained.keys[0] = key;  // lost in chained_bucket_unflushed
    if (kRepaired) memory.persist(&chained, sizeof chained);
    root.buckets[last].next = last + 1;
    memory.persist(&root.buckets[last].next, 8);
  }
  std::string restore(Chain& root) override {
    std::string text;
    for (uint64_t at = 0;; at = root.buckets[at].next) {
      for (const uint64_t key : root.buckets[at].keys) {
        if (key != 0) text += fmt::format("{} ", key);
      }
      if (root.buckets[at].next == 0) return text;
    }
  }
};

// ---- what a resize leaves behind

struct Resized {
  alignas(64) uint64_t old;  // a table to be freed; 0: none. In one line with:
  uint64_t table;
  struct {
    alignas(64) uint64_t count;
    uint64_t blocks[7];
  } free;
};

// Recovery frees the old table as the note says, which had been done: the next two allocations get
// the same block. The twin's looks first.
template <bool kRepaired>
class OldTableFreedTwice : public RootProgram<Resized> {
 public:
  uint32_t operation_count() const override { return 3; }
  std::string operation_text(uint32_t number) const override {
    return fmt::format("resize({})", number);
  }

 protected:
  void set_up(Resized& root) override { root.table = 1; }
  void perform(Resized& root, uint32_t /*number*/) override {
    pm::store_release(root.old, root.table);
    pm::store_release(root.table, root.table + 1);
    memory.persist(&root, 16);
    release(root);
  }
  std::string restore(Resized& root) override {
    const uint64_t* first = root.free.blocks;
    const bool known =
        std::find(first, first + root.free.count, root.old) != first + root.free.count;
    if (root.old == root.table || (kRepaired && known)) {
      forget(root);
    } else if (root.old != 0) {
      release(root);
    }
    return fmt::format("table {}, free: {}", root.table,
                       fmt::join(first, first + root.free.count, " "));
  }

 private:
  static void release(Resized& root) {
    root.free.blocks[root.free.count] = root.old;
    memory.persist(&root.free.blocks[root.free.count], 8);
    ++root.free.count;
    memory.persist(&root.free.count, sizeof root.free.count);
    forget(root);
  }
  static void forget(Resized& root) {
    root.old = 0;
    memory.persist(&root.old, sizeof root.old);  // crash in old_table_freed_twice
  }
};

}  // namespace

void add_hash_tables(std::vector<Entry>& entries) {
  const char* file = "hash_tables.cc";
  entries.push_back(make_entry<TokenBeforeRecord>("token_before_record", file));
  entries.push_back(make_entry<OldTokenClearedFirst>("old_token_cleared_first", file));
  entries.push_back(make_entry<TwoTokens>("two_tokens", file));
  entries.push_back(make_entry<CapacityBeforeTable>("capacity_before_table", file));
  entries.push_back(make_entry<DepthBeforeDirectory>("depth_before_directory", file));
  entries.push_back(make_entry<PersistentSentinel>("persistent_sentinel", file));
  entries.push_back(make_entry<ChainedBucketUnflushed>("chained_bucket_unflushed", file));
  entries.push_back(make_entry<OldTableFreedTwice>("old_table_freed_twice", file));
}

}  // namespace perdure::crash_gallery
