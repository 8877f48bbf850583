// Space: numbers, extents, and what returns them.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <new>

#include "lsm/files/file_system.h"
#include "pm/checksum.h"

namespace perdure::files {
namespace {

// Blocks that one transaction frees.
constexpr size_t kLinksAtOnce = 32;
constexpr uint64_t kMiB = uint64_t{1} << 20;

}  // namespace

uint64_t FileSystem::salt_of(uint32_t number, uint64_t salt) const {
  return root_.salt + number * 0x9fb21c651e98df25 + salt;
}

uint64_t FileSystem::extent_salt(uint32_t number, uint32_t i, uint64_t offset) const {
  return salt_of(number, (uint64_t{i} << 48) ^ offset);
}

uint64_t* FileSystem::entry_of(uint32_t number) const {
  const uint32_t i = number - 1;
  return &pool_.at<TablePage>(pages_[i / TablePage::kEntries])->entries[i % TablePage::kEntries];
}

ExtentSlot* FileSystem::slot_of(const Node& node, uint32_t i) const {
  Inode& inode = inode_of(node);
  if (i < Inode::kSlots) return &inode.extents[i];
  i -= Inode::kSlots;
  const uint64_t page = pm::load_acquire(inode.pages[i / ExtentPage::kSlots]);
  if (page == 0) return nullptr;
  return &pool_.at<ExtentPage>(page)->extents[i % ExtentPage::kSlots];
}

uint32_t FileSystem::take_number() {
  if (free_numbers_.empty()) add_table_page();
  const uint32_t number = free_numbers_.back();
  free_numbers_.pop_back();
  return number;
}

void FileSystem::add_table_page() {
  const auto before = static_cast<uint32_t>(pages_.size()) * TablePage::kEntries;
  pages_.reserve(pages_.size() + 1);
  free_numbers_.reserve(before + TablePage::kEntries);
  uint64_t* link = pages_.empty() ? &root_.table : &pool_.at<TablePage>(pages_.back())->next;
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t offset = txn.allocate(sizeof(TablePage));
  auto* page = pool_.at<TablePage>(offset);
  std::memset(static_cast<void*>(page), 0, sizeof *page);
  page->mark = pm::seal_word(pages_.size() + 1, root_.salt + kTableSalt);
  memory_.flush(page, sizeof *page);
  txn.publish(offset, *link);
  pages_.push_back(offset);
  for (uint32_t i = TablePage::kEntries; i > 0; --i) free_numbers_.push_back(before + i);
}

// Extents grow with the file, so that few suffice and an eighth of it, or a page, is wasted.
uint64_t FileSystem::next_extent_bytes(uint64_t have, uint64_t wanted) const {
  uint64_t bytes = have < kMiB ? std::max(have / 2, kExtentBytesMin) : have / 8;
  bytes = std::max(wanted, std::min(bytes, pool_.capacity_bytes() / 64));
  return pm::Heap::block_bytes(bytes);
}

void FileSystem::ensure(Node& node, uint64_t bytes) {
  const uint32_t before = node.extents->count();
  const uint64_t had = node.extents->end();
  try {
    uint64_t piece = next_extent_bytes(had, bytes - std::min(had, bytes));
    while (node.extents->end() < bytes) {
      try {
        add_extent(node, piece);
      } catch (const Error& error) {
        // No room in one piece: in halves.
        if (!pm::is_full(error) || piece <= kExtentBytesMin) throw;
        piece = pm::Heap::block_bytes(std::max(kExtentBytesMin, piece / 2));
      }
    }
  } catch (const Error& error) {
    if (pm::is_full(error) && node.extents->count() > before) trim(node, had);
    throw;
  }
}

void FileSystem::add_extent_page(const Node& node, uint32_t page) {
  uint64_t* link = &inode_of(node).pages[page];
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t offset = txn.allocate(sizeof(ExtentPage));
  auto* slots = pool_.at<ExtentPage>(offset);
  std::memset(static_cast<void*>(slots), 0, sizeof *slots);
  slots->mark = pm::seal_word(node.number, root_.salt + kPageSalt);
  memory_.flush(slots, sizeof *slots);
  txn.publish(offset, *link);  // durable before a slot of the page is used
}

void FileSystem::add_extent(Node& node, uint64_t bytes) {
  const uint32_t i = node.extents->count();
  if (i == kExtentsMax) fail(ErrorCode::kPoolFull, name_of(node), "is in too many pieces to grow");
  node.extents->reserve_one();
  if (slot_of(node, i) == nullptr) {
    add_extent_page(node, (i - Inode::kSlots) / ExtentPage::kSlots);
  }
  ExtentSlot& slot = *slot_of(node, i);
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t offset = txn.allocate(bytes);
  txn.will_link(offset, &slot.offset, pm::Link::kOffset);
  txn.commit([&] {
    pm::store_release(slot.check,
                      pm::seal_word(bytes / pm::kLineBytes, extent_salt(node.number, i, offset)));
    pm::store_release(slot.offset, offset);
    memory_.flush(&slot, sizeof slot);
  });
  node.extents->push(offset, bytes);
}

void FileSystem::unlink_all(std::span<uint64_t* const> links) {
  while (!links.empty()) {
    const auto group = links.first(std::min(links.size(), kLinksAtOnce));
    pm::Heap::Txn txn(pool_.heap(), true);
    for (uint64_t* link : group) txn.will_unlink(*link, link, pm::Link::kOffset);
    txn.commit([&] {
      for (uint64_t* link : group) {
        pm::store_release(*link, uint64_t{0});
        memory_.flush(link, sizeof *link);
      }
    });
    links = links.subspan(group.size());
  }
}

void FileSystem::trim(Node& node, uint64_t bytes) {
  const uint32_t count = node.extents->count();
  uint32_t keep = count;
  while (keep > 0 && (*node.extents)[keep - 1].begin >= bytes) --keep;
  if (keep == count) return;
  std::vector<uint64_t*> links;
  links.reserve(count - keep);
  for (uint32_t i = count; i > keep; --i) links.push_back(&slot_of(node, i - 1)->offset);
  node.extents->shrink(keep);
  unlink_all(links);
}

uint64_t FileSystem::free_bytes() const {
  const uint64_t allocated = pool_.heap().usage().allocated_bytes;
  return pool_.capacity_bytes() - std::min(pool_.capacity_bytes(), allocated);
}

void FileSystem::reclaim(const Node& node) try {
  // Extents, then the pages that lead to them, then the inode: what leads to a block that is still
  // allocated must be there after a crash.
  Inode& inode = inode_of(node);
  std::vector<uint64_t*> extents;
  std::vector<uint64_t*> pages;
  for (uint32_t i = 0; i < kExtentsMax; ++i) {
    if (i >= Inode::kSlots && (i - Inode::kSlots) % ExtentPage::kSlots == 0) {
      uint64_t* page = &inode.pages[(i - Inode::kSlots) / ExtentPage::kSlots];
      if (*page == 0) break;
      pages.push_back(page);
    }
    ExtentSlot* slot = slot_of(node, i);
    if (slot->offset != 0) extents.push_back(&slot->offset);
  }
  unlink_all(extents);
  std::reverse(pages.begin(), pages.end());  // so that they stay a row, from the first one on
  for (uint64_t*& page : pages) unlink_all(std::span(&page, 1));
  const std::lock_guard lock(names_mutex_);  // who walks the table finds no inode that is gone
  std::array<uint64_t*, 1> entry{entry_of(node.number)};
  unlink_all(entry);
  free_numbers_.push_back(node.number);  // there is room for all
} catch (const std::bad_alloc&) {
  return;  // the file is gone, and what is left of it is still led to
}

void FileSystem::store_size(const Node& node, uint64_t length, uint64_t bytes) {
  Inode& inode = inode_of(node);
  // In this order, which one line keeps: the length is never less than one that was promised, and a
  // shorter one finds no tail to be added to it.
  if (inode.tail_word != 0) {
    pm::store_release(inode.size_word, pm::seal_word(length, salt_of(node, kSizeSalt)));
    pm::store_release(inode.tail_word, uint64_t{0});
  }
  pm::store_release(inode.size_word, pm::seal_word(bytes, salt_of(node, kSizeSalt)));
  memory_.flush(&inode.size_word, sizeof inode.size_word);
}

void FileSystem::store_tail(const Node& node, uint64_t length, std::string_view bytes) {
  Inode& inode = inode_of(node);
  // In this order: with the append offset the last tail is part of the file, and ends; the new one
  // counts from the last store on. Between them a crash finds the length so far.
  pm::store_release(inode.size_word, pm::seal_word(length, salt_of(node, kSizeSalt)));
  pm::store_release(inode.tail_sum,
                    pm::checksum64(bytes.data(), bytes.size(), salt_of(node, kTailSalt) + length));
  pm::store_release(inode.tail_word,
                    pm::seal_word(length + bytes.size(), salt_of(node, kTailSalt)));
  memory_.flush(&inode.size_word, pm::kLineBytes);
}

void FileSystem::store_modified(const Node& node) {
  Inode& inode = inode_of(node);
  pm::store_relaxed(inode.modified_word, pm::seal_word(static_cast<uint64_t>(std::time(nullptr)),
                                                       salt_of(node, kTimeSalt)));
  memory_.flush(&inode.modified_word, sizeof inode.modified_word);
}

}  // namespace perdure::files
