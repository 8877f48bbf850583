#include "buffer/change.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "buffer/replay.h"
#include "perdure/error.h"
#include "pm/pause.h"

namespace perdure::buffer {

HeldPages::Held* HeldPages::find(uint64_t page) {
  if (pages_.size() <= kFew) {
    const auto at = std::ranges::find(pages_, page);
    return at == pages_.end() ? nullptr : &held_[static_cast<size_t>(at - pages_.begin())];
  }
  const auto at = index_.find(page);
  return at == index_.end() ? nullptr : &held_[at->second];
}

HeldPages::Held& HeldPages::add(uint64_t page, Frame& frame) {
  const size_t count = held_.size();
  if (held_.capacity() == count) held_.reserve(std::max(kFew, 2 * count));
  if (pages_.capacity() == count) pages_.reserve(std::max(kFew, 2 * count));
  if (count == kFew) {
    for (size_t i = 0; i < count; ++i) index_[pages_[i]] = i;
  }
  if (count >= kFew) index_[page] = count;
  pages_.push_back(page);
  return held_.emplace_back(Held{page, &frame, std::nullopt, 0, false});
}

void HeldPages::clear() {
  if (held_.capacity() > kKeptMax) {
    std::vector<Held>().swap(held_);
    std::vector<uint64_t>().swap(pages_);
  }
  held_.clear();
  pages_.clear();
  if (!index_.empty()) std::unordered_map<uint64_t, size_t>().swap(index_);
}

std::string SpareMemory::undo(const PageFormat& format) {
  std::string memory;
  if (!undos_.empty()) {
    memory = std::move(undos_.back());
    undos_.pop_back();
    memory.clear();
  }
  memory.reserve(PageUndo::memory_bytes(format));
  return memory;
}

void SpareMemory::keep(std::string undo) {
  if (undos_.size() < kUndosMax) undos_.push_back(std::move(undo));
}

std::vector<char> SpareMemory::entry() {
  std::vector<char> entry = std::move(entry_);
  entry.assign(sizeof(EntryHeader), '\0');
  return entry;
}

Change::Change(BufferPool& pool, Log& log, SpareMemory& spare, uint64_t pages_max)
    : pool_(pool),
      log_(log),
      spare_(spare),
      pages_max_(pages_max),
      lsn_(log.tail()),
      bytes_max_(log.room()),
      entry_(spare.entry()),
      held_(spare.pages()) {}

Change::~Change() {
  if (!done_ && edited_) {
    try {
      rollback();
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the pool has failed, and says so
    }
  }
  release();
  spare_.keep(std::move(entry_));
}

void Change::release() {
  for (HeldPages::Held& page : held_.all()) {
    if (page.undo) {
      page.frame->latch.unlock();
      spare_.keep(page.undo->take_memory());
    }
    pool_.unpin(*page.frame);
  }
  held_.clear();
}

HeldPages::Held& Change::hold(uint64_t page, bool fresh) {
  if (HeldPages::Held* const held = held_.find(page)) return *held;
  Frame& frame = fresh ? pool_.pin_new(page) : pool_.pin(page);
  // What is asked of a node first, side by side: its header, slots, and prefix.
  for (const uint32_t at : {0U, 64U, 128U, format().page_bytes() - 64}) {
    __builtin_prefetch(frame.data + at);
  }
  try {
    return held_.add(page, frame);
  } catch (...) {
    pool_.unpin(frame);
    throw;
  }
}

const char* Change::read(uint64_t page) { return hold(page, false).frame->data; }

HeldPages::Held& Change::edit(uint64_t page, bool fresh) {
  HeldPages::Held& held = hold(page, fresh);
  if (held.undo) return held;
  std::string memory = spare_.undo(format());
  Frame& frame = *held.frame;
  frame.latch.lock();
  held.undo.emplace(format(), std::move(memory), frame.data);
  held.unsealed = frame.unsealed;
  held.fresh = fresh;
  edited_ = true;
  return held;
}

void Change::apply(uint64_t page, Op op, bool overflow, uint32_t slot, std::string_view key,
                   std::string_view value) {
  HeldPages::Held& held = edit(page);
  Frame& frame = *held.frame;
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
                apply_record(format(), frame.data, lsn_ + at, record, pool_.checksums_of(frame),
                             &*held.undo));
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
  for (const HeldPages::Held& page : held_.all()) {
    if (page.undo) pool_.seal(*page.frame);
  }
  log_.append(entry_);
}

void Change::rollback() {
  done_ = true;
  for (const HeldPages::Held& page : held_.all()) {
    if (!page.undo) continue;
    // With the checksums that it had, so that a part that is damaged does not look right. A crash
    // may leave lines of this change beside those: they fit only if all are of one or the other.
    page.undo->restore(page.frame->data);
    page.frame->unsealed = page.unsealed;
    // A page that is new again, and of no interest: clean, so that it never is in the page store.
    if (page.fresh) pm::publish(pool_.recovery_lsn(*page.frame), uint64_t{0});
  }
  // What of this change has reached PM already bears LSNs that must not come again. Before the
  // pages are released: nobody can change them before the mark is durable.
  log_.mark();
}

}  // namespace perdure::buffer
