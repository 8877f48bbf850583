// What pages were before, for snapshots: in DRAM, as long as one of them needs it.
//
// A snapshot is a moment: an LSN. A page whose LSN is not above it is as it was then. Of another
// one the version of that moment is here: the commit that changed the page has left it, before it
// let go of the page.
//
//   version   page, lsn: the page's then, until: the LSN of the entry that ended it
//             needed by the moments in [lsn, until)
//
// Each version belongs to the newest moment that needs it. When that ends, the version goes to the
// next older one, if that needs it, too, and else is freed. A snapshot that begins later needs none
// of those that are here. So a version is looked at once for each snapshot that needs it, and a
// page has at most one version for each snapshot.
//
// Why a snapshot finds what it needs: to become visible, to begin and to end are done one at a time
// (`mutex_`). What a commit finds begun is older than itself, and has its versions from here on;
// what begins later sees the commit.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace perdure::buffer {

struct PageVersion {
  uint64_t page;
  uint64_t lsn;
  uint64_t until;
  std::string bytes;
  std::shared_ptr<PageVersion> next;  // of the same moment
};

class Versions;

// The moment of a snapshot, which ends with this object. Thread-safe.
class Moment {
 public:
  Moment(std::shared_ptr<Versions> versions, uint64_t lsn)
      : versions_(std::move(versions)), lsn_(lsn) {}
  ~Moment();
  Moment(const Moment&) = delete;
  Moment& operator=(const Moment&) = delete;

  uint64_t lsn() const { return lsn_; }
  // The page at this moment, if it was changed since; null: it was not.
  std::shared_ptr<const PageVersion> find(uint64_t page) const;
  // Throws kTooOld if the moment was given up.
  void require() const;

 private:
  friend class Versions;
  std::shared_ptr<Versions> versions_;  // which may outlive the database so
  uint64_t lsn_;
  std::atomic<bool> given_up_{false};
  // Under Versions::mutex_.
  std::shared_ptr<PageVersion> owned_;
  Moment* older_ = nullptr;
  Moment* newer_ = nullptr;
};

// Held by shared pointers: moments keep it.
class Versions : public std::enable_shared_from_this<Versions> {
 public:
  // Of more than `bytes_max` the oldest moments are given up.
  explicit Versions(uint64_t bytes_max) : bytes_max_(bytes_max) {}
  Versions(const Versions&) = delete;
  Versions& operator=(const Versions&) = delete;

  // A snapshot of what is visible now.
  std::shared_ptr<Moment> begin(const std::atomic<uint64_t>& visible);

  using Keep = std::function<void(uint64_t page, uint64_t page_lsn,
                                  const std::function<std::string()>& before)>;
  // What the entry at `lsn` has changed, and still holds, becomes visible: `visible` becomes `now`.
  // If there are snapshots, `replaced` is called, and calls its argument for all pages with what
  // they were before. Throws nothing: without memory all snapshots are given up.
  void publish(std::atomic<uint64_t>& visible, uint64_t now, uint64_t lsn,
               const std::function<void(const Keep&)>& replaced);

  uint64_t moments() const { return moments_.load(std::memory_order_relaxed); }
  // Those that there are versions of.
  uint64_t pages();
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  uint64_t bytes_max() const { return bytes_max_; }
  uint64_t given_up() const { return given_up_.load(std::memory_order_relaxed); }

 private:
  friend class Moment;
  // What is freed when nothing is locked any more.
  using Garbage = std::shared_ptr<PageVersion>;
  struct alignas(64) Shard {
    std::mutex mutex;
    std::unordered_map<uint64_t, std::vector<std::shared_ptr<PageVersion>>> pages;  // oldest first
  };
  static constexpr uint64_t kShards = 64;
  static uint64_t bytes_of(const PageVersion& version) { return version.bytes.size() + 256; }
  static void free(Garbage garbage);

  Shard& shard_of(uint64_t page) { return shards_[page % kShards]; }
  std::shared_ptr<const PageVersion> find(const Moment& moment, uint64_t page);
  void keep(uint64_t page, uint64_t page_lsn, uint64_t until, std::string&& before);
  void drop(std::shared_ptr<PageVersion> version, Garbage& garbage);
  void give_up_oldest(Garbage& garbage);
  void unlink(Moment& moment, Garbage& garbage);
  void end(Moment& moment);

  uint64_t bytes_max_;
  std::mutex mutex_;
  Moment* oldest_ = nullptr;
  Moment* newest_ = nullptr;
  std::array<Shard, kShards> shards_;
  std::atomic<uint64_t> moments_{0};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> given_up_{0};
};

}  // namespace perdure::buffer
