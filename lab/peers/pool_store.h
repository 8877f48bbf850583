// LevelDB and RocksDB with their files in a pool.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "lab/peers/peer.h"
#include "perdure/pool.h"

namespace perdure::lab::peers {

template <typename Env>
class PoolStore final : public BenchStore {
 public:
  // `make_env(pool)` and `open(env)` give the environment, and the index in it.
  template <typename MakeEnv, typename Open>
  PoolStore(const std::string& path, const StoreOptions& options, MakeEnv make_env, Open open)
      : pool_(std::filesystem::exists(path) ? Pool::open(path, options.pool)
                                            : Pool::create(path, options.pool)),
        env_(make_env(pool_)),
        index_(open(env_.get())) {}

  AnyIndex& index() override { return *index_; }
  uint64_t stored_bytes() const override { return pool_.info().allocated_bytes; }
  std::optional<PoolInfo> pool_info() const override { return pool_.info(); }

 private:
  Pool pool_;
  std::unique_ptr<Env> env_;
  std::unique_ptr<AnyIndex> index_;  // closed first
};

inline Contender pool_store(const char* name, OpenStore open, bool synced) {
  Contender contender = folder_store(name, "", open, synced);
  if (!synced)
    contender.durability = "the death of the process; the last writes not a power failure";
  return contender;
}

}  // namespace perdure::lab::peers
