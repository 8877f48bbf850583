// What was taken for one store and is several: memory promises aligned words of eight bytes, and no
// more.
#include <emmintrin.h>
#include <fmt/core.h>

#include "crash_gallery/gallery.h"

namespace perdure::crash_gallery {
namespace {

struct Bank {
  // Of the twin: both balances in the halves of one word.
  alignas(64) uint64_t both;
  struct Account {
    alignas(64) uint64_t balance;
  } first, second;
};

constexpr uint64_t kMoney = 100;

// A transfer changes two words, each durable in its turn. Between them there is money too little.
template <bool kRepaired>
class TwoWords : public RootProgram<Bank> {
 public:
  uint32_t operation_count() const override { return 4; }

 protected:
  void set_up(Bank& root) override {
    root.first.balance = kMoney;
    root.both = kMoney;
  }
  void perform(Bank& root, uint32_t number) override {
    const uint64_t amount = 10 + number;
    if (kRepaired) {
      root.both = root.both - amount + (amount << 32);
      memory.persist(&root.both, sizeof root.both);
      return;
    }
    root.first.balance -= amount;
    memory.persist(&root.first, sizeof root.first);
    root.second.balance += amount;  // lost in two_words
    memory.persist(&root.second, sizeof root.second);
  }
  std::string restore(Bank& root) override {
    const uint64_t first = kRepaired ? root.both & 0xffffffff : root.first.balance;
    const uint64_t second = kRepaired ? root.both >> 32 : root.second.balance;
    if (first + second != kMoney) damaged(fmt::format("{} + {} is wrong", first, second));
    return fmt::format("{} {}", first, second);
  }
};

struct Slots {
  struct Slot {
    alignas(16) uint64_t key;  // 0: empty
    uint64_t value;
  } all[4];
};

// Key and value go in with one instruction of 16 bytes, which is atomic for other threads (on most
// processors) and for memory is not: the key may arrive without its value.
template <bool kRepaired>
class TornStore : public RootProgram<Slots> {
 public:
  uint32_t operation_count() const override { return 4; }

 protected:
  void perform(Slots& root, uint32_t number) override {
    Slots::Slot& slot = root.all[number];
    const uint64_t key = 5 + number;
    const uint64_t value = 100 + number;
    if (kRepaired) {
      // One line: the value cannot come after the key that reveals it.
      pm::store_relaxed(slot.value, value);
      pm::store_release(slot.key, key);
    } else {
      const __m128i pair = _mm_set_epi64x(static_cast<int64_t>(value), static_cast<int64_t>(key));
      _mm_store_si128(reinterpret_cast<__m128i*>(&slot), pair);  // lost in torn_store
    }
    memory.persist(&slot, sizeof slot);
  }
  std::string restore(Slots& root) override {
    std::string text;
    for (const auto& slot : root.all) {
      if (slot.key != 0) text += fmt::format("{}={} ", slot.key, slot.value);
    }
    return text;
  }
};

struct Orders {
  struct Order {
    alignas(64) uint64_t valid;
    uint64_t items[7];
    uint64_t total;  // in the second line
  } all[4];
};

// The record has two lines and its valid bit in the first. One flush of both and one fence: but the
// first line may arrive alone.
template <bool kRepaired>
class ValidInFirstLine : public RootProgram<Orders> {
 public:
  uint32_t operation_count() const override { return 4; }

 protected:
  void perform(Orders& root, uint32_t number) override {
    Orders::Order& order = root.all[number];
    order.items[0] = 30 + number;
    order.items[6] = 40 + number;
    order.total = 70 + 2 * number;  // lost in valid_in_first_line
    if (kRepaired) memory.persist(&order, sizeof order);
    pm::store_release(order.valid, uint64_t{1});
    memory.persist(&order, sizeof order);
  }
  std::string restore(Orders& root) override {
    std::string text;
    for (const auto& order : root.all) {
      if (order.valid == 0) continue;
      if (order.items[0] + order.items[6] != order.total) damaged("a total is wrong");
      text += fmt::format("{} ", order.total);
    }
    return text;
  }
};

}  // namespace

void add_atomicity(std::vector<Entry>& entries) {
  entries.push_back(make_entry<TwoWords>("two_words", "atomicity.cc"));
  entries.push_back(make_entry<TornStore>("torn_store", "atomicity.cc"));
  entries.push_back(make_entry<ValidInFirstLine>("valid_in_first_line", "atomicity.cc"));
}

}  // namespace perdure::crash_gallery
