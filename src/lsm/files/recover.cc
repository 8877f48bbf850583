// Making, opening and verifying files: everything read from PM is judged before it is followed.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <random>
#include <string_view>

#include "lsm/files/file_system.h"
#include "pm/checksum.h"

namespace perdure::files {
namespace {

// Whether a path can lead to it, and nowhere else: who copies files out of a pool goes by it.
bool is_name(std::string_view name) {
  constexpr std::string_view kNone("/\0", 2);
  return name != "." && name != ".." && name.find_first_of(kNone) == std::string_view::npos;
}

}  // namespace

std::shared_ptr<FileSystem> FileSystem::create(pm::PoolImpl& pool, const std::string& name) {
  pool.require_writable();
  Root root{};
  root.seal.magic = kRootMagic;
  root.salt = std::random_device{}() | uint64_t{std::random_device{}()} << 32;
  index::make_structure(pool, name, Files::kTypeName, Kind::kBytes, Kind::kBytes, &root,
                        sizeof root, kSealedBytes, {});
  return open(pool, name);
}

std::shared_ptr<FileSystem> FileSystem::open(pm::PoolImpl& pool, const std::string& name) {
  const uint64_t root = index::find_structure(pool, name, Files::kTypeName, Kind::kBytes,
                                              Kind::kBytes, kRootMagic, sizeof(Root), kSealedBytes);
  std::shared_ptr<FileSystem> system(new FileSystem(pool, name, root));
  system->recover();
  return system;
}

FileSystem::FileSystem(pm::PoolImpl& pool, const std::string& name, uint64_t root)
    : pool_(pool),
      use_(pool, name, root),
      memory_(pool.memory()),
      name_(name),
      root_(*pool.at<Root>(root)) {
  root_directory_.directory = true;
}

void FileSystem::damaged(uint32_t number, const char* what) const {
  pool_.throw_corrupt(fmt::format("'{}': file {}: {}", name_, number, what));
}

// The block is allocated, and nobody else's.
void FileSystem::own(std::unordered_set<uint64_t>& blocks, uint64_t offset, uint64_t bytes,
                     const std::string& what) const {
  if (!pool_.leads_inside(offset, bytes) || !pool_.heap().is_allocated(offset, bytes)) {
    pool_.throw_corrupt(fmt::format("'{}': {} at {:#x} is not allocated", name_, what, offset));
  }
  if (!blocks.insert(offset).second) {
    pool_.throw_corrupt(fmt::format("'{}': {} at {:#x} has two owners", name_, what, offset));
  }
}

void FileSystem::read_table() {
  std::unordered_set<uint64_t> met;
  for (uint64_t offset = root_.table; offset != 0;) {
    own(met, offset, sizeof(TablePage), "the table of files");
    const auto* page = pool_.at<TablePage>(offset);
    uint64_t number = 0;
    if (!pm::unseal_word(page->mark, root_.salt + kTableSalt, number) ||
        number != pages_.size() + 1) {
      pool_.throw_corrupt(
          fmt::format("'{}': the table of files at {:#x} is damaged", name_, offset));
    }
    pages_.push_back(offset);
    offset = page->next;
  }
}

void FileSystem::read_extent_page(const Node& node, uint32_t page,
                                  std::unordered_set<uint64_t>& blocks) const {
  const uint64_t offset = inode_of(node).pages[page];
  own(blocks, offset, sizeof(ExtentPage), "a page of extents");
  uint64_t owner = 0;
  if (!pm::unseal_word(pool_.at<ExtentPage>(offset)->mark, root_.salt + kPageSalt, owner) ||
      owner != node.number) {
    damaged(node.number, "a page of its extents is damaged");
  }
}

// All extents of a doomed file are judged; of a live one those before a hole become its extents,
// and those behind it, which an interrupted truncation has left, are `left`, to be returned. A
// directory has none.
void FileSystem::read_extents(Node& node, std::unordered_set<uint64_t>& blocks,
                              std::vector<uint64_t*>& left) {
  const auto& pages = inode_of(node).pages;
  const auto row_end = std::find(std::begin(pages), std::end(pages), uint64_t{0});
  const bool in_a_row = std::all_of(row_end, std::end(pages), [](uint64_t at) { return at == 0; });
  if (!in_a_row) damaged(node.number, "a page of its extents is missing");
  bool hole = false;
  for (uint32_t i = 0; i < kExtentsMax; ++i) {
    if (i >= Inode::kSlots && (i - Inode::kSlots) % ExtentPage::kSlots == 0) {
      const uint32_t page = (i - Inode::kSlots) / ExtentPage::kSlots;
      if (pages[page] == 0) break;
      read_extent_page(node, page, blocks);
    }
    ExtentSlot& slot = *slot_of(node, i);
    if (slot.offset == 0) {
      hole = true;
      continue;
    }
    uint64_t lines = 0;
    if (!pm::unseal_word(slot.check, extent_salt(node.number, i, slot.offset), lines) ||
        lines == 0 || lines > pool_.capacity_bytes() / pm::kLineBytes) {
      damaged(node.number, "one of its extents is damaged");
    }
    own(blocks, slot.offset, lines * pm::kLineBytes, "an extent");
    if (node.directory) damaged(node.number, "it is a directory, and has content");
    if (hole && !node.doomed) left.push_back(&slot.offset);
    if (hole || node.doomed) continue;
    node.extents->reserve_one();
    node.extents->push(slot.offset, lines * pm::kLineBytes);
  }
  const uint64_t size = node.size.load(std::memory_order_relaxed);
  if (!node.directory && !node.doomed && size > node.extents->end()) {
    damaged(node.number, "it is longer than its extents");
  }
}

void FileSystem::read_tail(Node& node) const {
  const Inode& inode = inode_of(node);
  const uint64_t size = node.size.load(std::memory_order_relaxed);
  uint64_t end = 0;
  if (!pm::unseal_word(inode.tail_word, salt_of(node, kTailSalt), end)) {
    damaged(node.number, "its last append is damaged");
  }
  if (end <= size || node.doomed) return;
  if (node.directory || end - size > kTailBytesMax || end > node.extents->end()) {
    damaged(node.number, "its last append is too long");
  }
  std::array<char, kTailBytesMax> bytes;
  for (uint64_t at = size; at < end;) {
    const Extent& extent = node.extents->find(at);
    const uint64_t piece = std::min(end, extent.begin + extent.bytes) - at;
    const char* from = pool_.base() + extent.offset + (at - extent.begin);
    std::memcpy(bytes.data() + (at - size), from, piece);
    memory_.flush(from, piece);  // a process that died may have left them in the caches only
    at += piece;
  }
  if (pm::checksum64(bytes.data(), end - size, salt_of(node, kTailSalt) + size) != inode.tail_sum)
    return;  // not all of it got there: it was not acknowledged
  node.size = end;
}

std::shared_ptr<Node> FileSystem::read_inode(uint32_t number, uint64_t offset,
                                             std::unordered_set<uint64_t>& blocks,
                                             std::vector<uint64_t*>& left) {
  own(blocks, offset, sizeof(Inode), "a file");
  auto node = std::make_shared<Node>();
  node->number = number;
  node->inode = offset;
  const Inode& inode = inode_of(*node);
  const NameRecord& name = inode.name;
  if (name.checksum != pm::checksum64(&name, offsetof(NameRecord, checksum), root_.salt) ||
      name.number != number || name.name_bytes == 0 || name.name_bytes > kNameBytesMax ||
      !is_name({name.name, name.name_bytes}) ||
      (name.kind != FileKind::kFile && name.kind != FileKind::kDirectory)) {
    damaged(number, "its name is damaged");
  }
  uint64_t state = 0;
  uint64_t size = 0;
  if (!pm::unseal_word(inode.state_word, salt_of(number, kStateSalt), state) ||
      (state != static_cast<uint64_t>(State::kLive) &&
       state != static_cast<uint64_t>(State::kDoomed))) {
    damaged(number, "its state is damaged");
  }
  if (!pm::unseal_word(inode.size_word, salt_of(number, kSizeSalt), size)) {
    damaged(number, "its length is damaged");
  }
  node->directory = name.kind == FileKind::kDirectory;
  node->doomed = state == static_cast<uint64_t>(State::kDoomed);
  node->name.assign(name.name, name.name_bytes);
  node->size = size;
  if (!node->directory) node->extents = std::make_unique<ExtentList>();
  read_extents(*node, blocks, left);
  if (inode.tail_word != 0) read_tail(*node);
  // A process that died may have left these words in the caches only. From now on they count: were
  // they lost to a power failure after extents of a doomed file have been returned, it would be
  // live without them.
  memory_.flush(&inode.size_word, pm::kLineBytes);
  return node;
}

void FileSystem::build_tree(std::vector<std::shared_ptr<Node>>& nodes) {
  for (const std::shared_ptr<Node>& node : nodes) {
    if (!node || node->doomed) continue;
    const uint64_t parent = inode_of(*node).name.parent;
    Node* directory = parent == 0              ? &root_directory_
                      : parent <= nodes.size() ? nodes[parent - 1].get()
                                               : nullptr;
    if (directory == nullptr || !directory->directory || directory->doomed) {
      damaged(node->number, "its directory is not there");
    }
    if (!directory->children.emplace(node->name, node).second) {
      damaged(node->number, "another file has the same name");
    }
    node->parent = directory;
  }
}

// Each file leads up to the root directory; else directories would be in each other.
void FileSystem::require_no_circles() const {
  std::vector<const Node*> left{&root_directory_};
  uint64_t reached = 0;
  while (!left.empty()) {
    const Node* node = left.back();
    left.pop_back();
    reached += node->children.size();
    for (const auto& [name, child] : node->children) left.push_back(child.get());
  }
  uint64_t live = 0;
  for (uint32_t number = 1; number <= pages_.size() * TablePage::kEntries; ++number) {
    const uint64_t offset = *entry_of(number);
    if (offset == 0) continue;
    uint64_t state = 0;
    static_cast<void>(
        pm::unseal_word(pool_.at<Inode>(offset)->state_word, salt_of(number, kStateSalt), state));
    live += state == static_cast<uint64_t>(State::kLive) ? 1 : 0;
  }
  if (reached != live) {
    pool_.throw_corrupt(fmt::format("'{}': {} files are in directories that lead in a circle",
                                    name_, live - reached));
  }
}

void FileSystem::recover() {
  read_table();
  std::unordered_set<uint64_t> blocks(pages_.begin(), pages_.end());
  std::vector<std::shared_ptr<Node>> nodes(pages_.size() * TablePage::kEntries);
  std::vector<uint64_t*> left;
  free_numbers_.reserve(nodes.size());
  for (size_t i = nodes.size(); i > 0; --i) {
    const auto number = static_cast<uint32_t>(i);
    const uint64_t offset = *entry_of(number);
    if (offset == 0) {
      free_numbers_.push_back(number);
    } else {
      nodes[i - 1] = read_inode(number, offset, blocks, left);
    }
  }
  build_tree(nodes);
  require_no_circles();
  memory_
      // lengths and states as they were found, and tails, before anything is returned or read by
      // them
      .fence();
  bool had_tail = false;
  for (const std::shared_ptr<Node>& node : nodes) {
    if (!node || node->doomed || inode_of(*node).tail_word == 0 || pool_.read_only()) continue;
    store_size(*node, node->size, node->size);
    had_tail = true;
  }
  // The end of tails, before something is written behind the append offset: what was half there
  // could become whole, and come back after the next crash.
  if (had_tail) memory_.fence();
  unlink_all(left);  // now that all is judged: a damaged pool stays as it is
  for (const std::shared_ptr<Node>& node : nodes) {
    if (node && node->doomed) reclaim(*node);
  }
}

void FileSystem::visit_blocks(
    const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const {
  const std::lock_guard lock(names_mutex_);
  const index::VisitBlock block(pool_, visit);
  const auto* entry = pool_.find(name_);
  block(entry->root, sizeof(Root));
  for (const uint64_t page : pages_) block(page, sizeof(TablePage));
  // Words are read once: statistics may be asked for while files are written.
  for (uint32_t number = 1; number <= pages_.size() * TablePage::kEntries; ++number) {
    const uint64_t inode = pm::load_acquire(*entry_of(number));
    if (inode == 0) continue;
    block(inode, sizeof(Inode));
    Node node;
    node.number = number;
    node.inode = inode;
    for (const uint64_t& page : inode_of(node).pages) {
      const uint64_t offset = pm::load_acquire(page);
      if (offset != 0) block(offset, sizeof(ExtentPage));
    }
    for (uint32_t i = 0; i < kExtentsMax; ++i) {
      const ExtentSlot* slot = slot_of(node, i);
      if (slot == nullptr) break;
      const uint64_t offset = pm::load_acquire(slot->offset);
      const uint64_t check = pm::load_relaxed(slot->check);
      uint64_t lines = 0;
      if (offset == 0 || !pm::unseal_word(check, extent_salt(number, i, offset), lines)) continue;
      block(offset, lines * pm::kLineBytes);
    }
  }
}

uint64_t FileSystem::check(const std::function<void(const std::string&)>& report) const {
  uint64_t violations = 0;
  const auto fail_with = [&](const std::string& what) {
    ++violations;
    report(fmt::format("'{}': {}", name_, what));
  };
  index::BlockOwners owners(pool_, name_, [&](const std::string& sentence) {
    ++violations;
    report(sentence);
  });
  visit_blocks([&](uint64_t offset, uint64_t bytes) { owners.meet(offset, bytes); });
  const std::lock_guard lock(names_mutex_);
  std::vector<const Node*> left{&root_directory_};
  while (!left.empty()) {
    const Node* directory = left.back();
    left.pop_back();
    for (const auto& [name, node] : directory->children) {
      left.push_back(node.get());
      const Inode& inode = inode_of(*node);
      uint64_t size = 0;
      if (*entry_of(node->number) != node->inode) {
        fail_with(fmt::format("file {} is not in the table", node->number));
        continue;
      }
      if (inode.name.checksum !=
              pm::checksum64(&inode.name, offsetof(NameRecord, checksum), root_.salt) ||
          inode.name.parent != directory->number ||
          name != std::string_view(inode.name.name, inode.name.name_bytes)) {
        fail_with(fmt::format("the name of file {} is damaged", node->number));
      }
      if (!pm::unseal_word(inode.size_word, salt_of(*node, kSizeSalt), size) ||
          (!node->written && inode.tail_word == 0 &&
           size != node->size.load(std::memory_order_acquire))) {
        fail_with(fmt::format("the length of file {} is damaged", node->number));
      }
    }
  }
  return violations;
}

std::vector<Statistic> FileSystem::statistics() const {
  index::StatisticList list;
  uint64_t pool_bytes = 0;
  visit_blocks([&](uint64_t, uint64_t bytes) { pool_bytes += bytes; });
  const std::lock_guard lock(names_mutex_);
  uint64_t files = 0;
  uint64_t directories = 0;
  uint64_t bytes = 0;
  uint64_t extents = 0;
  std::vector<const Node*> left{&root_directory_};
  while (!left.empty()) {
    const Node* directory = left.back();
    left.pop_back();
    for (const auto& [name, node] : directory->children) {
      left.push_back(node.get());
      ++(node->directory ? directories : files);
      if (node->directory) continue;
      bytes += node->size.load(std::memory_order_acquire);
      extents += node->extents->count();
    }
  }
  list.add("files", files, "");
  list.add("directories", directories, "");
  list.add("file_bytes", bytes, "bytes");
  list.add("extents", extents, "");
  list.add("pool_bytes", pool_bytes, "bytes");
  list.add("dram_bytes", (files + directories) * sizeof(Node) + files * sizeof(ExtentList),
           "bytes");
  return list.take();
}

}  // namespace perdure::files
