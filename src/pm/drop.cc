#include "pm/drop.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "pm/checksum.h"
#include "pm/pool_impl.h"
#include "pm/transaction_log.h"

namespace perdure::pm {

namespace {

// The largest block of a slab: a page takes no whole segment.
constexpr uint64_t kPageBytesMax = 32 << 10;
constexpr uint64_t kPageBytesMin = 512;
// In a record: the words of a bitmap, below the segment's number.
constexpr uint32_t kCountBits = 8;

uint64_t drop_page_checksum(const DropPage& page, uint64_t offset) {
  return checksum64(&page.next,
                    sizeof page - offsetof(DropPage, next) + page.words * sizeof(uint64_t), offset);
}

[[noreturn]] void throw_damaged_list(const PoolImpl& pool) {
  pool.throw_corrupt("the list of a dropped structure is damaged");
}

}  // namespace

Drop::Drop(PoolImpl& pool, std::string_view name) : pool_(pool), entry_(pool.entry_number(name)) {
  pool.require_writable();
  // Of a drop that failed for want of room.
  if (pool.entry_at(entry_).drop != 0) free_pages(pool, entry_);
}

void Drop::add(uint64_t offset) {
  const Heap::Part part = pool_.heap().part_of(offset);
  const auto [at, is_new] = parts_.try_emplace(part.segment, part);
  bool met = false;
  if (!is_new) {
    met = at->second.run || part.run;
    for (size_t i = 0; i < part.bits.size(); ++i) {
      met = met || (at->second.bits[i] & part.bits[i]) != 0;
      at->second.bits[i] |= part.bits[i];
    }
  }
  if (met) {
    pool_.throw_corrupt(fmt::format("the block at {:#x} is in a structure twice", offset));
  }
  bytes_ += part.bytes;
}

std::vector<uint64_t> Drop::records() const {
  std::vector<uint64_t> words;
  for (const auto& [segment, part] : parts_) {
    const uint32_t count = part.run ? 0 : pool_.heap().bitmap_words(segment);
    words.push_back(segment << kCountBits | count);
    words.insert(words.end(), part.bits.begin(), part.bits.begin() + count);
  }
  return words;
}

size_t Drop::whole_records(const std::vector<uint64_t>& words, size_t begin, size_t room) {
  size_t end = begin;
  while (end < words.size()) {
    const size_t next = end + 1 + (words[end] & 0xff);
    if (next - begin > room) break;
    end = next;
  }
  return end - begin;
}

void Drop::commit() {
  const std::vector<uint64_t> words = records();
  const std::lock_guard lock(pool_.directory_mutex());
  try {
    uint64_t page_bytes = kPageBytesMax;
    for (size_t begin = 0; begin < words.size();) {
      const uint64_t left = sizeof(DropPage) + (words.size() - begin) * sizeof(uint64_t);
      while (page_bytes / 2 >= std::max(left, kPageBytesMin)) page_bytes /= 2;
      const size_t count =
          whole_records(words, begin, (page_bytes - sizeof(DropPage)) / sizeof(uint64_t));
      try {
        write_page(words.data() + begin, count);
      } catch (const Error& error) {
        // A pool that is full may have smaller blocks.
        if (!is_full(error) || page_bytes <= kPageBytesMin) throw;
        page_bytes /= 2;
        continue;
      }
      begin += count;
    }
  } catch (const Error& error) {
    if (!pool_.failed()) free_pages(pool_, entry_);
    if (!is_full(error)) throw;
    throw Error(error.code(),
                fmt::format("{}: there is no room for the list of the blocks that '{}' has, {} "
                            "bytes; remove some records first",
                            pool_.mapping().path(), pool_.entry_at(entry_).name,
                            words.size() * sizeof(uint64_t)));
  }
  DirectoryEntry entry = pool_.entry_at(entry_);
  entry.in_use = kEntryDropped;
  replace_entry(pool_, entry_, entry);
  pool_.note_dropped(entry_);
  // Before its root can be another structure's. A crash in between leaves it to the next opening,
  // which finds no name that leads to the root.
  pool_.transactions().forget(entry.root);
}

void Drop::write_page(const uint64_t* words, size_t count) {
  DirectoryEntry entry = pool_.entry_at(entry_);
  const uint64_t bytes = sizeof(DropPage) + count * sizeof(uint64_t);
  // It frees more than it takes.
  Heap::Txn txn(pool_.heap(), true);
  const uint64_t offset = txn.allocate(bytes);
  auto* page = pool_.at<DropPage>(offset);
  *page = DropPage{.checksum = 0, .next = entry.drop, .bytes = bytes, .words = count};
  std::memcpy(page + 1, words, count * sizeof(uint64_t));
  page->checksum = drop_page_checksum(*page, offset);
  pool_.memory().flush(page, bytes);
  DirectoryEntry* home = &pool_.entry_at(entry_);
  txn.will_link(offset, &home->drop, Link::kOffset);
  entry.drop = offset;
  entry = PoolImpl::sealed(entry, entry_);
  txn.redo(home, &entry, sizeof entry);
  // The page and its intent, before the entry that leads to it.
  txn.commit([&] { txn.apply(); });
}

void Drop::replace_entry(PoolImpl& pool, uint32_t number, DirectoryEntry entry) {
  entry = PoolImpl::sealed(entry, number);
  // It frees more than it takes.
  Heap::Txn txn(pool.heap(), true);
  txn.redo(&pool.entry_at(number), &entry, sizeof entry);
  txn.commit_redo([] {});
}

void Drop::finish() {
  for (const auto& [segment, part] : parts_) pool_.heap().clear_part(part);
  pool_.memory().fence();  // all of them, before the list that would clear them after a crash goes
  {
    const std::lock_guard lock(pool_.directory_mutex());
    free_pages(pool_, entry_);
  }
  for (const auto& [segment, part] : parts_) pool_.heap().release_part(part);
}

void Drop::free_pages(PoolImpl& pool, uint32_t number) {
  DirectoryEntry* home = &pool.entry_at(number);
  while (home->drop != 0) {
    const uint64_t offset = home->drop;
    DirectoryEntry entry = *home;
    // Its records are not looked at: what they name may be anything else by now, where nothing was
    // dropped.
    entry.drop = page_at(pool, offset).next;
    const bool ends = entry.drop == 0 && entry.in_use == kEntryDropped;
    if (ends) entry = DirectoryEntry{};
    entry = PoolImpl::sealed(entry, number);
    Heap::Txn txn(pool.heap(), true);
    txn.will_unlink(offset, &home->drop, Link::kOffset);
    txn.redo(home, &entry, sizeof entry);
    // The intent, before the entry leads to the next page.
    txn.commit([&] { txn.apply(); });
    if (ends) pool.note_freed(number);
  }
}

const DropPage& Drop::page_at(PoolImpl& pool, uint64_t offset) {
  const auto* page = pool.follow<DropPage>(offset);
  if (page->words > kPageBytesMax / sizeof(uint64_t) ||
      page->bytes != sizeof(DropPage) + page->words * sizeof(uint64_t) ||
      !pool.leads_inside(offset, page->bytes) ||
      page->checksum != drop_page_checksum(*page, offset)) {
    throw_damaged_list(pool);
  }
  return *page;
}

std::vector<Heap::Part> Drop::read_page(PoolImpl& pool, uint64_t offset) {
  const DropPage& page = page_at(pool, offset);
  std::vector<Heap::Part> parts;
  const auto* record = reinterpret_cast<const uint64_t*>(&page + 1);
  const auto* const end = record + page.words;
  while (record < end) {
    const uint32_t count = *record & 0xff;
    Heap::Part part{*record >> kCountBits, count == 0, {}, 0};
    ++record;
    if (count > part.bits.size() || count > static_cast<uint64_t>(end - record) ||
        part.segment >= pool.segments() || pool.map().is_table(part.segment)) {
      throw_damaged_list(pool);
    }
    std::copy_n(record, count, part.bits.begin());
    record += count;
    if (!pool.heap().fits(part, count)) throw_damaged_list(pool);
    parts.push_back(part);
  }
  return parts;
}

void Drop::clear_interrupted(PoolImpl& pool) {
  for (uint32_t i = 0; i < pool.entries(); ++i) {
    const DirectoryEntry& entry = pool.entry_at(i);
    if (entry.in_use != kEntryDropped) continue;
    if (!pool.is_sound(i)) pool.throw_damaged(i);
    uint64_t pages = 0;
    for (uint64_t at = entry.drop; at != 0; at = pool.at<DropPage>(at)->next) {
      if (++pages > pool.segments() + 1) {
        pool.throw_corrupt("the list of a dropped structure has no end");
      }
      for (const Heap::Part& part : read_page(pool, at)) pool.heap().clear_part(part);
    }
  }
  pool.memory().fence();  // as in finish()
}

void Drop::finish_interrupted(PoolImpl& pool) {
  for (uint32_t i = 0; i < pool.entries(); ++i) {
    if (pool.entry_at(i).drop != 0) free_pages(pool, i);
  }
}

}  // namespace perdure::pm
