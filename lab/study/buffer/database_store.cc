#include "lab/study/buffer/database_store.h"

#include <fmt/core.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "lab/bench/trial.h"

namespace perdure::lab::study {
namespace {

Pool pool_at(const std::string& path, uint64_t capacity_bytes, Durability durability) {
  std::filesystem::create_directories(path);
  PoolOptions options;
  options.capacity_bytes = capacity_bytes;
  options.seal_on_close = false;
  BenchOptions where;
  where.folder = path;
  if (const std::optional<Domain> domain = forced_domain(where)) {
    options.force_domain = true;
    options.domain = *domain;
  } else if (std::getenv("PERDURE_DOMAIN") == nullptr) {
    options.durability = durability;
  }
  const std::string file = path + "/pool";
  return std::filesystem::exists(file) ? Pool::open(file, options) : Pool::create(file, options);
}

DatabaseOptions in_folder(const std::string& path, DatabaseOptions database) {
  database.page_file = path + "/pages";
  return database;
}

}  // namespace

class DatabaseStore::One final : public TransactionalStore::Transaction {
 public:
  One(DatabaseStore& store, perdure::Transaction& begun) : store_(store), begun_(begun) {}
  bool get(unsigned table, std::string_view key, std::string& value) override {
    std::optional<std::string> found = begun_.get(store_.trees_[table], key);
    if (!found) return false;
    value = std::move(*found);
    return true;
  }
  void put(unsigned table, std::string_view key, std::string_view value) override {
    begun_.put(store_.trees_[table], key, value);
  }

 private:
  DatabaseStore& store_;
  perdure::Transaction& begun_;
};

DatabaseStore::DatabaseStore(const std::string& path, DatabaseOptions database, unsigned tables,
                             uint64_t capacity_bytes, Durability durability)
    : pool_(pool_at(path, capacity_bytes, durability)),
      database_(Database::open_or_create(pool_, "study", in_folder(path, std::move(database)))) {
  for (unsigned i = 0; i < tables; ++i) trees_.push_back(database_.tree(fmt::format("table{}", i)));
}

void DatabaseStore::write(const Work& work) {
  database_.transact([&](perdure::Transaction& begun) {
    One one(*this, begun);
    work(one);
  });
}

void DatabaseStore::read(const Work& work) { write(work); }

void DatabaseStore::scan(unsigned table,
                         const std::function<void(std::string_view, std::string_view)>& visit) {
  perdure::Transaction begun = database_.begin();
  Cursor at = begun.cursor(trees_[table]);
  for (bool more = at.seek_first(); more; more = at.next()) visit(at.key(), at.value());
}

}  // namespace perdure::lab::study
