#include "buffer/change.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "buffer/replay.h"
#include "perdure/error.h"
#include "pm/pause.h"

namespace perdure::buffer {

std::string SpareCopies::copy_of(const char* page, uint32_t bytes) {
  std::string copy;
  if (!spare_.empty()) {
    copy = std::move(spare_.back());
    spare_.pop_back();
  }
  copy.assign(page, bytes);
  return copy;
}

void SpareCopies::keep(std::string copy, uint32_t bytes) {
  if (copy.capacity() >= bytes && spare_.size() < kSpareMax) spare_.push_back(std::move(copy));
}

std::vector<char> SpareCopies::entry() {
  std::vector<char> entry = std::move(entry_);
  entry.assign(sizeof(EntryHeader), '\0');
  return entry;
}

Change::Change(BufferPool& pool, Log& log, SpareCopies& spare, uint64_t pages_max)
    : pool_(pool),
      log_(log),
      spare_(spare),
      pages_max_(pages_max),
      lsn_(log.tail()),
      bytes_max_(log.room()),
      entry_(spare.entry()) {}

Change::~Change() {
  if (!done_ && !edited_.empty()) {
    try {
      rollback();
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the pool has failed, and says so
    }
  }
  release();
  spare_.keep(std::move(entry_));
}

void Change::release() {
  for (auto& [id, page] : edited_) {
    page.frame->latch.unlock();
    pool_.unpin(*page.frame);
    spare_.keep(std::move(page.before), format().page_bytes());
  }
  edited_.clear();
  for (const auto& [id, frame] : read_) pool_.unpin(*frame);
  read_.clear();
}

const char* Change::read(uint64_t page) {
  const auto edited = edited_.find(page);
  if (edited != edited_.end()) return edited->second.frame->data;
  const auto [at, fresh] = read_.try_emplace(page, nullptr);
  if (fresh) {
    try {
      at->second = &pool_.pin(page);
    } catch (...) {
      read_.erase(at);
      throw;
    }
  }
  return at->second->data;
}

Frame& Change::edit(uint64_t page, bool fresh) {
  const auto found = edited_.find(page);
  if (found != edited_.end()) return *found->second.frame;
  Frame& frame = fresh ? pool_.pin_new(page) : pool_.pin(page);
  frame.latch.lock();
  try {
    edited_.emplace(page, Edited{&frame, spare_.copy_of(frame.data, format().page_bytes()),
                                 frame.unsealed, fresh});
  } catch (...) {
    frame.latch.unlock();
    pool_.unpin(frame);
    throw;
  }
  return frame;
}

void Change::apply(uint64_t page, Op op, bool overflow, uint32_t slot, std::string_view key,
                   std::string_view value) {
  Frame& frame = edit(page);
  LogRecord record{};
  record.key = key;
  record.value = value;
  RecordHeader& header = record.header;
  header.page = page;
  header.previous = header_of(frame.data).lsn;
  header.op = static_cast<uint16_t>(static_cast<uint16_t>(op) | (overflow ? kOverflowBit : 0));
  header.slot = static_cast<uint16_t>(slot);
  header.key_bytes = static_cast<uint32_t>(key.size());
  header.value_bytes = static_cast<uint32_t>(value.size());
  const uint64_t bytes = (sizeof header + key.size() + value.size() + 7) / 8 * 8;
  header.bytes = static_cast<uint32_t>(bytes);
  const uint64_t at = entry_.size();
  if (at + bytes + Log::kAlign > bytes_max_) {
    throw Error(ErrorCode::kTooLarge,
                "the transaction needs more of the log than a quarter; make it smaller, or the "
                "database with a longer log");
  }
  entry_.resize(at + bytes, '\0');
  std::memcpy(entry_.data() + at, &header, sizeof header);
  key.copy(entry_.data() + at + sizeof header, key.size());  // views of nothing have no address
  value.copy(entry_.data() + at + sizeof header + key.size(), value.size());
  pool_.changed(frame, lsn_,
                apply_record(format(), frame.data, lsn_ + at, record, pool_.checksums_of(frame)));
}

void Change::insert(uint64_t page, uint32_t slot, std::string_view key, std::string_view value,
                    bool overflow) {
  apply(page, Op::kInsert, overflow, slot, key, value);
}

void Change::erase(uint64_t page, uint32_t slot) { apply(page, Op::kErase, false, slot, {}, {}); }

void Change::replace(uint64_t page, uint32_t slot, std::string_view value, bool overflow) {
  apply(page, Op::kReplace, overflow, slot, {}, value);
}

void Change::patch(uint64_t page, uint32_t offset, std::string_view bytes) {
  apply(page, Op::kPatch, false, offset, {}, bytes);
}

void Change::image(uint64_t page, PageType type, std::string_view begin, std::string_view end) {
  apply(page, Op::kImage, false, static_cast<uint32_t>(type), begin, end);
}

uint64_t Change::allocate() {
  SpaceBody space;
  std::memcpy(&space, read(0) + format().body(), sizeof space);
  uint64_t page = space.free;
  if (page != 0) {
    const char* data = read(page);
    if (header_of(data).type != PageType::kFree) {
      throw Error(
          ErrorCode::kCorrupt,
          fmt::format("page {} of the database is in the list of free pages, and is not free",
                      page));
    }
    std::memcpy(&space.free, data + format().body(), sizeof space.free);
    --space.free_count;
  } else {
    if (space.pages >= pages_max_) {
      throw Error(ErrorCode::kPoolFull, "the page store of the database is full");
    }
    page = space.pages++;
    edit(page, true);
  }
  patch(0, 0, {reinterpret_cast<const char*>(&space), sizeof space});
  return page;
}

void Change::free(uint64_t page) {
  SpaceBody space;
  std::memcpy(&space, read(0) + format().body(), sizeof space);
  image(page, PageType::kFree, {reinterpret_cast<const char*>(&space.free), sizeof space.free}, {});
  space.free = page;
  ++space.free_count;
  patch(0, 0, {reinterpret_cast<const char*>(&space), sizeof space});
}

void Change::write() {
  for (const auto& [id, page] : edited_) pool_.seal(*page.frame);
  log_.append(entry_);
}

void Change::rollback() {
  done_ = true;
  for (const auto& [id, page] : edited_) {
    // With the checksums that it had, so that a part that is damaged does not look right. A crash
    // may leave lines of this change beside those: they fit only if all are of one or the other.
    std::memcpy(page.frame->data, page.before.data(), page.before.size());
    page.frame->unsealed = page.unsealed;
    // A page that is new again, and of no interest: clean, so that it never is in the page store.
    if (page.fresh) pm::publish(pool_.recovery_lsn(*page.frame), uint64_t{0});
  }
  // What of this change has reached PM already bears LSNs that must not come again. Before the
  // pages are released: nobody can change them before the mark is durable.
  log_.mark();
}

}  // namespace perdure::buffer
