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

#include "common/permutation.h"
#include "lab/bench/distribution.h"

namespace perdure::lab {

enum class OperationType : uint8_t {
  kInsert,
  kLookup,
  kUpdate,
  kUpsert,
  kRemove,
  kScan,
  kReadModifyWrite,  // a lookup, then an update of the same record
  kScanBack,         // in descending order
};
inline constexpr size_t kOperationTypes = 8;
constexpr bool is_scan(OperationType type) {
  return type == OperationType::kScan || type == OperationType::kScanBack;
}

const char* to_string(OperationType type) noexcept;  // the last ones are "rmw" and "scan-back"

// The share of each operation, such as "lookup=.5,update=.5".
struct Mix {
  std::vector<std::pair<OperationType, double>> shares;  // positive, summing to 1

  // Reads "insert", "insert=1" or "lookup=.9,update=.1"; shares are relative to their sum. Throws
  // Error(kInvalidArgument) on unknown operations, repeated ones and shares that are not positive.
  static Mix parse(std::string_view text);

  // "lookup" for a single operation, else "lookup=0.9,update=0.1".
  std::string name() const;
  double share_of(OperationType type) const;
  bool has_scans() const {
    return share_of(OperationType::kScan) + share_of(OperationType::kScanBack) > 0;
  }
};

// How many records a scan asks for: uniformly between the two, both included.
struct ScanLength {
  uint32_t least = 100;
  uint32_t most = 100;

  // Reads "100" or "1-100". Throws Error(kInvalidArgument).
  static ScanLength parse(std::string_view text);
};

// What is done to which records, under a name.
struct Workload {
  std::string name;
  Mix mix;
  Distribution distribution = {};
  ScanLength scan_length = {};

  // One that is called as its mix is.
  static Workload of(const Mix& mix) { return {.name = mix.name(), .mix = mix}; }
};

enum class KeyOrder : uint8_t {
  kMixed,       // record numbers through a bijective 64-bit mixer: uniform over the key space
  kSequential,  // record numbers as they are
  kPibench,     // record numbers times 2^64 / golden ratio, as PiBench makes its keys
  kDense,       // n records have about the first n numbers, in random order
  kClustered,   // runs of kClusterKeys neighbours at random places, in random order
};

const char* to_string(KeyOrder order) noexcept;
KeyOrder parse_key_order(std::string_view text);  // Throws Error(kInvalidArgument).

struct Operation {
  OperationType type;
  uint64_t record;      // record number; key_of() makes the key
  uint32_t length = 0;  // of scans: records asked for
};

// The stream of operations of one phase over records 0..records-1 that are there at its start.
// Inserts take fresh records, each remove another one of those that are there. The others draw from
// the records that no operation of this stream removes. So on a correct structure every operation
// succeeds, whatever the interleaving of threads; see dependence() for the one exception.
//
// Ranks of zipfian and self-similar distributions are scattered over the records, so that the
// frequent ones are neither neighbours in the key space nor inserted together.
class OperationPlan {
 public:
  // Throws Error(kInvalidArgument) when the workload cannot succeed on so few records.
  OperationPlan(const Workload& workload, uint64_t records, uint64_t operations, uint64_t seed,
                KeyOrder order);
  OperationPlan(const Mix& mix, uint64_t records, uint64_t operations, uint64_t seed,
                KeyOrder order)
      : OperationPlan(Workload::of(mix), records, operations, seed, order) {}

  uint64_t operations() const { return operations_; }
  uint64_t count_of(OperationType type) const;

  // The operation at this place of the stream, below operations().
  Operation at(uint64_t place) const {
    const uint64_t cycle = place / kCycle;
    const Slot slot = cycle_[place % kCycle];
    switch (slot.type) {
      case OperationType::kInsert:
        return {slot.type, records_ + cycle * per_cycle_[0] + slot.inserts};
      case OperationType::kRemove:
        return {slot.type, order_of_removal_.at(cycle * removes_per_cycle_ + slot.removes)};
      case OperationType::kScan:
      case OperationType::kScanBack:
        return {slot.type, draw(place), length_of_scan(place)};
      default:
        return {slot.type, draw(place)};
    }
  }

  // The latest records are those whose inserts are certainly done: the operation at `place` relies
  // on all operations before this place to be done, and on no others. 0 for other distributions.
  // The distance is the same for any number of threads, so that the operations are; threads that
  // take blocks of kBlock operations in turn seldom have to wait for it.
  uint64_t dependence(uint64_t place) const {
    if (!has_dependences() || place < kLatestLag) return 0;
    return (place - kLatestLag) / kBlock * kBlock;
  }
  bool has_dependences() const {
    return distribution_.kind == Distribution::Kind::kLatest && inserts_ > 0;
  }
  static constexpr uint64_t kBlock = 64;

  // A number that the operation at this place has, and hardly any other. Their sum over the
  // operations that were carried out, in any order, tells whether two runs did the same: see
  // stream_hash().
  static uint64_t fingerprint(uint64_t place, const Operation& operation) {
    uint64_t word = place * 0x9a6c1f4e83d2b575ULL + operation.record;
    word ^= (uint64_t{operation.length} << 8) + static_cast<uint64_t>(operation.type);
    word *= 0xe1b93d5a7c60f4a7ULL;
    return word ^ (word >> 32);
  }
  // Of the sum of fingerprints; the way from records to keys goes into it.
  uint64_t stream_hash(uint64_t sum_of_fingerprints) const {
    return mix_word(sum_of_fingerprints ^ mix_word(key_of(1)));
  }

  // A record that this stream leaves in place, drawn uniformly. Needs that there is one.
  uint64_t survivor(uint64_t place) const { return uniform(mix_word(place ^ draw_salt_)); }
  bool has_survivors() const { return survivors_ > 0; }

  // The key of a record, as a word.
  uint64_t key_of(uint64_t record) const {
    if (order_ == KeyOrder::kMixed) [[likely]]
      return mix_word(record ^ key_salt_);
    if (order_ == KeyOrder::kSequential) return record;
    if (order_ == KeyOrder::kPibench) return (record + 1) * kGoldenRatio;  // it counts from 1
    const uint64_t dense = scatter_among_as_large(record, key_salt_);
    if (order_ == KeyOrder::kDense) return dense;
    const uint64_t cluster = mix_low_bits(dense / kClusterKeys, 64 - kClusterBits, ~key_salt_);
    return cluster << kClusterBits | dense % kClusterKeys;
  }
  static constexpr unsigned kClusterBits = 10;
  static constexpr uint64_t kClusterKeys = uint64_t{1} << kClusterBits;

 private:
  // Types are laid out in cycles of this many operations, with exact counts in seeded order. That
  // makes the number of inserts and removes before any place a multiplication.
  static constexpr uint64_t kCycle = 1000;

  __extension__ using Wide = unsigned __int128;

  // How far the latest records stay behind the operations that insert them, in operations.
  static constexpr uint64_t kLatestLag = 4096;
  static constexpr uint64_t kGoldenRatio = 11400714819323198393ULL;  // of 2^64, a prime

  struct Slot {
    OperationType type;
    uint16_t inserts;  // earlier in the cycle
    uint16_t removes;
  };

  void lay_out_cycle(const Mix& mix, uint64_t seed);
  void check_enough_records() const;
  void check_distribution() const;

  uint64_t draw(uint64_t place) const {
    const uint64_t word = mix_word(place ^ draw_salt_);
    switch (distribution_.kind) {
      case Distribution::Kind::kUniform:
        return uniform(word);
      case Distribution::Kind::kSequential:
        return surviving(place % survivors_);
      case Distribution::Kind::kLatest:
        return latest(place, word);
      default:
        return surviving(scatter_.at(ranks_.draw(word)));
    }
  }

  uint64_t uniform(uint64_t word) const {
    return surviving(static_cast<uint64_t>((Wide{word} * survivors_) >> 64));
  }

  uint64_t surviving(uint64_t index) const {
    return removed_ == 0 ? index : order_of_removal_.at(removed_ + index);
  }

  uint64_t latest(uint64_t place, uint64_t word) const {
    const uint64_t known = records_ + inserts_before(dependence(place));
    uint64_t rank = ranks_.draw(word);
    while (rank >= known) rank = ranks_.draw(word = mix_word(word + 1));  // by those there are
    return known - 1 - rank;
  }

  uint64_t inserts_before(uint64_t place) const {
    return place / kCycle * per_cycle_[0] + cycle_[place % kCycle].inserts;
  }

  uint32_t length_of_scan(uint64_t place) const {
    const uint64_t choices = uint64_t{scan_length_.most} - scan_length_.least + 1;
    const uint64_t word = mix_word(place ^ draw_salt_ ^ 0x4be7a1930d5cf286ULL);
    return scan_length_.least + static_cast<uint32_t>((Wide{word} * choices) >> 64);
  }

  uint64_t records_;
  uint64_t operations_;
  KeyOrder order_;
  Distribution distribution_;
  ScanLength scan_length_;
  uint64_t key_salt_;
  uint64_t draw_salt_;
  std::array<Slot, kCycle> cycle_{};
  std::array<uint64_t, kOperationTypes> per_cycle_{};
  uint64_t removes_per_cycle_ = 0;
  uint64_t inserts_ = 0;    // records that the stream inserts
  uint64_t removed_ = 0;    // records that it removes
  uint64_t survivors_ = 0;  // records that it leaves
  Permutation order_of_removal_;
  RankSampler ranks_;
  Scatter scatter_{1};  // ranks over the survivors
};

}  // namespace perdure::lab
