// Transactions over several structures, of perdure/c.h.

#include "perdure/transaction.h"

#include <string>
#include <utility>

#include "capi/support.h"

// NOLINTNEXTLINE(readability-identifier-naming): the name is that of C
struct perdure_transaction {
  perdure::PoolTransaction transaction;
};

using namespace perdure;
using namespace perdure::capi;

namespace {

PoolTransaction& of(perdure_transaction* transaction) {
  return need(transaction, "transaction").transaction;
}

AnyIndex& of(const perdure_index* index) { return *need(index, "index").index; }

}  // namespace

perdure_status perdure_transaction_begin(perdure_pool* pool, perdure_transaction** transaction) {
  return guarded([&] {
    need(transaction, "transaction") =
        new perdure_transaction{PoolTransaction(need(pool, "pool").pool)};
  });
}

perdure_status perdure_transaction_lookup(perdure_transaction* transaction,
                                          const perdure_index* index, perdure_datum key,
                                          perdure_value* value, int* found) {
  return guarded([&] {
    Value out;
    const bool there = of(transaction).lookup(of(index), datum_of(key, "key"), out);
    if (there && value != nullptr) set_value(*value, out);
    give(found, there);
  });
}

perdure_status perdure_transaction_insert(perdure_transaction* transaction, perdure_index* index,
                                          perdure_datum key, perdure_datum value, int* inserted) {
  return guarded([&] {
    give(inserted,
         of(transaction).insert(of(index), datum_of(key, "key"), datum_of(value, "value")));
  });
}

perdure_status perdure_transaction_update(perdure_transaction* transaction, perdure_index* index,
                                          perdure_datum key, perdure_datum value, int* updated) {
  return guarded([&] {
    give(updated,
         of(transaction).update(of(index), datum_of(key, "key"), datum_of(value, "value")));
  });
}

perdure_status perdure_transaction_upsert(perdure_transaction* transaction, perdure_index* index,
                                          perdure_datum key, perdure_datum value) {
  return guarded(
      [&] { of(transaction).upsert(of(index), datum_of(key, "key"), datum_of(value, "value")); });
}

perdure_status perdure_transaction_remove(perdure_transaction* transaction, perdure_index* index,
                                          perdure_datum key, int* removed) {
  return guarded([&] { give(removed, of(transaction).remove(of(index), datum_of(key, "key"))); });
}

perdure_status perdure_transaction_increment(perdure_transaction* transaction, perdure_index* index,
                                             perdure_datum key, int64_t by, uint64_t* sum) {
  return guarded(
      [&] { give(sum, of(transaction).increment(of(index), datum_of(key, "key"), by)); });
}

perdure_status perdure_transaction_commit(perdure_transaction* transaction) {
  return guarded([&] { of(transaction).commit(); });
}

perdure_status perdure_transaction_abort(perdure_transaction* transaction) {
  return guarded([&] { of(transaction).abort(); });
}

void perdure_transaction_free(perdure_transaction* transaction) { delete transaction; }

perdure_status perdure_transact(perdure_pool* pool, perdure_work work, void* context) {
  return guarded([&] {
    if (work == nullptr) refuse("work is NULL");
    transact(need(pool, "pool").pool, [&](PoolTransaction& transaction) {
      // A handle for this attempt.
      perdure_transaction handle{std::move(transaction)};
      const int status = work(context, &handle);
      transaction = std::move(handle.transaction);
      if (status == PERDURE_OK) return;
      const bool told = perdure_last_status() == status;
      throw Error(static_cast<ErrorCode>(status),
                  told ? perdure_last_error()
                       : "the work of a transaction returned " + std::to_string(status));
    });
  });
}
