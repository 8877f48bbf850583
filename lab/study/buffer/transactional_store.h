// A store with transactions over several tables, as the study of the buffer pool drives it: ours,
// RocksDB's TransactionDB, LMDB. Durable when a call returns, as far as the medium lets it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace perdure::lab::study {

class TransactionalStore {
 public:
  class Transaction {
   public:
    virtual ~Transaction() = default;
    // False if it is not there.
    virtual bool get(unsigned table, std::string_view key, std::string& value) = 0;
    // Of what the transaction is going to change: a lock, where the store has them.
    virtual bool get_to_change(unsigned table, std::string_view key, std::string& value) {
      return get(table, key, value);
    }
    virtual void put(unsigned table, std::string_view key, std::string_view value) = 0;
  };
  using Work = std::function<void(Transaction& transaction)>;

  virtual ~TransactionalStore() = default;
  // All threads may call these. `work` is done again after a conflict, and may throw: then nothing
  // has happened.
  virtual void write(const Work& work) = 0;
  // Without writes.
  virtual void read(const Work& work) = 0;
  // All records of a table in the order of keys, while nobody writes.
  virtual void scan(
      unsigned table,
      const std::function<void(std::string_view key, std::string_view value)>& visit) = 0;
};

struct TransactionalOptions {
  std::string path;     // of a folder that is made if it is not there
  unsigned tables = 1;  // numbered from 0
  uint64_t memory_bytes = uint64_t{256} << 20;
};

// What modules of peers define. Throws Error.
using OpenTransactional = TransactionalStore*(const TransactionalOptions& options);
inline constexpr char kOpenTransactionalSymbol[] = "perdure_open_transactional";

}  // namespace perdure::lab::study
