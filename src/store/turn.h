// A store that one thread at a time has to itself, as a server has: the writes of a turn share a
// fence.
//
//   StoreTurn turn(store);
//   turn.write({.key = "a", .value = "1"});
//   turn.write({.key = "b", .value = "2"});
//   turn.finish();  // now both are durable, and others may learn of them
//
// What makes a write durable: finish(). What a crash before it leaves: of each partition the first
// so many writes, in their order. Nobody outside may see a write acknowledged, or of what a read
// has found, before finish() has returned. The caller sees to it that nobody else uses the store
// meanwhile; no latch is taken. Not for a store with workers.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "store/partition.h"
#include "store/store_impl.h"

namespace perdure::store {

// Thrown in place of waiting, by a StoreTurn on a store that was opened with `serve_early`.
class NotReady final : public Error {
 public:
  NotReady() : Error(ErrorCode::kInUse, "the store is being opened") {}
};

// Each call throws NotReady if it needs a partition that is being opened, and what the opening has
// thrown if it needs one that could not be; then it has changed nothing.
class StoreTurn {
 public:
  explicit StoreTurn(StoreImpl& store);

  // The record of a key, valid until the next write. Throws kCorrupt, kIo.
  bool get(std::string_view key, uint64_t now_ms, Partition::Found& out) const;
  // Asks the cache for what get() or write() of these keys will look at: the index and the records;
  // and notes what an ordered index has said, for those of these keys that come next. Throws
  // nothing, and does nothing where the partition is not ready.
  void prefetch(std::span<const std::string_view> keys) const;
  // Whether the condition held; then the record is written. Throws kPoolFull, kNoSpace, kTooLarge,
  // kReadOnly, kCorrupt, kIo, having changed nothing.
  bool write(const WriteRequest& request, uint64_t now_ms, uint64_t* version = nullptr);
  // Whether the key was there. Throws as write().
  bool remove(std::string_view key, uint64_t now_ms);
  // Several writes of which a crash keeps all or none, and with them all earlier ones of the turn
  // in the partitions that they go to. Throws as write(), having changed nothing, and kTooLarge if
  // those of one partition do not fit into a block. In a full pool those that remove something, and
  // leave fewer bytes than there were, in blocks with headers, too, use the room that is kept for
  // removals.
  void apply(const Store::Batch& batch, uint64_t now_ms);
  // Makes the writes of the turn durable. Throws kIo: then none of them, and no read since, may be
  // told.
  void finish();
  // Whether finish() has something to do.
  bool wrote() const { return !touched_.empty(); }

  // Records of a partition, and a visit to those whose tags lie in [first, end): of a store with an
  // index by hash. `visit` must not write.
  uint64_t records(uint64_t number) const;
  void for_tags(uint64_t number, uint64_t first, uint64_t end, uint64_t now_ms,
                const Partition::Visit& visit) const;
  // A visit to some records of a partition, which the number chooses: see Partition::for_some().
  bool for_some(uint64_t number, uint64_t random, uint64_t now_ms,
                const Partition::VisitUntil& visit) const;

  // Throws NotReady unless the key's partition, or every partition, can be used.
  void require_ready(std::string_view key) const;
  void require_all_ready() const;
  // Whether every partition can be used.
  bool is_all_ready() const;

  uint32_t block_bytes() const { return store_.root_.block_bytes; }
  StoreImpl& store() const { return store_; }

 private:
  Partition& partition(uint32_t number) const {
    if (!store_.is_ready(number)) [[unlikely]]
      refuse(number);
    return store_.shards_[number]->partition;
  }
  Partition& touch(uint32_t number);
  // What prefetch() has come to for the key; null: nothing that is known.
  const Sought* foreseen(uint64_t hash, const Partition& of) const {
    const Foreseen& one = foreseen_[hash % kForeseen];
    return one.partition == &of && one.sought.hash == hash ? &one.sought : nullptr;
  }
  void refuse(uint32_t number) const;
  // As StoreImpl::with_all_room(), without waiting.
  template <typename Write>
  auto with_all_room(Write write);
  bool takes_away(const Store::Batch& batch, uint64_t now_ms) const;

  struct Foreseen {
    const Partition* partition = nullptr;
    Sought sought;
  };
  static constexpr size_t kForeseen = 128;  // several times as many as are asked for together

  StoreImpl& store_;
  mutable std::array<Foreseen, kForeseen> foreseen_{};
  std::vector<uint32_t> touched_;   // partitions written to in this turn
  std::vector<char> is_touched_;    // by partition
  mutable bool all_ready_ = false;  // once it is so
};

}  // namespace perdure::store
