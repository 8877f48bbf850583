// Inserting, looking up, erasing.
#include "lsm/cache/core.h"

#include <algorithm>
#include <cstring>

namespace perdure::block_cache {
namespace {

// A record is put together here, to go past the caches in whole lines.
class Staging {
 public:
  char* room(uint64_t bytes) {
    if (bytes > lines_.size() * sizeof(Line)) lines_.resize(bytes / sizeof(Line));
    return lines_.front().bytes;
  }

 private:
  struct alignas(pm::kLineBytes) Line {
    char bytes[pm::kLineBytes];
  };
  std::vector<Line> lines_;
};

}  // namespace

RecordHead Core::head_at(const char* record) {
  RecordHead head;
  std::memcpy(&head.block_check, record + sizeof head.check, sizeof head - sizeof head.check);
  // Who erases the record may be about to make it 0.
  head.check = pm::load_relaxed(*reinterpret_cast<const uint64_t*>(record));
  return head;
}

bool Core::is_record(const RecordHead& head, uint64_t hash, Where where) const {
  const Segment& segment = segments_[where.segment()];
  return head.check ==
             check_of(head, hash, segment.name, where.segment(), where.line(), root_.salt) &&
         where.line() * pm::kLineBytes + record_bytes(head.key_bytes, head.block_bytes) <=
             root_.segment_bytes;
}

bool Core::is_record(const char* record, Where where, RecordHead& head, uint64_t& hash) const {
  head = head_at(record);
  if (head.check == 0 || head.key_bytes == 0 || head.key_bytes > BlockCache::kKeyBytesMax ||
      head.block_bytes == 0 || head.reserved != 0 ||
      where.line() * pm::kLineBytes + record_bytes(head.key_bytes, head.block_bytes) >
          root_.segment_bytes) {
    return false;
  }
  hash = hash_of({record + sizeof head, head.key_bytes});
  return is_record(head, hash, where);
}

bool Core::may_write() const {
  if (pool_.read_only() || pool_.failed()) return false;
  pool_.require_writable();  // throws if the Pool object is gone
  return true;
}

void Core::write_record(const Block& block, Where where) {
  thread_local Staging staging;
  const uint64_t bytes = record_bytes(block.key.size(), block.bytes.size());
  RecordHead head{.check = 0,
                  .block_check = block.check,
                  .block_bytes = static_cast<uint32_t>(block.bytes.size()),
                  .key_bytes = static_cast<uint16_t>(block.key.size()),
                  .reserved = 0};
  const auto segment = static_cast<uint32_t>(where.segment());
  head.check =
      check_of(head, block.hash, segments_[segment].name, segment, where.line(), root_.salt);
  char* record = staging.room(bytes);
  std::memcpy(record, &head, sizeof head);
  std::memcpy(record + sizeof head, block.key.data(), block.key.size());
  char* content = record + sizeof head + block.key.size();
  std::memcpy(content, block.bytes.data(), block.bytes.size());
  std::memset(content + block.bytes.size(), 0,
              bytes - sizeof head - block.key.size() - block.bytes.size());
  char* target = line_of(segment, where.line());
  if (memory_.domain() != Domain::kLine) {
    // Visible when it is stored. In the domain `page` it gets to the medium when the system sees
    // fit: nothing waits for it, as what is there in part is no record.
    std::memcpy(target, record, bytes);
    return;
  }
  memory_.copy_nontemporal(target, record, bytes);
  // What goes past the caches is seen by other threads in any order until this thread fences:
  // before the index tells them of the record. No crash makes it necessary.
  memory_.fence();
}

void Core::erase_record(Where where) {
  Segment& segment = segments_[where.segment()];
  for (;; pm::PoolImpl::pause()) {
    const Pin pin(segment, where);
    if (pin.is_ending()) continue;
    if (!pin) return;  // its use is over, durably
    auto* check =
        reinterpret_cast<uint64_t*>(line_of(static_cast<uint32_t>(where.segment()), where.line()));
    pm::store_relaxed(*check, uint64_t{0});
    // The record is none, before another one of its key is written, or the caller relies on its
    // absence: else a crash might leave this one.
    memory_.persist(check, sizeof *check);
    return;
  }
}

// Whether the block is there already: two threads that missed it at a time both bring it.
bool Core::has_same(Stripe& stripe, const Block& block) {
  Where* found = stripe.table.find(block.hash);
  if (found == nullptr) return false;
  const Pin pin(segments_[found->segment()], *found);
  if (!pin) return false;
  const char* record = line_of(static_cast<uint32_t>(found->segment()), found->line());
  const RecordHead head = head_at(record);
  return is_record(head, block.hash, *found) && head.block_check == block.check &&
         head.block_bytes == block.bytes.size() && head.key_bytes == block.key.size() &&
         std::memcmp(record + sizeof head, block.key.data(), block.key.size()) == 0;
}

bool Core::insert(std::string_view key, std::string_view bytes) {
  const uint64_t needed = record_bytes(key.size(), bytes.size());
  const auto decline = [this] {
    declined_.fetch_add(1, std::memory_order_relaxed);
    return false;
  };
  if (needed > root_.segment_bytes - sizeof(SegmentHeader)) return decline();
  const Block block{key, hash_of(key), bytes, check_of_block(bytes)};
  Stripe& stripe = stripe_of(block.hash);
  try {
    if (!may_write()) return decline();
    {
      const std::lock_guard lock(stripe.mutex);
      if (has_same(stripe, block)) return true;
    }
    const std::optional<Room> room = reserve(needed);
    if (!room) return decline();
    const std::lock_guard lock(stripe.mutex);
    if (has_same(stripe, block)) return true;
    stripe.table.reserve_one();
    if (const Where* found = stripe.table.find(block.hash)) {
      const Where before = *found;
      stripe.table.erase(block.hash);
      erase_record(before);
    }
    write_record(block, room->where);
    stripe.table.put(block.hash, room->where);
    ++stripe.inserts;
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIo && error.code() != ErrorCode::kInUse && !pm::is_full(error))
      throw;
    return decline();
  }
}

bool Core::lookup(std::string_view key, const std::function<char*(size_t bytes)>& room) {
  const uint64_t hash = hash_of(key);
  Stripe& stripe = stripe_of(hash);
  std::unique_lock lock(stripe.mutex);
  Where* found = stripe.table.find(hash);
  if (found == nullptr) {
    ++stripe.misses;
    return false;
  }
  const Where where = *found;
  const Pin pin(segments_[where.segment()], where);
  if (!pin) {  // about to be used again
    ++stripe.misses;
    return false;
  }
  if (!where.asked_for()) found->word |= Where::kAskedFor;
  ++stripe.hits;
  lock.unlock();

  const char* record = line_of(static_cast<uint32_t>(where.segment()), where.line());
  const RecordHead head = head_at(record);
  bool erased = head.check == 0;  // by another thread, meanwhile
  if (is_record(head, hash, where) && head.key_bytes == key.size() &&
      std::memcmp(record + sizeof head, key.data(), key.size()) == 0) {
    char* target = room(head.block_bytes);
    std::memcpy(target, record + sizeof head + key.size(), head.block_bytes);
    // Of the copy: what is verified is what is returned.
    if (check_of_block({target, head.block_bytes}) == head.block_check) return true;
    erased = false;
  }
  lock.lock();
  --stripe.hits;
  ++stripe.misses;
  if (erased) return false;
  ++stripe.damaged;
  found = stripe.table.find(hash);
  if (found == nullptr || !found->same_place(where)) return false;
  stripe.table.erase(hash);
  try {
    // For good, or it would be found again beside the next one of its key.
    if (may_write()) erase_record(where);
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the medium has failed, and a miss it is
  }
  return false;
}

bool Core::erase(std::string_view key) {
  pool_.require_writable();
  const uint64_t hash = hash_of(key);
  Stripe& stripe = stripe_of(hash);
  const std::lock_guard lock(stripe.mutex);
  const Where* found = stripe.table.find(hash);
  if (found == nullptr) return false;
  const Where where = *found;
  stripe.table.erase(hash);
  erase_record(where);
  return true;
}

}  // namespace perdure::block_cache
