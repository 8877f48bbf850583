// Recoveries that believe what is not durable, or that do not bear being interrupted themselves.
#include <fmt/core.h>

#include "crash_gallery/gallery.h"

namespace perdure::crash_gallery {
namespace {

struct Cell {
  alignas(64) uint64_t lock;
  uint64_t value;
};

// The lock shares a line with the data and so is made durable with it, locked. Reading works after
// a crash; the first to write waits for ever. The twin's recovery opens all locks.
template <bool kRepaired>
class TrustedLock : public RootProgram<Cell> {
 public:
  uint32_t operation_count() const override { return 3; }
  uint32_t further_count() const override { return 1; }
  std::string operation_text(uint32_t number) const override {
    return fmt::format("set({})", 500 + number);
  }

 protected:
  void perform(Cell& root, uint32_t number) override {
    acquire(root.lock);
    root.value = 500 + number;
    memory.persist(&root.value, sizeof root.value);  // crash in trusted_lock
    pm::store_release(root.lock, uint64_t{0});
  }
  std::string restore(Cell& root) override {
    if (kRepaired) root.lock = 0;
    return fmt::format("{}", root.value);
  }

 private:
  static void acquire(uint64_t& lock) {
    for (int tries = 0; tries < 1000; ++tries) {
      uint64_t open = 0;
      if (std::atomic_ref<uint64_t>(lock).compare_exchange_strong(open, 1)) return;
    }
    damaged("the lock does not open");
  }
};

struct Records {
  alignas(64) uint64_t count;
  struct Record {
    alignas(64) uint64_t value;  // 0: none
  } all[8];
};

// The number of records was kept in persistent memory for convenience and is never flushed;
// recovery takes it for true. The twin counts.
template <bool kRepaired>
class TrustedCounter : public RootProgram<Records> {
 public:
  uint32_t operation_count() const override { return 5; }

 protected:
  void perform(Records& root, uint32_t number) override {
    Records::Record& record = root.all[root.count];
    record.value = 9 + number;
    memory.persist(&record, sizeof record);
    root.count += 1;  // lost in trusted_counter
  }
  std::string restore(Records& root) override {
    if (kRepaired) {
      root.count = 0;
      while (root.count < 8 && root.all[root.count].value != 0) ++root.count;
    }
    std::string text;
    for (uint64_t i = 0; i < root.count; ++i) text += fmt::format("{} ", root.all[i].value);
    return text;
  }
};

constexpr uint64_t kEntries = 8;

struct Counters {
  struct Counter {
    alignas(64) uint64_t word;  // the value below, the last entry that is in it above
  } all[2];
  alignas(64) uint64_t size;
  struct Entry {
    alignas(64) uint64_t counter;
    uint64_t amount;
    uint64_t sequence;
  } log[kEntries];
};

constexpr uint64_t value_of(uint64_t word) { return word & 0xffffffff; }
constexpr uint64_t sequence_of(uint64_t word) { return word >> 32; }

// Operations append to a log; recovery adds the log's amounts to the counters. Once, that is right.
// The twin's counters remember, in the same word, how far they have come.
template <bool kRepaired, bool kEmpties>
class Replay : public RootProgram<Counters> {
 public:
  uint32_t operation_count() const override { return 3; }

 protected:
  void perform(Counters& root, uint32_t number) override {
    Counters::Entry& entry = root.log[root.size];
    entry.counter = number % 2;
    entry.amount = 7 + number;
    entry.sequence = next_sequence(root);
    memory.persist(&entry, sizeof entry);
    root.size += 1;
    memory.persist(&root.size, sizeof root.size);
  }
  std::string restore(Counters& root) override {
    for (uint64_t i = 0; i < root.size; ++i) {
      const Counters::Entry& entry = root.log[i];
      uint64_t& word = root.all[entry.counter].word;
      if (kRepaired && sequence_of(word) >= entry.sequence) continue;
      word = (value_of(word) + entry.amount) | (entry.sequence << 32);
      memory.persist(&word, sizeof word);  // crash in recovery_not_idempotent, log_left_full
    }
    if (kEmpties) {
      root.size = 0;
      memory.persist(&root.size, sizeof root.size);
    }
    return fmt::format("{} {}", value_of(root.all[0].word), value_of(root.all[1].word));
  }

 private:
  static uint64_t next_sequence(const Counters& root) {
    if (root.size > 0) return root.log[root.size - 1].sequence + 1;
    return std::max(sequence_of(root.all[0].word), sequence_of(root.all[1].word)) + 1;
  }
};

// Recovery empties the log in the end. Interrupted before that it adds everything again.
template <bool kRepaired>
using NotIdempotent = Replay<kRepaired, true>;

// Recovery leaves the log to be overwritten some day. The next one adds everything again.
template <bool kRepaired>
using LogLeftFull = Replay<kRepaired, false>;

}  // namespace

void add_recovery(std::vector<Entry>& entries) {
  entries.push_back(make_entry<TrustedLock>("trusted_lock", "recovery.cc"));
  entries.push_back(make_entry<TrustedCounter>("trusted_counter", "recovery.cc"));
  entries.push_back(make_entry<NotIdempotent>("recovery_not_idempotent", "recovery.cc"));
  entries.push_back(make_entry<LogLeftFull>("log_left_full", "recovery.cc"));
}

}  // namespace perdure::crash_gallery
