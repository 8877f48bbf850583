// Journals: what makes several words change together, if it is there before and not gone too soon.
#include <fmt/core.h>

#include "crash_gallery/gallery.h"

namespace perdure::crash_gallery {
namespace {

constexpr uint64_t kMoney = 100;

struct Bank {
  struct Line {
    alignas(64) uint64_t word;
  } first, second;
  // What both held (undo) or are to hold (redo), while `active`.
  struct Journal {
    alignas(64) uint64_t first;
    uint64_t second;
    alignas(64) uint64_t active;
  } journal;
};

void store(uint64_t& word, uint64_t value) {
  word = value;
  memory.persist(&word, sizeof word);
}

void fill(Bank::Journal& journal, uint64_t first, uint64_t second) {
  journal.first = first;
  journal.second = second;
  memory.persist(&journal, sizeof journal.first + sizeof journal.second);
}

// Undo and redo differ in when the journal is filled, not in what is done with it afterwards.
std::string roll(Bank& root) {
  if (root.journal.active != 0) {
    store(root.first.word, root.journal.first);
    store(root.second.word, root.journal.second);
    store(root.journal.active, 0);
  }
  if (root.first.word + root.second.word != kMoney) {
    damaged(fmt::format("{} + {} is wrong", root.first.word, root.second.word));
  }
  return fmt::format("{} {}", root.first.word, root.second.word);
}

// The old values are written down, but the first word is changed before that is known to be
// durable.
template <bool kRepaired>
class ChangeBeforeUndo : public RootProgram<Bank> {
 public:
  uint32_t operation_count() const override { return 3; }

 protected:
  void set_up(Bank& root) override { root.first.word = kMoney; }
  void perform(Bank& root, uint32_t number) override {
    const uint64_t amount = 10 + number;
    fill(root.journal, root.first.word, root.second.word);
    root.journal.active = 1;  // lost in change_before_undo
    memory.flush(&root.journal.active, sizeof root.journal.active);
    if (kRepaired) memory.fence();
    root.first.word -= amount;
    memory.persist(&root.first, sizeof root.first);
    store(root.second.word, root.second.word + amount);
    store(root.journal.active, 0);
  }
  std::string restore(Bank& root) override { return roll(root); }
};

// The new values are written down and put in their places; the journal is closed before the second
// of them is durable there.
template <bool kRepaired>
class JournalClosedEarly : public RootProgram<Bank> {
 public:
  uint32_t operation_count() const override { return 3; }

 protected:
  void set_up(Bank& root) override { root.first.word = kMoney; }
  void perform(Bank& root, uint32_t number) override {
    const uint64_t amount = 10 + number;
    fill(root.journal, root.first.word - amount, root.second.word + amount);
    store(root.journal.active, 1);
    root.first.word = root.journal.first;
    memory.flush(&root.first, sizeof root.first);
    root.second.word = root.journal.second;  // lost in journal_closed_early
    memory.flush(&root.second, sizeof root.second);
    if (kRepaired) memory.fence();
    store(root.journal.active, 0);
  }
  std::string restore(Bank& root) override { return roll(root); }
};

}  // namespace

void add_journals(std::vector<Entry>& entries) {
  entries.push_back(make_entry<ChangeBeforeUndo>("change_before_undo", "journals.cc"));
  entries.push_back(make_entry<JournalClosedEarly>("journal_closed_early", "journals.cc"));
}

}  // namespace perdure::crash_gallery
