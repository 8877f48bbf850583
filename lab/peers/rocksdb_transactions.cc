// RocksDB's TransactionDB, for `perdure study buffer-pool`: locks on rows, its log synced at each
// commit. Settings as those of the benchmark's peer.
#include <fmt/core.h>
#include <rocksdb/cache.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/iterator.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/utilities/transaction.h>
#include <rocksdb/utilities/transaction_db.h>

#include <memory>
#include <vector>

#include "lab/study/buffer/transactional_store.h"
#include "perdure/error.h"

namespace perdure::lab::peers {
namespace {

void require_done(const rocksdb::Status& status) {
  if (!status.ok()) throw Error(ErrorCode::kIo, "RocksDB: " + status.ToString());
}

// Another transaction holds a lock for too long, or has changed what this one is to lock.
struct Again {};

class RocksTransactions final : public study::TransactionalStore {
 public:
  explicit RocksTransactions(const study::TransactionalOptions& options) {
    rocksdb::Options settings;
    settings.create_if_missing = true;
    settings.create_missing_column_families = true;
    settings.compression = rocksdb::kNoCompression;
    settings.IncreaseParallelism(2);
    rocksdb::BlockBasedTableOptions table;
    table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
    table.block_cache = rocksdb::NewLRUCache(options.memory_bytes);
    settings.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
    std::vector<rocksdb::ColumnFamilyDescriptor> families = {
        {rocksdb::kDefaultColumnFamilyName, settings}};
    for (unsigned i = 0; i < options.tables; ++i)
      families.emplace_back(fmt::format("table{}", i), settings);
    rocksdb::TransactionDB* db = nullptr;
    require_done(
        rocksdb::TransactionDB::Open(settings, {}, options.path, families, &handles_, &db));
    db_.reset(db);
    write_.sync = true;
  }
  ~RocksTransactions() override {
    for (rocksdb::ColumnFamilyHandle* handle : handles_) db_->DestroyColumnFamilyHandle(handle);
  }
  RocksTransactions(const RocksTransactions&) = delete;
  RocksTransactions& operator=(const RocksTransactions&) = delete;

  void write(const Work& work) override {
    for (;;) {
      const std::unique_ptr<rocksdb::Transaction> begun(db_->BeginTransaction(write_));
      try {
        One one(*this, begun.get());
        work(one);
        require(begun->Commit());
        return;
      } catch (const Again&) {
        require_done(begun->Rollback());
      }
    }
  }

  void read(const Work& work) override {
    One one(*this, nullptr);
    work(one);
  }

  void scan(unsigned table,
            const std::function<void(std::string_view, std::string_view)>& visit) override {
    const std::unique_ptr<rocksdb::Iterator> at(db_->NewIterator(read_, handles_[table + 1]));
    for (at->SeekToFirst(); at->Valid(); at->Next()) {
      visit({at->key().data(), at->key().size()}, {at->value().data(), at->value().size()});
    }
    require_done(at->status());
  }

 private:
  class One final : public Transaction {
   public:
    // Without a transaction: for reads alone.
    One(RocksTransactions& store, rocksdb::Transaction* begun) : store_(store), begun_(begun) {}
    bool get(unsigned table, std::string_view key, std::string& value) override {
      rocksdb::ColumnFamilyHandle* handle = store_.handles_[table + 1];
      const rocksdb::Slice sought(key.data(), key.size());
      return found(begun_ != nullptr ? begun_->Get(store_.read_, handle, sought, &value)
                                     : store_.db_->Get(store_.read_, handle, sought, &value));
    }
    bool get_to_change(unsigned table, std::string_view key, std::string& value) override {
      return found(begun_->GetForUpdate(store_.read_, store_.handles_[table + 1],
                                        {key.data(), key.size()}, &value));
    }
    void put(unsigned table, std::string_view key, std::string_view value) override {
      require(begun_->Put(store_.handles_[table + 1], rocksdb::Slice(key.data(), key.size()),
                          rocksdb::Slice(value.data(), value.size())));
    }

   private:
    static bool found(const rocksdb::Status& status) {
      if (status.IsNotFound()) return false;
      require(status);
      return true;
    }
    RocksTransactions& store_;
    rocksdb::Transaction* begun_;
  };

  static void require(const rocksdb::Status& status) {
    if (status.IsBusy() || status.IsTimedOut() || status.IsTryAgain()) throw Again{};
    require_done(status);
  }

  std::unique_ptr<rocksdb::TransactionDB> db_;
  std::vector<rocksdb::ColumnFamilyHandle*> handles_;
  rocksdb::ReadOptions read_;
  rocksdb::WriteOptions write_;
};

}  // namespace
}  // namespace perdure::lab::peers

extern "C" __attribute__((visibility("default"))) perdure::lab::study::TransactionalStore*
perdure_open_transactional(const perdure::lab::study::TransactionalOptions& options) {
  return new perdure::lab::peers::RocksTransactions(options);
}
