#include "lab/bench/contender.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lab/bench/null_index.h"
#include "lab/bench/peers.h"
#include "lab/bench/plugin.h"
#include "perdure/catalog.h"
#include "perdure/error.h"

namespace perdure::lab {
namespace {

constexpr const char* kIndexName = "bench";

class PoolStore final : public BenchStore {
 public:
  PoolStore(Pool pool, std::unique_ptr<AnyIndex> index)
      : pool_(std::move(pool)), index_(std::move(index)) {}

  AnyIndex& index() override { return *index_; }
  uint64_t stored_bytes() const override { return pool_.info().high_water_bytes; }
  std::optional<PoolInfo> pool_info() const override { return pool_.info(); }

 private:
  Pool pool_;
  std::unique_ptr<AnyIndex> index_;  // closes before its pool
};

Contender contender_of(const CatalogEntry& entry) {
  Contender contender;
  contender.name = entry.name;
  contender.kind = "structure";
  contender.ordered = entry.traits.ordered;
  contender.concurrent = entry.traits.concurrent;
  contender.kinds = entry.traits.kinds;
  contender.may_fork = true;
  contender.create = [name = entry.name](const std::string& path, const StoreOptions& options) {
    Pool pool = Pool::create(path, options.pool);
    std::unique_ptr<AnyIndex> index = create_index(pool, kIndexName, name, options.key_kind,
                                                   options.value_kind, options.structure_options);
    return std::make_unique<PoolStore>(std::move(pool), std::move(index));
  };
  contender.open = [](const std::string& path, const StoreOptions& options) {
    Pool pool = Pool::open(path, options.pool);
    std::unique_ptr<AnyIndex> index = open_index(pool, kIndexName);
    return std::make_unique<PoolStore>(std::move(pool), std::move(index));
  };
  return contender;
}

Contender null_contender() {
  Contender contender;
  contender.name = kNullName;
  contender.kind = "null";
  contender.durability = "nothing: it keeps nothing";
  contender.keeps_records = false;
  contender.create = [](const std::string&, const StoreOptions& options) {
    return std::make_unique<IndexStore>(make_null_index(options.key_kind, options.value_kind));
  };
  return contender;
}

}  // namespace

Contender find_contender(const std::string& name) {
  if (name == kNullName) return null_contender();
  for (const CatalogEntry& entry : catalog()) {
    if (entry.name == name) return contender_of(entry);
  }
  if (name == "store" || name.starts_with("store+")) return contender_of(catalog_entry(name));
  if (is_peer(name)) return load_peer(name);
  if (is_plugin(name)) return plugin_contender(name);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("there is no \"{}\" to measure: choose from {}", name,
                          fmt::join(contender_names(), ", ")));
}

std::vector<std::string> contender_names() {
  std::vector<std::string> names;
  for (const CatalogEntry& entry : catalog()) names.push_back(entry.name);
  names.emplace_back(kNullName);
  for (const std::string& peer : peer_names()) names.push_back(peer);
  return names;
}

}  // namespace perdure::lab
