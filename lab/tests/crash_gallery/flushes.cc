// Stores that no flush covers. The commonest fault of all, since the program works: the caches hand
// out what memory does not hold, and eviction mostly writes it back before anybody pulls the plug.
#include <fmt/core.h>

#include "crash_gallery/gallery.h"

namespace perdure::crash_gallery {
namespace {

struct Register {
  alignas(64) uint64_t word;
};

struct Registers {
  Register all[4];
};

std::string text_of(const Registers& root) {
  return fmt::format("{} {} {} {}", root.all[0].word, root.all[1].word, root.all[2].word,
                     root.all[3].word);
}

// A fence was taken for all it needs. It orders flushes; without one it orders nothing.
template <bool kRepaired>
class MissingFlush : public RootProgram<Registers> {
 public:
  uint32_t operation_count() const override { return 6; }

 protected:
  void perform(Registers& root, uint32_t number) override {
    uint64_t& word = root.all[number % 4].word;
    word = 100 + number;  // lost in missing_flush
    if (kRepaired) memory.flush(&word, sizeof word);
    memory.fence();
  }
  std::string restore(Registers& root) override { return text_of(root); }
};

struct Account {
  alignas(64) uint64_t number;
  uint64_t balance;
  uint64_t changes;
};

struct Accounts {
  Account all[4];
};

// The account is changed in a copy and stored back; what is flushed is the copy, on the stack.
template <bool kRepaired>
class StackCopyFlushed : public RootProgram<Accounts> {
 public:
  uint32_t operation_count() const override { return 6; }

 protected:
  void perform(Accounts& root, uint32_t number) override {
    Account& account = root.all[number % 4];
    Account changed = account;
    changed.number = number % 4;
    changed.balance += 10 + number;
    account.changes = changed.changes;
    pm::store_release(account.balance, changed.balance);  // lost in stack_copy_flushed
    const void* target = kRepaired ? &account : &changed;
    memory.persist(target, sizeof(Account));
  }
  std::string restore(Accounts& root) override {
    std::string text;
    for (const Account& account : root.all) text += fmt::format("{} ", account.balance);
    return text;
  }
};

struct Letter {
  alignas(64) uint64_t words[15];
  uint64_t length;
};
static_assert(sizeof(Letter) == 128);

struct Letters {
  alignas(64) uint64_t count;
  Letter all[4];
};

// `sizeof letter` is the size of the pointer: the second line of the letter is never flushed.
template <bool kRepaired>
class FirstLineOnly : public RootProgram<Letters> {
 public:
  uint32_t operation_count() const override { return 4; }

 protected:
  void perform(Letters& root, uint32_t number) override {
    Letter* letter = &root.all[number];
    for (uint64_t i = 0; i < 15; i += 7) letter->words[i] = number + i + 1;
    letter->length = 15;  // lost in first_line_only
    memory.persist(letter, kRepaired ? sizeof *letter : sizeof letter);
    root.count = number + 1;
    memory.persist(&root.count, sizeof root.count);
  }
  std::string restore(Letters& root) override {
    std::string text;
    for (uint64_t i = 0; i < root.count; ++i) {
      const Letter& letter = root.all[i];
      text += fmt::format("[{} {} {} of {}]", letter.words[0], letter.words[7], letter.words[14],
                          letter.length);
    }
    return text;
  }
};

// The flush was moved up to win time for it. What is stored after it stays in the cache.
template <bool kRepaired>
class FlushedTooEarly : public RootProgram<Accounts> {
 public:
  uint32_t operation_count() const override { return 4; }

 protected:
  void perform(Accounts& root, uint32_t number) override {
    Account& account = root.all[number % 4];
    account.number = number + 1;
    if (!kRepaired) memory.flush(&account, sizeof account);
    pm::store_release(account.balance, uint64_t{100} + number);  // lost in flushed_too_early
    if (kRepaired) memory.flush(&account, sizeof account);
    memory.fence();
  }
  std::string restore(Accounts& root) override {
    std::string text;
    for (const Account& account : root.all) text += fmt::format("{} ", account.balance);
    return text;
  }
};

}  // namespace

void add_flushes(std::vector<Entry>& entries) {
  entries.push_back(make_entry<MissingFlush>("missing_flush", "flushes.cc"));
  entries.push_back(make_entry<StackCopyFlushed>("stack_copy_flushed", "flushes.cc"));
  entries.push_back(make_entry<FirstLineOnly>("first_line_only", "flushes.cc"));
  entries.push_back(make_entry<FlushedTooEarly>("flushed_too_early", "flushes.cc"));
}

}  // namespace perdure::crash_gallery
