// Byte-string records out of place: a slot of 16 bytes holds the hash of the key and the offset of
// a block {checksum, length of key, length of value, key, value}.
//
//   slot    | hash of the key | offset of the record, or 0: the slot is empty |
//   record  | checksum (4) | key_bytes (4) | value_bytes (4) | key ... | value ... |
//
// The checksum is over all that follows it, seeded with the record's offset: neither a changed bit
// nor another record's offset passes.
//
// The second word of the slot alone decides whether the record exists, for readers and for the
// heap's intents, so that a crash at any point leaves the block either linked or free. A record is
// never changed; another value is another record. Readers compare hashes, and look at a record only
// if all 64 bits are equal.
//
// Crash argument, of each call below: the record and the intents are durable (fence) before the
// slot changes by one 8-byte store; the heap's bitmap follows in the same fence; the intents end
// last. Up to the store the slot leads elsewhere and recovery frees the new block; from then on it
// leads to the new block, and recovery keeps that and frees the old one. The hash is stored before
// the offset: in the same line, or made durable first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "index/retired.h"
#include "pm/checksum.h"
#include "pm/epoch.h"
#include "pm/pool_impl.h"

namespace perdure::index {

// What most structures store for a record.
struct HashSlot {
  uint64_t hash;   // of the key; bijective for 8-byte keys with 8-byte values
  uint64_t value;  // the value itself, or the offset of a record
};
static_assert(sizeof(HashSlot) == 16);

// Carries out a write; once more after `reclaim` if there was no room.
template <typename Write, typename Reclaim>
bool retry_when_full(Write write, Reclaim reclaim) {
  try {
    return write();
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
  }
  reclaim();
  return write();
}

class Records {
 public:
  static constexpr uint64_t kPartBytesMax = uint64_t{64} << 20;  // of a key, of a value

  // Goes when nobody reads any more.
  Records(pm::PoolImpl& pool, pm::EpochManager& epochs)
      : pool_(pool), epochs_(epochs), retired_(epochs, pool.heap()) {}
  Records(const Records&) = delete;
  Records& operator=(const Records&) = delete;

  // The pieces of a record, as long as the caller has a guard. Throw kCorrupt if the record is not
  // inside the pool; value(), if the pool verifies payload, also if its checksum does not hold, so
  // that a value that is handed out belongs to its key.
  std::string_view key(uint64_t record) const {
    const Header* header = follow(record);
    return {text_of(header), header->key_bytes};
  }
  std::string_view value(uint64_t record) const {
    const Header* header = follow(record);
    if (pool_.verifies_payload()) require_intact(record, header);
    return {text_of(header) + header->key_bytes, header->value_bytes};
  }
  // Whether the record has this key, for a caller that found the hashes to be equal. Records with
  // equal hashes and other keys are so rare that one is taken for damage until its checksum holds
  // (kCorrupt).
  bool has_key(uint64_t record, std::string_view wanted) const {
    if (key(record) == wanted) [[likely]]
      return true;
    if (pool_.verifies_payload()) require_intact(record, follow(record));
    return false;
  }
  // Asks memory for where a record begins, if it can be one.
  void prefetch(uint64_t record) const {
    if (pool_.leads_inside(record, sizeof(Header))) pm::prefetch(pool_.at<char>(record));
  }
  // Bytes of the record, for which its block was allocated. Throws kCorrupt as key() does.
  uint64_t bytes(uint64_t record) const;
  // Verifies what a slot leads to; `fail` gets a sentence. Whether the record can be read.
  template <typename Fail>
  bool check(const HashSlot& slot, Fail fail) const;

  // Whether the offset leads to an allocated block that holds a whole record. Reads its lengths.
  bool sound(uint64_t record) const;
  // The same, and its checksum holds. Reads all of it.
  bool intact(uint64_t record) const;

  // The pieces of what follows, for structures that commit a record in a way of their own.
  // Writes a record to a block of the transaction, and flushes it.
  uint64_t make(pm::Heap::Txn& txn, std::string_view key, std::string_view value) const;
  // Lets an unlinked record (Release::kLater) go when no reader can look at it any more.
  void retire(uint64_t record);

  // Throws kTooLarge.
  void require_fits(std::string_view key, std::string_view value,
                    uint64_t key_bytes_max = kPartBytesMax) const;

  // Fills an empty slot. The caller holds the lock that keeps writers out; `reveal` is called when
  // readers must be kept out, too. Durable on return. Throws kPoolFull, kNoSpace, having changed
  // nothing. Cost: four lines and three fences, and the record's lines.
  template <typename Reveal>
  void link(uint64_t& hash_at, uint64_t& value_at, uint64_t hash, std::string_view key,
            std::string_view value, Reveal reveal);
  // Gives a slot another record.
  template <typename Reveal>
  void relink(uint64_t& value_at, std::string_view key, std::string_view value, Reveal reveal);
  // Empties a slot. Needs no room.
  template <typename Reveal>
  void unlink(uint64_t& value_at, Reveal reveal);

  // Carries out a write; once more after reclaim() if there was no room: blocks that wait for
  // readers which have gone may be all that is missing.
  template <typename Write>
  bool with_reclaim(Write write);

  // Hands out again what no reader can look at any more. Returns whether it tried. To be called
  // without a guard.
  bool reclaim();

 private:
  struct Header {
    uint32_t checksum;
    uint32_t key_bytes;
    uint32_t value_bytes;
  };
  static_assert(sizeof(Header) == 12 && offsetof(Header, checksum) == 0);

  static const char* text_of(const Header* header) {
    return reinterpret_cast<const char*>(header + 1);
  }
  static uint64_t bytes_of(const Header* header) {
    return sizeof(Header) + uint64_t{header->key_bytes} + header->value_bytes;
  }
  static uint32_t checksum_of(uint64_t record, const Header* header) {
    return pm::checksum32(&header->key_bytes, bytes_of(header) - sizeof header->checksum, record);
  }
  // The record at an offset, all of which is inside the pool.
  const Header* follow(uint64_t record) const {
    const Header* header = pool_.follow<Header>(record);
    if (record % pm::kLineBytes != 0 || !pool_.leads_inside(record, bytes_of(header))) [[unlikely]]
      pool_.throw_outside(record);
    return header;
  }
  void require_intact(uint64_t record, const Header* header) const {
    if (checksum_of(record, header) != header->checksum) [[unlikely]]
      throw_damaged(record);
  }
  [[noreturn]] void throw_damaged(uint64_t record) const;
  pm::PoolImpl& pool_;
  pm::EpochManager& epochs_;
  RetiredBlocks retired_;
};

template <typename Fail>
bool Records::check(const HashSlot& slot, Fail fail) const {
  if (!sound(slot.value)) {
    fail("a slot leads to no record");
    return false;
  }
  if (!intact(slot.value)) {
    fail("a record is damaged: its checksum does not hold");
    return false;
  }
  const std::string_view bytes = key(slot.value);
  if (pm::checksum64(bytes.data(), bytes.size()) != slot.hash) {
    fail("a record has another key than its slot says");
  }
  return true;
}

template <typename Write>
bool Records::with_reclaim(Write write) {
  return retry_when_full(write, [&] { reclaim(); });
}

template <typename Reveal>
void Records::link(uint64_t& hash_at, uint64_t& value_at, uint64_t hash, std::string_view key,
                   std::string_view value, Reveal reveal) {
  const pm::Memory& memory = pool_.memory();
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t record = make(txn, key, value);
  if (pm::load_relaxed(value_at) == record) [[unlikely]] {
    // What a split left behind in an empty slot would make the intent believe that it is linked.
    reveal();
    pm::store_release(value_at, uint64_t{0});
    memory.persist(&value_at, sizeof value_at);  // before the intent, which looks at it
  }
  txn.will_link(record, &value_at, pm::Link::kOffset);
  // The record and the intent, before the slot leads to it.
  txn.commit([&] {
    reveal();
    pm::store_release(value_at, uint64_t{0});
    pm::store_release(hash_at, hash);
    if ((reinterpret_cast<uintptr_t>(&hash_at) ^ reinterpret_cast<uintptr_t>(&value_at)) >=
        pm::kLineBytes) {
      memory.flush(&value_at, sizeof value_at);
      memory.persist(&hash_at, sizeof hash_at);  // in another line: before the offset
    }
    pm::store_release(value_at, record);
    memory.flush(&value_at, sizeof value_at);
  });
}

template <typename Reveal>
void Records::relink(uint64_t& value_at, std::string_view key, std::string_view value,
                     Reveal reveal) {
  const pm::Memory& memory = pool_.memory();
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t before = pm::load_relaxed(value_at);
  const uint64_t record = make(txn, key, value);
  txn.will_link(record, &value_at, pm::Link::kOffset);
  txn.will_unlink(before, &value_at, pm::Link::kOffset, pm::Heap::Txn::Release::kLater);
  // The record and the intents, before the slot leads to it.
  txn.commit([&] {
    reveal();
    pm::store_release(value_at, record);
    memory.flush(&value_at, sizeof value_at);
  });
  retire(before);
}

template <typename Reveal>
void Records::unlink(uint64_t& value_at, Reveal reveal) {
  const pm::Memory& memory = pool_.memory();
  pm::Heap::Txn txn(pool_.heap(), true);
  const uint64_t before = pm::load_relaxed(value_at);
  txn.will_unlink(before, &value_at, pm::Link::kOffset, pm::Heap::Txn::Release::kLater);
  // The intent, before the slot is empty.
  txn.commit([&] {
    reveal();
    pm::store_release(value_at, uint64_t{0});
    memory.flush(&value_at, sizeof value_at);
  });
  retire(before);
}

}  // namespace perdure::index
