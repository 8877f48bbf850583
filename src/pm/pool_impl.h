// An open pool, as the structures see it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "perdure/pool.h"
#include "pm/heap.h"
#include "pm/layout.h"
#include "pm/mapping.h"
#include "pm/memory.h"

namespace perdure::pm {

class PoolImpl {
 public:
  static std::unique_ptr<PoolImpl> create(Mapping mapping, const PoolOptions& options);
  static std::unique_ptr<PoolImpl> open(Mapping mapping, const PoolOptions& options);
  ~PoolImpl();

  const Memory& memory() const { return memory_; }
  Heap& heap() { return *heap_; }
  const Heap& heap() const { return *heap_; }
  const Mapping& mapping() const { return mapping_; }
  const PoolHeader& header() const { return *at<PoolHeader>(0); }
  Lane* lanes() const { return at<Lane>(header().lanes_offset); }
  SegmentDescriptor* descriptors() const {
    return at<SegmentDescriptor>(header().descriptors_offset);
  }

  char* base() const { return mapping_.base(); }
  template <typename T>
  T* at(uint64_t offset) const {
    return reinterpret_cast<T*>(mapping_.base() + offset);
  }
  uint64_t offset_of(const void* address) const {
    return static_cast<uint64_t>(static_cast<const char*>(address) - mapping_.base());
  }

  // Segments that have blocks on the medium, and how many there may be.
  uint64_t segments() const { return segments_.load(std::memory_order_acquire); }
  uint64_t segments_max() const;
  // One past the last byte in use.
  uint64_t end_offset() const { return header().data_offset + segments() * kSegmentBytes; }

  // Extends the pool by at least `segments` (less if the capacity ends first). Durable on return.
  // Throws kPoolFull at capacity, kNoSpace. The caller serialises calls.
  void grow(uint64_t segments);

  uint64_t generation() const { return generation_; }
  bool read_only() const { return mapping_.read_only(); }
  // Throws kReadOnly if the pool may not be modified, kIo if its medium has failed.
  void require_writable() const;

  PoolInfo info() const;
  void sync() const;
  void close();
  uint64_t check(const std::function<void(const std::string&)>& report) const;

  // The root directory. Serialise creations with directory_mutex().
  std::mutex& directory_mutex() { return directory_mutex_; }
  std::vector<StructureInfo> structures() const;
  // The entry of this name, or null. Throws kCorrupt if its checksum does not hold.
  const DirectoryEntry* find(std::string_view name) const;
  // Throws kNoSuchName, or kWrongType unless type and kinds fit.
  const DirectoryEntry& require(std::string_view name, std::string_view type, uint8_t key_kind,
                                uint8_t value_kind) const;
  // A free entry for a structure about to be made. Throws kNameExists, kInvalidArgument (bad name),
  // kPoolFull (no free entry), kReadOnly.
  DirectoryEntry* reserve_entry(std::string_view name) const;
  static DirectoryEntry make_entry(std::string_view name, std::string_view type, uint8_t key_kind,
                                   uint8_t value_kind, uint64_t root);

  // Yields the processor: what a thread does that waits for another one's short critical section.
  static void pause() { std::this_thread::yield(); }

 private:
  PoolImpl(Mapping mapping, Domain domain, Durability durability);

  DirectoryEntry* directory() const { return at<DirectoryEntry>(header().directory_offset); }
  // Fails closed on a damaged entry, and on a free one that is not empty.
  void check_directory() const;
  [[noreturn]] void throw_damaged(uint32_t entry) const;
  void write_header(const PoolOptions& options, uint64_t capacity_bytes);
  void start_generation();

  std::atomic<bool> failed_{false};
  Mapping mapping_;
  Memory memory_;
  Durability durability_;
  std::unique_ptr<Heap> heap_;
  std::atomic<uint64_t> segments_{0};
  uint64_t generation_ = 0;
  bool clean_before_ = true;
  bool open_ = false;
  std::mutex directory_mutex_;
};

}  // namespace perdure::pm
