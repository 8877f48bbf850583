// Making a structure in a pool, and opening it: what is the same for all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "perdure/index.h"
#include "pm/pool_impl.h"

namespace perdure::index {

// How every root block begins. Sealed: does not change after creation.
struct RootSeal {
  uint64_t magic;     // of the structure's format
  uint64_t checksum;  // xxh3 of the parameters that follow, `sealed_bytes` of them
};

// A block that a new structure begins with.
struct NewBlock {
  uint64_t bytes;
  uint64_t link_at;  // where in the root its offset stands
  // Writes the block and flushes what it wrote; a fence follows.
  std::function<void(char* block)> fill;
};

using StructureUse = std::shared_ptr<const pm::PoolImpl::Use>;

// Makes the root block from `root` (which begins with a RootSeal, followed by `sealed_bytes` of
// parameters), its blocks, and the directory entry; all are there after a crash, or none. Returns
// the root's offset. `use`, if it is given, gets what its user holds as long as it is open: nobody
// else opens it before. Errors: kNameExists, kInvalidArgument, kPoolFull, kNoSpace, kReadOnly.
uint64_t make_structure(pm::PoolImpl& pool, const std::string& name, std::string_view type,
                        Kind key, Kind value, void* root, uint64_t root_bytes,
                        uint64_t sealed_bytes, std::span<const NewBlock> blocks,
                        StructureUse* use = nullptr);

// The same for roots of another form, which have no RootSeal: `seal(root)` completes the image when
// the offsets of the blocks stand in it.
uint64_t make_structure(pm::PoolImpl& pool, const std::string& name, std::string_view type,
                        Kind key, Kind value, void* root, uint64_t root_bytes,
                        const std::function<void(void* root)>& seal,
                        std::span<const NewBlock> blocks, StructureUse* use = nullptr);

// The root's offset of an existing structure. Errors: kNoSuchName, kWrongType, kCorrupt.
uint64_t find_structure(pm::PoolImpl& pool, const std::string& name, std::string_view type,
                        Kind key, Kind value, uint64_t magic, uint64_t root_bytes,
                        uint64_t sealed_bytes);
// The same for roots of another form: an allocated block; what it holds is the caller's to judge.
uint64_t find_structure(pm::PoolImpl& pool, const std::string& name, std::string_view type,
                        Kind key, Kind value, uint64_t root_bytes);

// Throws kInvalidArgument if an option that is fixed at creation was given another value.
void require_same(const pm::PoolImpl& pool, const std::string& name, const char* option,
                  uint64_t wanted, uint64_t have);
// Throws kInvalidArgument unless the option is 0 or in [least, most].
void require_range(const char* option, uint64_t value, uint64_t least, uint64_t most);

// For tables that move in parts: a part that a thread failed to move stays where it is until the
// structure is opened again, and nobody may wait for it. Throws kPoolFull.
[[noreturn]] void throw_stuck(const pm::PoolImpl& pool, const std::string& name);

// For visit_blocks(): reports the block at an offset by the bytes that it was allocated for.
class VisitBlock {
 public:
  using Visit = std::function<void(uint64_t offset, uint64_t bytes)>;

  VisitBlock(const pm::PoolImpl& pool, const Visit& visit) : pool_(pool), visit_(visit) {}
  void operator()(uint64_t offset, uint64_t bytes) const {
    visit_(offset, pool_.heap().block_bytes_at(offset, bytes));
  }

 private:
  const pm::PoolImpl& pool_;
  const Visit& visit_;
};

// Verifies that each block of a structure is allocated and met once. `fail` gets a sentence.
class BlockOwners {
 public:
  BlockOwners(const pm::PoolImpl& pool, std::string_view name,
              std::function<void(const std::string&)> fail)
      : pool_(pool), name_(name), fail_(std::move(fail)) {}
  void meet(uint64_t offset, uint64_t bytes);

 private:
  const pm::PoolImpl& pool_;
  std::string_view name_;
  std::function<void(const std::string&)> fail_;
  std::unordered_set<uint64_t> met_;
};

// The same of all blocks of a structure.
template <typename Core>
void check_owners(const Core& core, const pm::PoolImpl& pool, std::string_view name,
                  const std::function<void(const std::string&)>& fail) {
  BlockOwners owners(pool, name, fail);
  core.visit_blocks([&](uint64_t offset, uint64_t bytes) { owners.meet(offset, bytes); });
}

// What statistics() reports.
class StatisticList {
 public:
  void add(std::string name, uint64_t value, std::string unit) {
    list_.push_back({std::move(name), static_cast<double>(value), std::move(unit)});
  }
  // a / b; 0 if there is nothing to divide by.
  void add_ratio(std::string name, uint64_t a, uint64_t b, std::string unit) {
    const double ratio = b == 0 ? 0 : static_cast<double>(a) / static_cast<double>(b);
    list_.push_back({std::move(name), ratio, std::move(unit)});
  }
  std::vector<Statistic> take() { return std::move(list_); }

 private:
  std::vector<Statistic> list_;
};

// The bytes of all blocks of a structure.
template <typename Core>
uint64_t owned_bytes(const Core& core) {
  uint64_t sum = 0;
  core.visit_blocks([&](uint64_t, uint64_t bytes) { sum += bytes; });
  return sum;
}

// Writes zeros over whole lines past the caches. Durable after a fence.
void write_zeros(const pm::Memory& memory, void* target, uint64_t bytes);

// What a node in PM bears that was taken away in this generation. Volatile by meaning, as the
// generation is part of it; and no single damaged bit makes it of anything else.
constexpr uint32_t obsolete_mark(uint64_t generation) {
  return static_cast<uint32_t>(generation * 0x9e3779b97f4a7c15 >> 32) | 0xa0000005;
}

}  // namespace perdure::index
