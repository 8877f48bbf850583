// TPC-C, reduced: its new-order and payment, on its tables with rows of about its sizes. What is
// left out: the other three transactions, customers by their last names, terminals that think, and
// rules of auditing. So figures are not tpmC, and compare only with each other.
//
//   Tpcc tpcc(size);
//   tpcc.load(store);
//   for (Tpcc::Terminal terminal = tpcc.terminal(1, seed);;) terminal.run(store);
//   tpcc.check(store, report);
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "lab/study/buffer/transactional_store.h"

namespace perdure::lab::study {

// By default as the specification has it, but for the number of warehouses.
struct TpccSize {
  uint32_t warehouses = 2;
  uint32_t districts = 10;    // of a warehouse
  uint32_t customers = 3000;  // of a district
  uint32_t items = 100'000;
};

class Tpcc {
 public:
  enum Table : unsigned {
    kWarehouse,
    kDistrict,
    kCustomer,
    kHistory,
    kNewOrder,
    kOrder,
    kOrderLine,
    kItem,
    kStock,
    kTables
  };

  explicit Tpcc(TpccSize size) : size_(size) {}
  const TpccSize& size() const { return size_; }

  void load(TransactionalStore& store) const;

  // One who enters transactions: half of them new orders, half payments (45 to 43, as specified).
  // One in a hundred new orders has an item that does not exist, and is rolled back.
  class Terminal {
   public:
    // Commits one transaction, or none; tells which.
    enum class Done : uint8_t { kNewOrder, kPayment, kNone };
    Done run(TransactionalStore& store);
    // Committed ones; each leaves its number in an order or in a payment's history.
    uint64_t committed() const { return committed_; }

   private:
    friend class Tpcc;
    Terminal(const TpccSize& size, uint32_t number, uint64_t seed)
        : size_(size), number_(number), word_(seed) {}
    bool new_order(TransactionalStore& store);
    void payment(TransactionalStore& store);
    uint32_t below(uint32_t bound);
    uint32_t skewed(uint32_t mask, uint32_t count);

    TpccSize size_;
    uint32_t number_;
    uint64_t word_;
    uint64_t committed_ = 0;
  };
  // `number` differs from those of all terminals before it.
  Terminal terminal(uint32_t number, uint64_t seed) const { return {size_, number, seed}; }

  // What must hold: no money is lost between warehouses, districts, customers and the history;
  // orders have numbers without gaps and all their lines. Returns how many sentences there were.
  uint64_t check(TransactionalStore& store,
                 const std::function<void(const std::string&)>& report) const;
  // Each commit of each terminal, numbered from 1 in the order of its commits.
  void visit_commits(TransactionalStore& store,
                     const std::function<void(uint32_t terminal, uint64_t commit)>& visit) const;

 private:
  TpccSize size_;
};

}  // namespace perdure::lab::study
