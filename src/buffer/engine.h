// A database that is open: its parts, commits, and the thread in the background.
//
// Commits are made by one thread at a time, which takes those that wait with it: one log entry, one
// fence for all. Those that it has taken wait for it alone, and not for the next one, which a log
// in a file may hold up for milliseconds. A commit is validated first. Of each record that was read
// a transaction keeps the *stamp* of its key, of each leaf that was scanned the stamp of its page:
// places in a table of LSNs, found by hash, that a commit sets for all keys and pages that it
// changes. A stamp that is newer than the transaction's moment is a conflict (or another key of the
// same hash, which costs a second attempt).
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "buffer/archive.h"
#include "buffer/btree/tree.h"
#include "buffer/change.h"
#include "buffer/layout.h"
#include "buffer/lifetime.h"
#include "buffer/log.h"
#include "buffer/log_file.h"
#include "buffer/pool.h"
#include "buffer/versions.h"
#include "perdure/database.h"
#include "pm/pool_impl.h"

namespace perdure::buffer {

// What a transaction has written: values, or nothing for keys that go.
using WriteMap = std::map<std::string, std::optional<std::string>, std::less<>>;
using Writes = std::map<uint64_t, WriteMap>;  // by the tree's root

inline constexpr uint64_t kCatalogueRoot = 1;

// Whose a page file is. Unknown: its page 0, which says so, is damaged.
enum class PageFileOwner : char { kThis = 't', kOther = 'o', kUnknown = 'u' };

class Engine {
 public:
  static std::unique_ptr<Engine> create(pm::PoolImpl& pool, const std::string& name,
                                        const DatabaseOptions& options);
  static std::unique_ptr<Engine> open(pm::PoolImpl& pool, const std::string& name,
                                      const DatabaseOptions& options);
  // To read what can be read, in a pool that is open read-only and lenient: all that is written
  // stays in memory. One thread uses it. `page_file`: empty if the pages are in the pool. Among
  // `log_files` is its own, if its log is in one and can be had. Throws as open().
  static std::unique_ptr<Engine> open_damaged(pm::PoolImpl& pool, const std::string& name,
                                              const std::string& page_file,
                                              const std::vector<std::string>& log_files = {});
  // Whether this file has the pages of this database, of which options_of() says that they are in
  // one. One of pages of another size or with another number of checksums is another's. Throws
  // kNotFound, kPermission, kLocked (open to write), and as options_of().
  static PageFileOwner owner_of_page_file(pm::PoolImpl& pool, const std::string& name,
                                          const std::string& page_file);
  // How the database was made, to make another one like it; of page_file and log_file only whether
  // there are such.
  // Throws kNoSuchName, kWrongType, kCorrupt.
  static DatabaseOptions options_of(pm::PoolImpl& pool, const std::string& name);
  // The heap blocks that a database owns, which need not be open. Throws kNoSuchName, kWrongType,
  // kCorrupt.
  static void visit_blocks(pm::PoolImpl& pool, const std::string& name,
                           const std::function<void(uint64_t offset, uint64_t bytes)>& visit);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Lifetime::Ref lifetime() const { return lifetime_.ref(); }
  BufferPool& buffer() { return *buffer_; }
  const PageFormat& format() const { return format_; }

  struct Commit {
    const Writes* writes = nullptr;
    const std::vector<uint32_t>* reads = nullptr;
    uint64_t moment = 0;
    std::function<void(Change&)> work;  // besides
    bool first = false;                 // before those that wait: for who has a HeldCommits
    std::atomic<bool> done = false;     // `error` is said by then
    std::exception_ptr error;
  };
  // Durable on return. Throws kConflict and what Transaction::commit() does.
  void commit(Commit& request);
  // Keeps all other threads from committing as long as it lives.
  class HeldCommits {
   public:
    explicit HeldCommits(Engine& engine)
        : engine_(engine),
          lock_(engine.commit_mutex_),
          before_(engine.holder_.exchange(std::this_thread::get_id())) {}
    ~HeldCommits() { engine_.holder_.store(before_); }
    HeldCommits(const HeldCommits&) = delete;
    HeldCommits& operator=(const HeldCommits&) = delete;

   private:
    Engine& engine_;
    std::unique_lock<std::recursive_mutex> lock_;
    std::thread::id before_;
  };

  // Of keys and pages.
  static uint32_t stamp_of(uint64_t root, std::string_view key);
  static uint32_t stamp_of_page(uint64_t page);
  uint64_t stamp(uint32_t place) const { return stamps_[place].load(std::memory_order_acquire); }
  // Throws kConflict if something at one of these places was changed after the moment.
  void validate(const std::vector<uint32_t>& reads, uint64_t moment) const;
  // Throws kIo if the log has failed, or a failure has left stamps that no moment will reach.
  void require_running() const;
  // All commits up to here are visible.
  uint64_t moment() const { return moment_.load(std::memory_order_acquire); }

  // What can be read of a damaged database, tree by tree: `tree` gets a name, then `record` its
  // records; `lost` a sentence for what cannot be read.
  void salvage(const std::function<void(std::string_view name)>& tree,
               const std::function<void(std::string_view key, std::string_view value)>& record,
               const std::function<void(Loss, const std::string&)>& lost);
  uint64_t page_count() const;

  // A moment that reads see as long as it lives.
  std::shared_ptr<Moment> begin_snapshot() { return versions_->begin(moment_); }

  // `moment`: then; null: now.
  uint64_t find_tree(std::string_view name, const Moment* moment = nullptr);  // its root, or 0
  uint64_t make_tree(std::string_view name);
  std::vector<std::string> trees(const Moment* moment = nullptr);
  // The LSN of the commit that made the tree; 0: before the database was opened. At older moments
  // its root is another tree's page, or none.
  uint64_t made_at(uint64_t root) const;

  void checkpoint();
  void recover(const std::function<void(const RecoveryProgress&)>& told);
  RecoveryProgress recovery() const;
  uint64_t check(const std::function<void(const std::string&)>& report);
  std::vector<Statistic> statistics();
  uint64_t writes_bytes_max() const { return log_.bytes() / 8; }

 private:
  Engine(pm::PoolImpl& pool, const std::string& name, uint64_t root,
         std::shared_ptr<const pm::PoolImpl::Use> use, std::unique_ptr<LogFile> log,
         std::unique_ptr<PageStore> store, std::unique_ptr<Archive> archive,
         const DatabaseOptions& options);
  SpaceBody space() const;
  void require_own_file();
  void format_pages();
  void resize(uint64_t frames);
  void set_moment_to_now();
  void look_for_turn(const Commit& request, std::unique_lock<std::mutex>& lock);
  void run_group();
  void give_up_lead(const std::vector<Commit*>& done);
  void run(const std::vector<Commit*>& group);
  void carry_out(const Commit& request, Change& change);
  void set_stamps(const Commit& request, const Change& change);
  void make_room();
  uint64_t shorten_log(uint64_t pages);
  void work_in_background();

  Lifetime lifetime_;
  pm::PoolImpl& pool_;
  std::shared_ptr<const pm::PoolImpl::Use> use_;
  std::string name_;
  Root& root_;
  PageFormat format_;
  Log log_;
  std::unique_ptr<PageStore> store_;
  std::unique_ptr<Archive> archive_;
  std::unique_ptr<BufferPool> buffer_;
  std::vector<std::string> log_files_not_used_;  // by who reads a damaged database, and why

  static constexpr uint32_t kStamps = 1 << 16;
  std::unique_ptr<std::atomic<uint64_t>[]> stamps_;
  std::atomic<uint64_t> moment_{0};
  std::shared_ptr<Versions> versions_;
  mutable std::mutex made_mutex_;
  std::unordered_map<uint64_t, uint64_t> made_;  // roots of trees, and LSNs
  std::atomic<bool> stopped_{false};             // undoing a commit has failed
  std::recursive_mutex commit_mutex_;
  std::atomic<std::thread::id> holder_;  // of a HeldCommits
  std::mutex queue_mutex_;
  std::condition_variable turn_;  // with queue_mutex_
  std::vector<Commit*> queue_;
  bool one_looks_ = false;               // in look_for_turn()
  std::atomic<bool> has_leader_{false};  // who makes those in the queue, or is about to
  std::vector<Commit*> group_memory_;    // of who commits
  std::atomic<uint64_t> commits_{0};
  std::atomic<uint64_t> conflicts_{0};
  std::atomic<uint64_t> groups_{0};
  uint64_t log_limit_ = 0;    // bytes in use; commits wait beyond. Of who commits
  SpareMemory spare_memory_;  // of who commits

  std::mutex background_mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::mutex judge_mutex_;
  std::thread background_;
};

}  // namespace perdure::buffer
