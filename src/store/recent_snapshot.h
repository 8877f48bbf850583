// An index snapshot that is written to the pool a little at a time, while the index goes on to
// change: see recent_snapshot.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "pm/memory.h"
#include "store/partition.h"

namespace perdure::store {

// Words that go to a place in PM, line by line past the caches, and into a checksum as they go.
// Durable with the caller's fence.
class SnapshotStream {
 public:
  // `to`: where `bytes` are to stand, whole lines. `seed`: of the checksum, which is that of all
  // but the first word. May throw std::bad_alloc.
  SnapshotStream(const pm::Memory& memory, char* to, uint64_t bytes, uint64_t seed);
  ~SnapshotStream();
  SnapshotStream(const SnapshotStream&) = delete;
  SnapshotStream& operator=(const SnapshotStream&) = delete;

  // What is beyond the end is left out, and lacks().
  void put(std::span<const uint64_t> words);
  void put(uint64_t word) {
    lacks_ = lacks_ || left_words_ == 0;
    if (left_words_ == 0) return;
    --left_words_;
    buffer_.push_back(word);
    if (buffer_.size() == buffer_.capacity()) write_out();
  }
  bool lacks() const { return lacks_; }
  // So many zeros, at most. Returns whether there is room left.
  bool fill(uint64_t words);
  // It is full. Returns the checksum.
  uint64_t finish();

 private:
  struct State;
  void write_out();

  const pm::Memory& memory_;
  char* to_;
  uint64_t left_words_;
  uint64_t skipped_bytes_ = sizeof(uint64_t);
  bool lacks_ = false;
  std::vector<uint64_t> buffer_;
  std::unique_ptr<State> state_;
};

// What is being written, of the moment when it was begun.
class Partition::SnapshotWriting final : public IndexWatcher {
 public:
  SnapshotWriting(Partition& partition, uint32_t its_place, const IndexSnapshot& header);
  ~SnapshotWriting() { end(); }
  SnapshotWriting(const SnapshotWriting&) = delete;
  SnapshotWriting& operator=(const SnapshotWriting&) = delete;

  // About so many words more. May throw std::bad_alloc.
  void write_some(uint64_t words);
  // Whether the record stood there at that moment.
  bool was_there(Location location) const {
    return location.slot() < ends_.size() && location.offset() < ends_[location.slot()];
  }
  // The block of this slot is another one from now on.
  void replace(uint32_t slot) {
    if (slot < ends_.size()) ends_[slot] = 0;
  }
  // The index is about to change or forget an entry: if it has not been written yet, it is kept.
  void will_change(uint64_t entry) noexcept override;

  const uint32_t place;     // of PartitionRoot::snapshots
  bool complete = false;    // all is written, and durable with the next fence
  bool failed = false;      // memory was short, or the room for it
  uint64_t checksum = 0;    // once it is complete
  uint64_t met_bytes;       // Partition::appended_bytes_ when it was last written to
  uint64_t owed_bytes = 0;  // that it is behind
  SnapshotStream stream;

 private:
  bool is_written(uint64_t entry) const;
  bool write_tags(uint64_t words);
  bool write_leaves(uint64_t words);
  void end();

  Partition& partition_;
  uint64_t entries_left_;  // that are neither written nor kept
  uint64_t next_tag_ = 0;  // by hash: entries of lower tags have been written
  // Ordered: leaves at the begin, what they took besides heads and places, and what was written
  // beyond what was asked for.
  uint64_t leaves_ = 0;
  uint64_t leaf_words_ = 0;
  uint64_t advance_ = 0;
  std::vector<uint64_t> words_;  // of a leaf
  bool all_met_ = false;         // but those that are kept
  std::vector<uint64_t> kept_;   // words of entries
  uint64_t kept_done_ = 0;       // of these, those that have been written
  std::vector<uint32_t> ends_;   // of the blocks then, by slot
};

}  // namespace perdure::store
