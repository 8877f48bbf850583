// Perdure's database: each operation a transaction of its own, as LMDB's here. Pages are in the
// pool, 256 MiB of them in DRAM, as much as the caches of the other peers.
#include "perdure/database.h"

#include <memory>

#include "lab/peers/pool_store.h"

namespace perdure::lab::peers {
namespace {

class DatabaseIndex final : public PeerIndex {
 public:
  DatabaseIndex(Database& database, Kind key_kind, Kind value_kind)
      : PeerIndex(key_kind, value_kind), database_(database), tree_(database.tree("records")) {}

  bool insert(Datum key, Datum value) override {
    const Encoded encoded_key(key);
    const Encoded encoded_value(value);
    bool inserted = false;
    database_.transact([&](Transaction& transaction) {
      inserted = transaction.insert(tree_, encoded_key.view(), encoded_value.view());
    });
    return inserted;
  }
  // Blind puts, as LMDB's.
  bool update(Datum key, Datum value) override {
    upsert(key, value);
    return true;
  }
  void upsert(Datum key, Datum value) override {
    const Encoded encoded_key(key);
    const Encoded encoded_value(value);
    database_.transact([&](Transaction& transaction) {
      transaction.put(tree_, encoded_key.view(), encoded_value.view());
    });
  }

  bool remove(Datum key) override {
    const Encoded encoded(key);
    bool removed = false;
    database_.transact(
        [&](Transaction& transaction) { removed = transaction.erase(tree_, encoded.view()); });
    return removed;
  }

  bool lookup(Datum key, Value& out) const override {
    const Encoded encoded(key);
    std::optional<std::string> found;
    database_.transact(
        [&](Transaction& transaction) { found = transaction.get(tree_, encoded.view()); });
    if (found) decode_into(value_kind(), *found, out);
    return found.has_value();
  }

  // Of one moment as far as writers let it: in a new transaction it goes on where it was.
  void scan(Datum from, uint64_t limit,
            const std::function<bool(Datum, Datum)>& visit) const override {
    std::string next(Encoded(from).view());
    uint64_t told = 0;
    database_.transact([&](Transaction& transaction) {
      Cursor at = transaction.cursor(tree_);
      at.seek(next);
      for (; told < limit && at.valid(); at.next()) {
        next = at.key();
        next += '\0';
        ++told;
        if (!visit(decode(key_kind(), at.key()), decode(value_kind(), at.value()))) return;
      }
    });
  }
  void scan_back(std::optional<Datum> from, uint64_t limit,
                 const std::function<bool(Datum, Datum)>& visit) const override {
    std::string end;  // the least key behind those that are to come
    if (from) end.assign(Encoded(*from).view()) += '\0';
    bool whole = !from;
    uint64_t told = 0;
    database_.transact([&](Transaction& transaction) {
      Cursor at = transaction.cursor(tree_);
      for (whole ? at.seek_last() : at.seek_below(end); told < limit && at.valid(); at.previous()) {
        end = at.key();
        whole = false;
        ++told;
        if (!visit(decode(key_kind(), at.key()), decode(value_kind(), at.value()))) return;
      }
    });
  }

 private:
  Database& database_;
  Tree tree_;
};

std::unique_ptr<BenchStore> open_store(const std::string& path, const StoreOptions& options, bool) {
  return std::make_unique<PoolStore<Database>>(
      path, options,
      [&](Pool& pool) {
        DatabaseOptions settings;
        settings.dram_bytes = uint64_t{256} << 20;
        return std::make_unique<Database>(Database::open_or_create(pool, "database", settings));
      },
      [&](Database* database) {
        return std::make_unique<DatabaseIndex>(*database, options.key_kind, options.value_kind);
      });
}

}  // namespace
}  // namespace perdure::lab::peers

extern "C" __attribute__((visibility("default"))) void perdure_bench_peers(
    std::vector<perdure::lab::Contender>& peers) {
  peers.push_back(perdure::lab::peers::folder_store("database", "each operation",
                                                    perdure::lab::peers::open_store, true));
}
