// Files in a pool: names, space, and opening. See include/perdure/files.h and docs/lsm.md.
//
// What makes a change durable, and what a crash between two steps leaves:
//   create    the inode, then its entry in the table (an intent decides about the block): a file or none
//   append    the bytes, fence, the append offset: the old length or the new one. What stands behind the
//             append offset counts for nothing, after any number of crashes, and is written before it counts
//   a few bytes  the bytes and, in the inode's line: the append offset before them, their sum, their end;
//             one fence. Opening sums up what is there: the new length if the sum is right, else the old one.
//             It makes its verdict durable, and the tail none, before anything is written behind it
//   grow      the extent's check and offset, in one line (an intent decides about the block)
//   rename    a redo record with the new name, and with the state of the file that it replaces
//   remove    the state becomes `doomed`: one word. Extents, pages, inode are returned after that, each
//             group by intents and fenced before what leads to it goes; opening goes on where a crash ended it
//   truncate  the append offset, fence; extents behind it are returned after that. A crash may leave some of
//             them, behind a hole: opening returns those
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "lsm/files/layout.h"
#include "lsm/files/node.h"
#include "perdure/files.h"
#include "pm/pool_impl.h"

namespace perdure::files {

class FileSystem {
 public:
  static std::shared_ptr<FileSystem> create(pm::PoolImpl& pool, const std::string& name);
  static std::shared_ptr<FileSystem> open(pm::PoolImpl& pool, const std::string& name);

  pm::PoolImpl& pool() const { return pool_; }

  // Names. Thread-safe.
  enum class Make : uint8_t { kNo, kEmpty, kAppend };
  // The file, counted as open (as being written unless kNo).
  std::shared_ptr<Node> acquire(std::string_view path, Make make);
  // The last one to close a file returns extents that it does not need, or all if it was removed.
  void release(const std::shared_ptr<Node>& node, bool writer) noexcept;
  // Whether others than the caller have the file open.
  bool is_shared(const Node& node) const;
  std::string name_of(const Node& node) const;
  bool make_directory(std::string_view path);
  void make_directories(std::string_view path);
  void remove(std::string_view path);
  void rename(std::string_view from, std::string_view to);
  std::optional<FileInfo> find(std::string_view path) const;
  std::vector<FileInfo> list(std::string_view path) const;
  bool lock(std::string_view path);
  void unlock(std::string_view path);

  // Space and length of a file; called by its writer.
  // Extents so that `bytes` fit in. Throws kPoolFull, kNoSpace: extents are as before.
  void ensure(Node& node, uint64_t bytes);
  // Returns extents that begin at `bytes` or later. Durable on return.
  void trim(Node& node, uint64_t bytes);
  // Stores the append offset and flushes it; the bytes before it are durable, and so is the file's
  // length so far. There is no tail then. Durable with the next fence.
  void store_size(const Node& node, uint64_t length, uint64_t bytes);
  // Stores a tail of these bytes behind `length`, which is durable, and flushes it. With the next
  // fence the file has its new length, if these bytes are durable by then.
  void store_tail(const Node& node, uint64_t length, std::string_view bytes);
  void store_modified(const Node& node);

  uint64_t free_bytes() const;
  uint64_t check(const std::function<void(const std::string&)>& report) const;
  std::vector<Statistic> statistics() const;
  void visit_blocks(const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const;

 private:
  struct Place;  // where a name is or would be

  FileSystem(pm::PoolImpl& pool, const std::string& name, uint64_t root);

  // Opening: throws kCorrupt.
  void recover();
  void read_table();
  std::shared_ptr<Node> read_inode(uint32_t number, uint64_t offset,
                                   std::unordered_set<uint64_t>& blocks,
                                   std::vector<uint64_t*>& left);
  void read_extents(Node& node, std::unordered_set<uint64_t>& blocks, std::vector<uint64_t*>& left);
  // Adds the tail to the length if its bytes are there.
  void read_tail(Node& node) const;
  void read_extent_page(const Node& node, uint32_t page,
                        std::unordered_set<uint64_t>& blocks) const;
  void build_tree(std::vector<std::shared_ptr<Node>>& nodes);
  void require_no_circles() const;
  void own(std::unordered_set<uint64_t>& blocks, uint64_t offset, uint64_t bytes,
           const std::string& what) const;
  [[noreturn]] void damaged(uint32_t number, const char* what) const;

  // The caller holds names_mutex_.
  Place place_of(std::string_view path) const;
  // The first name of a path, or of what is left of the `whole` one, which then is without it;
  // empty: there is none.
  std::string_view take_name(std::string_view& path, std::string_view whole) const;
  std::string spelling_of(std::string_view path) const;
  Node& directory_at(std::string_view path) const;
  std::shared_ptr<Node> add_node(Node& parent, std::string_view name, bool directory);
  uint32_t take_number();
  void add_table_page();
  void doom(const std::shared_ptr<Node>& node);
  void detach(Node& node);
  bool is_within(const Node& node, const Node& directory) const;
  FileInfo info_of(const Node& node) const;
  NameRecord name_record(const Node& node, uint64_t parent, std::string_view name) const;

  // Returns all blocks of a doomed file that nobody has open. Where there is no memory to do so,
  // the next opening does.
  void reclaim(const Node& node);
  void add_extent(Node& node, uint64_t bytes);
  void add_extent_page(const Node& node, uint32_t page);
  uint64_t next_extent_bytes(uint64_t have, uint64_t wanted) const;
  // Blocks that these words lead to become free, and the words 0. Durable on return.
  void unlink_all(std::span<uint64_t* const> links);

  Inode& inode_of(const Node& node) const { return *pool_.at<Inode>(node.inode); }
  uint64_t* entry_of(uint32_t number) const;
  ExtentSlot* slot_of(const Node& node, uint32_t i) const;  // null: its page is not there
  uint64_t salt_of(const Node& node, uint64_t salt) const { return salt_of(node.number, salt); }
  uint64_t salt_of(uint32_t number, uint64_t salt) const;
  uint64_t extent_salt(uint32_t number, uint32_t i, uint64_t offset) const;
  [[noreturn]] void fail(ErrorCode code, std::string_view path, const char* what) const;

  pm::PoolImpl& pool_;
  pm::PoolImpl::Use use_;
  const pm::Memory& memory_;
  std::string name_;
  Root& root_;
  mutable std::mutex names_mutex_;
  Node root_directory_;
  std::vector<uint64_t> pages_;  // of the table
  std::vector<uint32_t>
      free_numbers_;  // capacity for all numbers, so that returning one does not throw
  std::set<std::string> locks_;
};

}  // namespace perdure::files
