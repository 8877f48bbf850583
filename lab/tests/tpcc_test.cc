// TPC-C's tables: what its transactions keep, and that a check finds what they would not.

#include "lab/study/buffer/tpcc.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>
#include <string>

namespace perdure::lab::study {
namespace {

// Tables in memory, whose transactions happen wholly or not at all, but for a table whose writes
// are lost.
class MapStore final : public TransactionalStore {
 public:
  using Table = std::map<std::string, std::string, std::less<>>;

  void write(const Work& work) override {
    std::array<Table, Tpcc::kTables> changed = tables_;
    One one(changed, lost_);
    work(one);
    tables_ = std::move(changed);
  }
  void read(const Work& work) override { write(work); }
  void scan(unsigned table,
            const std::function<void(std::string_view, std::string_view)>& visit) override {
    for (const auto& [key, value] : tables_[table]) visit(key, value);
  }
  void lose(unsigned table) { lost_ = table; }
  Table& table(unsigned table) { return tables_[table]; }

 private:
  class One final : public Transaction {
   public:
    One(std::array<Table, Tpcc::kTables>& tables, unsigned lost) : tables_(tables), lost_(lost) {}
    bool get(unsigned table, std::string_view key, std::string& value) override {
      const auto found = tables_[table].find(key);
      if (found == tables_[table].end()) return false;
      value = found->second;
      return true;
    }
    void put(unsigned table, std::string_view key, std::string_view value) override {
      if (table != lost_) tables_[table].insert_or_assign(std::string(key), value);
    }

   private:
    std::array<Table, Tpcc::kTables>& tables_;
    unsigned lost_;
  };
  std::array<Table, Tpcc::kTables> tables_;
  unsigned lost_ = Tpcc::kTables;
};

constexpr TpccSize kTiny{.warehouses = 2, .districts = 2, .customers = 10, .items = 100};

uint64_t problems_of(const Tpcc& tpcc, MapStore& store) {
  return tpcc.check(store, [](const std::string&) {});
}

TEST(TpccTables, AreWhatTheirTransactionsMadeThem) {
  const Tpcc tpcc(kTiny);
  MapStore store;
  tpcc.load(store);
  Tpcc::Terminal one = tpcc.terminal(1, 7);
  Tpcc::Terminal other = tpcc.terminal(2, 8);
  uint64_t rolled_back = 0;
  for (int i = 0; i < 400; ++i) {
    if (one.run(store) == Tpcc::Terminal::Done::kNone) ++rolled_back;
    if (other.run(store) == Tpcc::Terminal::Done::kNone) ++rolled_back;
  }
  EXPECT_GT(rolled_back, 0U);
  EXPECT_EQ(one.committed() + other.committed(), 800 - rolled_back);
  tpcc.check(store, [](const std::string& sentence) { ADD_FAILURE() << sentence; });
  std::map<uint32_t, std::set<uint64_t>> commits;
  tpcc.visit_commits(store, [&](uint32_t terminal, uint64_t commit) {
    EXPECT_TRUE(commits[terminal].insert(commit).second);
  });
  EXPECT_EQ(commits[1].size(), one.committed());
  EXPECT_EQ(commits[2].size(), other.committed());
  EXPECT_EQ(*commits[1].rbegin(), one.committed());
}

// Each table but those that only carry what others count.
TEST(TpccTables, WhoseWritesAreLostDoNotPass) {
  for (const unsigned table : {Tpcc::kWarehouse, Tpcc::kDistrict, Tpcc::kCustomer, Tpcc::kHistory,
                               Tpcc::kNewOrder, Tpcc::kOrder, Tpcc::kOrderLine}) {
    SCOPED_TRACE(table);
    const Tpcc tpcc(kTiny);
    MapStore store;
    tpcc.load(store);
    Tpcc::Terminal terminal = tpcc.terminal(1, 7);
    for (int i = 0; i < 50; ++i) terminal.run(store);
    EXPECT_EQ(problems_of(tpcc, store), 0U);
    store.lose(table);
    for (int i = 0; i < 20; ++i) terminal.run(store);
    EXPECT_GT(problems_of(tpcc, store), 0U);
  }
}

}  // namespace
}  // namespace perdure::lab::study
