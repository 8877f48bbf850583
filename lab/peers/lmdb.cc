// LMDB: one write transaction for each operation; a read transaction for each thread, renewed for
// each lookup, as its manual advises. The map is as large as the file system may hold.

#include <fmt/core.h>
#include <lmdb.h>
#include <sys/stat.h>

#include <atomic>
#include <mutex>

#include "lab/peers/peer.h"

namespace perdure::lab::peers {
namespace {

constexpr size_t kMapBytes = size_t{1} << 38;  // of addresses; the file grows as it is written
constexpr unsigned kReaders = 1024;

void require(int code) {
  if (code == MDB_SUCCESS) return;
  throw Error(code == MDB_MAP_FULL ? ErrorCode::kNoSpace : ErrorCode::kIo,
              fmt::format("LMDB: {}", mdb_strerror(code)));
}

MDB_val value_of(const Encoded& encoded) {
  return {encoded.view().size(), const_cast<char*>(encoded.view().data())};
}

std::string_view view_of(const MDB_val& value) {
  return {static_cast<const char*>(value.mv_data), value.mv_size};
}

class Lmdb final : public PeerIndex {
 public:
  Lmdb(const std::string& path, Kind key_kind, Kind value_kind, bool synced)
      : PeerIndex(key_kind, value_kind), number_(next_number()) {
    require(mdb_env_create(&environment_));
    require(mdb_env_set_mapsize(environment_, kMapBytes));
    require(mdb_env_set_maxreaders(environment_, kReaders));
    require(mdb_env_open(environment_, path.c_str(),
                         MDB_NOTLS | (synced ? 0U : unsigned{MDB_NOSYNC}), 0600));
    write([&](MDB_txn* transaction) {
      require(mdb_dbi_open(transaction, nullptr, 0, &table_));
      return true;
    });
  }

  ~Lmdb() override {
    for (MDB_txn* reader : readers_) mdb_txn_abort(reader);
    mdb_env_sync(environment_, 1);
    mdb_env_close(environment_);
  }

  Lmdb(const Lmdb&) = delete;
  Lmdb& operator=(const Lmdb&) = delete;

  bool insert(Datum key, Datum value) override { return put(key, value, MDB_NOOVERWRITE); }
  // Blind puts, as RocksDB's and LevelDB's here.
  bool update(Datum key, Datum value) override { return put(key, value, 0); }
  void upsert(Datum key, Datum value) override { put(key, value, 0); }

  bool remove(Datum key) override {
    const Encoded encoded(key);
    return write([&](MDB_txn* transaction) {
      MDB_val sought = value_of(encoded);
      return present(mdb_del(transaction, table_, &sought, nullptr));
    });
  }

  bool lookup(Datum key, Value& out) const override {
    const Encoded encoded(key);
    return read([&](MDB_txn* transaction) {
      MDB_val sought = value_of(encoded);
      MDB_val found;
      if (!present(mdb_get(transaction, table_, &sought, &found))) return false;
      decode_into(value_kind(), view_of(found), out);
      return true;
    });
  }

  void scan(Datum from, uint64_t limit,
            const std::function<bool(Datum, Datum)>& visit) const override {
    const Encoded encoded(from);
    read([&](MDB_txn* transaction) {
      MDB_cursor* cursor = nullptr;
      require(mdb_cursor_open(transaction, table_, &cursor));
      const std::unique_ptr<MDB_cursor, void (*)(MDB_cursor*)> closing(cursor, mdb_cursor_close);
      MDB_val key = value_of(encoded);
      MDB_val value;
      MDB_cursor_op step = MDB_SET_RANGE;
      for (uint64_t told = 0; told < limit; ++told, step = MDB_NEXT) {
        if (!present(mdb_cursor_get(cursor, &key, &value, step))) return false;
        if (!visit(decode(key_kind(), view_of(key)), decode(value_kind(), view_of(value)))) {
          return false;
        }
      }
      return true;
    });
  }
  void scan_back(std::optional<Datum> from, uint64_t limit,
                 const std::function<bool(Datum, Datum)>& visit) const override {
    read([&](MDB_txn* transaction) {
      MDB_cursor* cursor = nullptr;
      require(mdb_cursor_open(transaction, table_, &cursor));
      const std::unique_ptr<MDB_cursor, void (*)(MDB_cursor*)> closing(cursor, mdb_cursor_close);
      MDB_val key{};
      MDB_val value{};
      MDB_cursor_op step = MDB_LAST;
      if (from) {
        const Encoded encoded(*from);
        key = value_of(encoded);
        // On the key itself, or on what follows it, if anything does.
        if (present(mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE))) {
          step = view_of(key) == encoded.view() ? MDB_GET_CURRENT : MDB_PREV;
        }
      }
      for (uint64_t told = 0; told < limit; ++told, step = MDB_PREV) {
        if (!present(mdb_cursor_get(cursor, &key, &value, step))) return false;
        if (!visit(decode(key_kind(), view_of(key)), decode(value_kind(), view_of(value)))) {
          return false;
        }
      }
      return true;
    });
  }

 private:
  static uint64_t next_number() {
    static std::atomic<uint64_t> number{0};
    return ++number;
  }

  static bool present(int code) {
    if (code == MDB_NOTFOUND || code == MDB_KEYEXIST) return false;
    require(code);
    return true;
  }

  bool put(Datum key, Datum value, unsigned flags) {
    const Encoded encoded_key(key);
    const Encoded encoded_value(value);
    return write([&](MDB_txn* transaction) {
      MDB_val put_key = value_of(encoded_key);
      MDB_val put_value = value_of(encoded_value);
      return present(mdb_put(transaction, table_, &put_key, &put_value, flags));
    });
  }

  template <typename Action>
  bool write(Action action) {
    MDB_txn* transaction = nullptr;
    require(mdb_txn_begin(environment_, nullptr, 0, &transaction));
    bool done = false;
    try {
      done = action(transaction);
    } catch (...) {
      mdb_txn_abort(transaction);
      throw;
    }
    require(mdb_txn_commit(transaction));
    return done;
  }

  // In this thread's read transaction, renewed so that it sees what was committed before.
  template <typename Action>
  bool read(Action action) const {
    MDB_txn* transaction = renewed_reader();
    struct Reset {
      MDB_txn* transaction;
      ~Reset() { mdb_txn_reset(transaction); }
    } const reset{transaction};
    return action(transaction);
  }

  MDB_txn* renewed_reader() const {
    thread_local uint64_t of_number = 0;
    thread_local MDB_txn* reader = nullptr;
    if (of_number == number_) {
      require(mdb_txn_renew(reader));
      return reader;
    }
    const std::lock_guard lock(mutex_);
    require(mdb_txn_begin(environment_, nullptr, MDB_RDONLY, &reader));
    readers_.push_back(reader);
    of_number = number_;
    return reader;
  }

  uint64_t number_;  // of this environment, unlike those of others in the process
  MDB_env* environment_ = nullptr;
  MDB_dbi table_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<MDB_txn*> readers_;
};

std::unique_ptr<BenchStore> open_store(const std::string& path, const StoreOptions& options,
                                       bool synced) {
  std::filesystem::create_directories(path);
  return std::make_unique<FolderStore>(
      path, std::make_unique<Lmdb>(path, options.key_kind, options.value_kind, synced));
}

}  // namespace
}  // namespace perdure::lab::peers

extern "C" __attribute__((visibility("default"))) void perdure_bench_peers(
    std::vector<perdure::lab::Contender>& peers) {
  using perdure::lab::peers::folder_store;
  using perdure::lab::peers::open_store;
  peers.push_back(folder_store("lmdb", "each operation: its file is synced (to no effect on tmpfs)",
                               open_store, true));
  peers.push_back(folder_store(
      "lmdb-nosync", "the death of the process; a power failure may damage it", open_store, false));
}
