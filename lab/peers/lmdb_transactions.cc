// LMDB's transactions, for `perdure study buffer-pool`: one writer at a time, its file synced at
// each commit; a read transaction for each thread, renewed for each use, as its manual advises.
#include <fmt/core.h>
#include <lmdb.h>

#include <filesystem>
#include <memory>
#include <mutex>
#include <vector>

#include "lab/study/buffer/transactional_store.h"
#include "perdure/error.h"

namespace perdure::lab::peers {
namespace {

void require_done(int code) {
  if (code == MDB_SUCCESS) return;
  throw Error(code == MDB_MAP_FULL ? ErrorCode::kNoSpace : ErrorCode::kIo,
              fmt::format("LMDB: {}", mdb_strerror(code)));
}

MDB_val slice_of(std::string_view bytes) { return {bytes.size(), const_cast<char*>(bytes.data())}; }

class LmdbTransactions final : public study::TransactionalStore {
 public:
  explicit LmdbTransactions(const study::TransactionalOptions& options) {
    std::filesystem::create_directories(options.path);
    require_done(mdb_env_create(&environment_));
    require_done(mdb_env_set_mapsize(environment_, size_t{1} << 38));
    require_done(mdb_env_set_maxdbs(environment_, options.tables));
    require_done(mdb_env_open(environment_, options.path.c_str(), MDB_NOTLS, 0600));
    tables_.resize(options.tables);
    MDB_txn* begun = nullptr;
    require_done(mdb_txn_begin(environment_, nullptr, 0, &begun));
    for (unsigned i = 0; i < options.tables; ++i) {
      require_done(mdb_dbi_open(begun, fmt::format("table{}", i).c_str(), MDB_CREATE, &tables_[i]));
    }
    require_done(mdb_txn_commit(begun));
  }
  ~LmdbTransactions() override {
    for (MDB_txn* reader : readers_) mdb_txn_abort(reader);
    mdb_env_close(environment_);
  }
  LmdbTransactions(const LmdbTransactions&) = delete;
  LmdbTransactions& operator=(const LmdbTransactions&) = delete;

  void write(const Work& work) override {
    MDB_txn* begun = nullptr;
    require_done(mdb_txn_begin(environment_, nullptr, 0, &begun));
    try {
      One one(*this, begun);
      work(one);
    } catch (...) {
      mdb_txn_abort(begun);
      throw;
    }
    require_done(mdb_txn_commit(begun));
  }

  void read(const Work& work) override {
    // Of this one alone: a process has no other.
    thread_local MDB_txn* reader = nullptr;
    thread_local const LmdbTransactions* owner = nullptr;
    if (owner == this) {
      require_done(mdb_txn_renew(reader));
    } else {
      const std::lock_guard lock(mutex_);
      require_done(mdb_txn_begin(environment_, nullptr, MDB_RDONLY, &reader));
      readers_.push_back(reader);
      owner = this;
    }
    struct Reset {
      MDB_txn* transaction;
      ~Reset() { mdb_txn_reset(transaction); }
    } const reset{reader};
    One one(*this, reader);
    work(one);
  }

  void scan(unsigned table,
            const std::function<void(std::string_view, std::string_view)>& visit) override {
    MDB_txn* begun = nullptr;
    require_done(mdb_txn_begin(environment_, nullptr, MDB_RDONLY, &begun));
    const std::unique_ptr<MDB_txn, void (*)(MDB_txn*)> ending(begun, mdb_txn_abort);
    MDB_cursor* cursor = nullptr;
    require_done(mdb_cursor_open(begun, tables_[table], &cursor));
    const std::unique_ptr<MDB_cursor, void (*)(MDB_cursor*)> closing(cursor, mdb_cursor_close);
    MDB_val key{};
    MDB_val value{};
    int code = 0;
    for (;;) {
      code = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
      if (code == MDB_NOTFOUND) return;
      require_done(code);
      visit({static_cast<const char*>(key.mv_data), key.mv_size},
            {static_cast<const char*>(value.mv_data), value.mv_size});
    }
  }

 private:
  class One final : public Transaction {
   public:
    One(LmdbTransactions& store, MDB_txn* begun) : store_(store), begun_(begun) {}
    bool get(unsigned table, std::string_view key, std::string& value) override {
      MDB_val sought = slice_of(key);
      MDB_val found;
      const int code = mdb_get(begun_, store_.tables_[table], &sought, &found);
      if (code == MDB_NOTFOUND) return false;
      require_done(code);
      value.assign(static_cast<const char*>(found.mv_data), found.mv_size);
      return true;
    }
    void put(unsigned table, std::string_view key, std::string_view value) override {
      MDB_val at = slice_of(key);
      MDB_val bytes = slice_of(value);
      require_done(mdb_put(begun_, store_.tables_[table], &at, &bytes, 0));
    }

   private:
    LmdbTransactions& store_;
    MDB_txn* begun_;
  };

  MDB_env* environment_ = nullptr;
  std::vector<MDB_dbi> tables_;
  std::mutex mutex_;
  std::vector<MDB_txn*> readers_;
};

}  // namespace
}  // namespace perdure::lab::peers

extern "C" __attribute__((visibility("default"))) perdure::lab::study::TransactionalStore*
perdure_open_transactional(const perdure::lab::study::TransactionalOptions& options) {
  return new perdure::lab::peers::LmdbTransactions(options);
}
