// What a benchmark does: which operation comes at each place, and on which record.
//
// The stream is a pure function of the parameters and the seed: operation i is computed from i, not
// from the operations before it. So any number of threads can share one stream, and every structure
// and every thread count performs the same operations.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lab/permutation.h"

namespace perdure::lab {

enum class OperationType : uint8_t { kInsert, kLookup, kUpdate, kUpsert, kRemove };
inline constexpr size_t kOperationTypes = 5;

const char* to_string(OperationType type) noexcept;

// The share of each operation, such as "lookup=.5,update=.5".
struct Mix {
  std::vector<std::pair<OperationType, double>> shares;  // positive, summing to 1

  // Reads "insert", "insert=1" or "lookup=.9,update=.1"; shares are relative to their sum. Throws
  // Error(kInvalidArgument) on unknown operations, repeated ones and shares that are not positive.
  static Mix parse(std::string_view text);

  // "lookup" for a single operation, else "lookup=0.9,update=0.1".
  std::string name() const;
};

enum class KeyOrder : uint8_t {
  kMixed,       // record numbers through a bijective 64-bit mixer: uniform over the key space
  kSequential,  // record numbers as they are
};

const char* to_string(KeyOrder order) noexcept;
KeyOrder parse_key_order(std::string_view text);  // Throws Error(kInvalidArgument).

struct Operation {
  OperationType type;
  uint64_t record;  // record number; key_of() makes the key
};

// The stream of operations of one phase over records 0..records-1 that are there at its start.
// Inserts take fresh records, each remove another one of those that are there. Lookups, updates and
// upserts draw uniformly from the records that no operation of this stream removes. So on a correct
// structure every operation succeeds, whatever the interleaving of threads.
class OperationPlan {
 public:
  // Throws Error(kInvalidArgument) when the mix cannot succeed on so few records.
  OperationPlan(const Mix& mix, uint64_t records, uint64_t operations, uint64_t seed,
                KeyOrder order);

  uint64_t operations() const { return operations_; }
  uint64_t count_of(OperationType type) const;

  // The operation at this place of the stream, below operations().
  Operation at(uint64_t place) const {
    const uint64_t cycle = place / kCycle;
    const Slot slot = cycle_[place % kCycle];
    const uint64_t rank = cycle * per_cycle_[static_cast<size_t>(slot.type)] + slot.rank;
    switch (slot.type) {
      case OperationType::kInsert:
        return {slot.type, records_ + rank};
      case OperationType::kRemove:
        return {slot.type, order_of_removal_.at(rank)};
      default:
        return {slot.type, draw(place)};
    }
  }

  // A record that this stream leaves in place, drawn uniformly. Needs that there is one.
  uint64_t survivor(uint64_t place) const { return draw(place); }
  bool has_survivors() const { return survivors_ > 0; }

  // The key of a record, as a word.
  uint64_t key_of(uint64_t record) const {
    return order_ == KeyOrder::kSequential ? record : mix_word(record ^ key_salt_);
  }

 private:
  // Types are laid out in cycles of this many operations, with exact counts in seeded order. That
  // makes the number of inserts and removes before any place a multiplication.
  static constexpr uint64_t kCycle = 1000;

  __extension__ using Wide = unsigned __int128;

  struct Slot {
    OperationType type;
    uint16_t rank;  // operations of the same type earlier in the cycle
  };

  void lay_out_cycle(const Mix& mix, uint64_t seed);
  void check_enough_records() const;

  uint64_t draw(uint64_t place) const {
    const uint64_t word = mix_word(place ^ draw_salt_);
    const auto index = static_cast<uint64_t>((Wide{word} * survivors_) >> 64);
    return removed_ == 0 ? index : order_of_removal_.at(removed_ + index);
  }

  uint64_t records_;
  uint64_t operations_;
  KeyOrder order_;
  uint64_t key_salt_;
  uint64_t draw_salt_;
  std::array<Slot, kCycle> cycle_{};
  std::array<uint64_t, kOperationTypes> per_cycle_{};
  uint64_t removed_ = 0;    // records that the stream removes
  uint64_t survivors_ = 0;  // records that it leaves
  Permutation order_of_removal_;
};

}  // namespace perdure::lab
