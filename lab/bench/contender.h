// What a benchmark can measure, behind one interface: structures of the catalogue, other stores,
// the volatile bounds, and "null".
//
// To add one, make a Contender and let find_contender() find it; a store that comes as a package of
// its own goes to the peers (peers.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "perdure/index.h"
#include "perdure/pool.h"

namespace perdure::lab {

// How a store is made.
struct StoreOptions {
  Kind key_kind = Kind::kU64;
  Kind value_kind = Kind::kU64;
  uint64_t key_bytes = 16;  // of byte strings
  uint64_t value_bytes = 64;
  unsigned threads = 1;
  PoolOptions pool;             // of structures
  OptionMap structure_options;  // of structures
};

// An open store; the destructor closes it cleanly.
class BenchStore {
 public:
  virtual ~BenchStore() = default;
  virtual AnyIndex& index() = 0;
  virtual uint64_t stored_bytes() const = 0;  // on its medium
  virtual std::optional<PoolInfo> pool_info() const { return std::nullopt; }
};

using StoreMaker =
    std::function<std::unique_ptr<BenchStore>(const std::string& path, const StoreOptions&)>;

struct Contender {
  std::string name;
  std::string kind;        // "structure", "peer", "dram", "null", "plugin"
  std::string durability;  // what an operation that returned survives; empty: ask the pool
  bool ordered = true;
  bool concurrent = true;
  std::vector<std::pair<Kind, Kind>> kinds;  // of keys and values; empty: all
  StoreMaker create;                         // a file or folder that is not there yet
  StoreMaker open;                           // empty: nothing of it stays
  bool keeps_records = true;                 // what was written can be read
  bool may_fork = false;  // a forked child may make one, so that the child can be killed
};

// Throws Error(kInvalidArgument) on names that there are not, and Error(kNotFound) on peers that
// this build has not.
Contender find_contender(const std::string& name);

// "plush, cceh, ..., null, rocksdb, ...", of all that can be named.
std::vector<std::string> contender_names();

// A store that is an index and nothing else.
class IndexStore final : public BenchStore {
 public:
  explicit IndexStore(std::unique_ptr<AnyIndex> index) : index_(std::move(index)) {}
  AnyIndex& index() override { return *index_; }
  uint64_t stored_bytes() const override { return 0; }

 private:
  std::unique_ptr<AnyIndex> index_;
};

}  // namespace perdure::lab
